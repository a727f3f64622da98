package nvmf

import (
	"sync"
	"sync/atomic"
	"time"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// queue is one queue of an association. It outlives its connections: commands that are to be
// sent again keep their slots meanwhile. It implements nvme.HostUpper.
type queue struct {
	a  *Association
	id uint16

	// busy says that an up-call is under way whose goroutine transmits afterwards.
	busy atomic.Bool

	// mu guards the rest, and the requests and commands of the queue. It may be held across
	// Submit of the transport, never across Push, Terminate or a Done callback; it is taken
	// after Association.mu. Functions whose names end in Locked are called with it held.
	mu      sync.Mutex
	tr      nvme.HostTransport
	gone    chan struct{} // closed when the connection has ended; nil before the first
	flowing bool          // requests are sent
	gate    chan struct{} // closed when anything is sent again; nil: it is. See rest.go
	closed  bool          // the controller has not granted it this time: no request waits here
	down    error         // why requests fail at once instead of waiting
	limit   int           // commands that the controller takes at once
	held    int           // of them: kept free for an authentication
	proves  bool          // the controller has asked for one
	cmds    []command
	free    *command
	sent    int // commands at the controller
	waiting waitList
	resend  commands // in the order in which they were sent first
	delayed int
	order   uint64
	stats   blockio.Stats
	past    nvme.HostStats // of the connections before
	done    requests       // ended; their Done is called without the lock
	retry   *time.Timer
}

// command is a slot of a queue.
type command struct {
	nvme.HostCommand
	req    *request // nil: of a call
	call   *call
	state  cmdState
	tries  uint8
	order  uint64 // in which it was sent first
	sentAt int64  // Association.now
	first  int64  // the same, the first time
	off, n int64  // of the request, bytes
	fused  *command
	segs   [][]byte
	param  [nvme.DSMRangeLen]byte
	abort  error // why it is given up; its answer does not matter
	next   *command
}

// newQueue makes a queue with slots for depth commands and one more, of Connect.
func newQueue(a *Association, id uint16, depth int) *queue {
	q := &queue{a: a, id: id, limit: depth, cmds: make([]command, depth+1)}
	for i := range q.cmds {
		c := &q.cmds[i]
		c.Slot = i
		if i < depth {
			c.next, q.free = q.free, c
		}
	}
	return q
}

// attach makes tr the queue's connection.
func (q *queue) attach(tr nvme.HostTransport) {
	q.mu.Lock()
	q.tr, q.gone = tr, make(chan struct{})
	q.mu.Unlock()
	tr.Start(q)
}

// connection returns the queue's connection, nil when it has none, and what tells its end.
func (q *queue) connection() (nvme.HostTransport, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tr, q.gone
}

// stop ends the queue's timer.
func (q *queue) stop() {
	q.mu.Lock()
	if q.retry != nil {
		q.retry.Stop()
	}
	q.mu.Unlock()
}

// takeLocked returns a free slot.
func (q *queue) takeLocked() *command {
	c := q.free
	if c != nil {
		q.free, c.next = c.next, nil
	}
	return c
}

// putLocked gives a slot back.
func (q *queue) putLocked(c *command) {
	c.req, c.call, c.fused, c.abort, c.Data = nil, nil, nil, nil, nil
	clear(c.segs)
	c.tries = 0
	q.moveCommandLocked(c, cmdFree)
	if c.Slot == len(q.cmds)-1 {
		return // the last slot is for Connect alone
	}
	c.next, q.free = q.free, c
}

// sendLocked gives a command to the transport, which only queues it; see kick.
func (q *queue) sendLocked(c *command) {
	now := q.a.pulse.now.Load()
	if c.state == cmdFree {
		q.order++
		c.order, c.first = q.order, now
	}
	if c.req != nil {
		c.req.Sent = true
	}
	q.moveCommandLocked(c, cmdSent)
	c.sentAt = now
	q.sent++
	q.stats.Commands++
	q.tr.Submit(&c.HostCommand)
}

// pumpLocked sends what may be sent: first what is sent again, then the commands of new requests.
func (q *queue) pumpLocked() {
	if !q.flowing || q.gate != nil {
		return
	}
	for q.resend.head != nil && q.sent+q.held < q.limit {
		q.sendLocked(q.resend.pop())
	}
	for q.free != nil && q.sent+q.held < q.limit && !q.waiting.Empty() {
		r := q.waiting.First()
		if r.op == &operations[blockio.OpCompareAndWrite] && r.phase != flushNow {
			switch {
			case q.limit < 2:
				q.waiting.remove(r)
				r.cancel = lacks("room for two commands in its queues, as a compare and write needs")
				q.finishLocked(r)
				continue
			case q.free.next == nil || q.sent+q.held+2 > q.limit:
				return
			}
			q.sendPairLocked(r)
		} else {
			c := q.takeLocked()
			r.carve(c)
			r.parts++
			q.sendLocked(c)
		}
		if r.issued == r.total {
			q.waiting.remove(r)
			q.moveRequestLocked(r, reqRunning)
		}
	}
}

// sendPairLocked sends a fused Compare and Write, one behind the other.
func (q *queue) sendPairLocked(r *request) {
	c, w := q.takeLocked(), q.takeLocked()
	r.carve(c)
	w.req, w.off, w.n = r, 0, 0
	r.fused(w, nvme.OpWrite, nvme.FuseSecond, 1)
	c.fused, w.fused = w, c
	r.parts += 2
	q.sendLocked(c)
	q.sendLocked(w)
}

// enqueueLocked takes a request in; false: it is another queue's.
func (q *queue) enqueueLocked(r *request) bool {
	switch {
	case q.down != nil:
		r.cancel = q.down
		q.finishLocked(r)
	case q.closed:
		return false
	default:
		q.moveRequestLocked(r, reqQueued)
		r.losses = q.a.losses.Load()
		q.waiting.push(r)
		q.pumpLocked()
	}
	return true
}

// kick transmits, unless the goroutine of an up-call is about to.
func (q *queue) kick() {
	if q.busy.Load() {
		return
	}
	if tr, _ := q.connection(); tr != nil {
		tr.Push()
	}
}

// unlock releases mu and calls Done of what has ended.
func (q *queue) unlock() {
	r := q.done.head
	q.done = requests{}
	q.mu.Unlock()
	for r != nil {
		next := r.next
		r.next = nil
		if r.Done != nil {
			r.Done(r.Request)
		}
		r = next
	}
}

// finishLocked ends a request: its Done is called by unlock.
func (q *queue) finishLocked(r *request) {
	q.moveRequestLocked(r, reqIdle)
	r.Err = r.cancel
	if r.Err != nil {
		q.stats.Errors++
		if r.op.data {
			r.Residual = r.DataLen()
		}
	}
	q.done.push(r)
}

// Completed implements nvme.HostUpper.
func (q *queue) Completed(h *nvme.HostCommand) {
	q.busy.Store(true)
	q.mu.Lock()
	c := &q.cmds[h.Slot]
	q.a.pulse.answered(c.sentAt)
	q.sent--
	q.stats.Completed++
	if w := c.call; w != nil {
		w.cqe, w.err = c.CQE, c.Err
		q.putLocked(c)
		close(w.done)
		q.mu.Unlock()
		return
	}
	q.answeredLocked(c)
	q.pumpLocked()
	q.unlock()
}

// BatchEnd implements nvme.HostUpper.
func (q *queue) BatchEnd() { q.busy.Store(false) }

// overdue gives up the commands of requests that have had no answer for longer than limit, and
// returns how many there are.
func (q *queue) overdue(now, limit int64) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.cmds {
		c := &q.cmds[i]
		if c.state == cmdSent && c.req != nil && now-c.sentAt > limit {
			if n++; c.abort == nil {
				c.abort = blockio.ErrTimeout
			}
		}
	}
	return n
}

// atRest reports whether nothing is under way.
func (q *queue) atRest() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.flowing || q.sent == 0 && q.delayed == 0 && q.waiting.Empty() && q.resend.head == nil
}
