package nvmf

import (
	"context"

	"softiser/internal/nvme"
)

// call is a command of the association's own, which somebody waits for.
type call struct {
	done chan struct{}
	cqe  nvme.CQE
	err  error
}

// run sends a command of the association's own and waits for its answer. The memory of data
// belongs to the command until then, also when ctx ends before.
func (q *queue) run(ctx context.Context, set func(*nvme.SQE), data []byte) (nvme.CQE, error) {
	w := &call{done: make(chan struct{})}
	q.mu.Lock()
	for gate := q.gate; gate != nil; gate = q.gate {
		q.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return nvme.CQE{}, context.Cause(ctx)
		}
		q.mu.Lock()
	}
	var c *command
	if q.id == 0 {
		c = q.takeLocked()
	} else if last := &q.cmds[len(q.cmds)-1]; last.state == cmdFree {
		c = last
	}
	if q.tr == nil || c == nil {
		if c != nil {
			q.putLocked(c)
		}
		q.mu.Unlock()
		return nvme.CQE{}, errLost
	}
	set(&c.SQE)
	c.call, c.segs = w, c.segs[:0]
	if len(data) > 0 {
		c.segs = append(c.segs, data)
	}
	c.Data = c.segs
	q.sendLocked(c)
	tr := q.tr
	q.mu.Unlock()
	tr.Push()
	return w.wait(ctx)
}

// wait waits for the answer.
func (w *call) wait(ctx context.Context) (nvme.CQE, error) {
	select {
	case <-w.done:
		return w.cqe, w.err
	case <-ctx.Done():
		return nvme.CQE{}, context.Cause(ctx)
	}
}
