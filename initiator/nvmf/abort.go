package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// abortTimeout is how long an aborted command may take to end before the association is
// broken off, which ends it.
const abortTimeout = 10 * time.Second

// abandon ends r early: commands that were not sent are dropped, those at the controller
// aborted. Their memory is in use until they are answered.
func (r *request) abandon(err error) {
	q := r.lock()
	if q == nil {
		return
	}
	if r.state == reqIdle { // it has ended: Done is being called
		q.mu.Unlock()
		return
	}
	if r.state == reqQueued {
		q.waiting.remove(r)
		q.moveRequestLocked(r, reqRunning)
	}
	r.cancel = err
	var ids []uint16
	if r.parts == 0 {
		q.finishLocked(r)
	}
	q.dropLocked(func(c *command) bool { return c.req == r }, err)
	for i := range q.cmds {
		if c := &q.cmds[i]; c.state == cmdSent && c.req == r {
			c.abort = err
			ids = append(ids, c.SQE.CID())
		}
	}
	q.unlock()
	for _, id := range ids {
		q.a.abort(q.id, id, err)
	}
}

// lock locks the queue that r is with and returns it; nil: none yet.
func (r *request) lock() *queue {
	for {
		q := r.queue.Load()
		if q == nil {
			return nil
		}
		q.mu.Lock()
		if r.queue.Load() == q {
			return q
		}
		q.mu.Unlock()
	}
}

// dropLocked ends commands that are waiting to be sent again.
func (q *queue) dropLocked(match func(*command) bool, err error) {
	var keep commands
	for q.resend.head != nil {
		if c := q.resend.pop(); match(c) {
			if c.tries > 0 {
				q.unknownLocked(c.req)
			}
			q.endedLocked(c, err)
		} else {
			keep.push(c)
		}
	}
	q.resend = keep
	for i := range q.cmds {
		if c := &q.cmds[i]; c.state == cmdDelayed && match(c) {
			q.delayed--
			q.endedLocked(c, err)
		}
	}
}

// unknownLocked takes note that r, if it has been cancelled or has failed in a part, may yet be carried out. An
// ErrSessionLost says so already.
func (q *queue) unknownLocked(r *request) {
	told := errors.Is(r.cancel, blockio.ErrOutcomeUnknown) || errors.Is(r.cancel, blockio.ErrSessionLost)
	if r.cancel != nil && !told && (r.op.changes || !r.op.repeatable) {
		q.stats.OutcomeUnknown++
		r.cancel = blockio.Unknown(r.cancel)
	}
}

// forget ends what a namespace has left that is not at the controller.
func (q *queue) forget(n *Namespace) {
	q.mu.Lock()
	defer q.unlock()
	q.dropLocked(func(c *command) bool { return c.req.ns == n }, blockio.ErrClosed)
	for r := q.waiting.First(); r != nil; {
		next := r.node.Next()
		if r.ns == n {
			q.waiting.remove(r)
			q.moveRequestLocked(r, reqRunning)
			r.cancel = blockio.ErrClosed
			if r.parts == 0 {
				q.finishLocked(r)
			}
		}
		r = next
	}
}

// abort asks the controller to abort a command because of why. It need not do so; what counts is that
// the command is answered, or the association ended.
func (a *Association) abort(qid, cid uint16, why error) {
	a.mu.Lock()
	a.aborts++
	a.mu.Unlock()
	if !errors.Is(why, context.Canceled) { // who has asked for that need not be told
		a.event(Event{Kind: EventAborted, Detail: fmt.Sprintf("command %d of queue %d", cid, qid), Err: why})
	}
	ctx, cancel := context.WithTimeout(a.ctx, abortTimeout)
	defer cancel()
	_, _ = a.admin.do(ctx, func(s *nvme.SQE) {
		s.Init(nvme.AdminAbort, 0)
		s.SetCDW(10, uint32(qid)|uint32(cid)<<16)
	}, nil, "Abort")
}
