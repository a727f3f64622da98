package nvmf

import (
	"errors"
	"fmt"
	"slices"

	"softiser/initiator/blockio"
)

// Ended implements nvme.HostUpper.
func (q *queue) Ended(err error) {
	q.mu.Lock()
	s := q.tr.Stats()
	q.past.Add(&s)
	q.tr, q.flowing = nil, false
	gone := q.gone
	for i := range q.cmds {
		if c := &q.cmds[i]; c.state == cmdSent && c.call != nil {
			w := c.call
			w.err = errLost
			q.sent--
			q.putLocked(c)
			close(w.done)
		}
	}
	q.unlock()
	q.busy.Store(false)
	if err == nil {
		err = errors.New("the controller has closed the connection")
	}
	q.a.lost(fmt.Errorf("nvmf: queue %d: %w", q.id, err))
	close(gone)
}

var errLost = errors.New("nvmf: the connection was lost")

// terminate ends the connection, if there is one, and waits until none of its memory is in
// use any more.
func (q *queue) terminate(reason error) {
	q.mu.Lock()
	q.flowing = false
	q.mu.Unlock()
	tr, gone := q.connection()
	if tr != nil {
		tr.Terminate(reason)
	}
	if gone != nil {
		<-gone
	}
}

// retire sorts what the lost connection has left, when that uses no memory any more: it ends, or is sent again in
// the order in which it was sent first.
func (q *queue) retire() {
	q.mu.Lock()
	defer q.unlock()
	var again []*command
	for i := range q.cmds {
		c := &q.cmds[i]
		if c.state == cmdFree {
			continue
		}
		if err := q.fateLocked(c); err != nil {
			q.endedLocked(c, err)
			continue
		}
		if c.state == cmdSent { // else no connection has been lost with it
			c.tries++
		}
		again = append(again, c)
	}
	slices.SortFunc(again, func(a, b *command) int { return int(int64(a.order - b.order)) })
	q.resend, q.delayed, q.sent = commands{}, 0, 0
	for _, c := range again {
		q.moveCommandLocked(c, cmdResend)
		q.resend.push(c)
	}
}

// fateLocked is what a command ends with whose connection was lost; nil: it is sent again.
func (q *queue) fateLocked(c *command) error {
	r, sent := c.req, c.state == cmdSent
	switch {
	case c.abort == blockio.ErrTimeout:
		return blockio.ErrTimeoutUnknown
	case c.abort != nil:
		q.unknownLocked(r)
		return c.abort
	case r.cancel != nil: // another part of it has failed
		if sent {
			q.unknownLocked(r)
		}
		return r.cancel
	case r.ns.closed.Load():
		return blockio.ErrClosed // nobody looks whether the namespace is the same
	case sent && !r.op.repeatable && r.phase != flushNow:
		q.stats.OutcomeUnknown++
		return blockio.ErrOutcomeUnknown
	case sent && c.kills(q.a):
		return fmt.Errorf("%w: the connection was lost %d times while %s was outstanding", blockio.ErrSessionLost, c.tries+1, r.op.name)
	}
	return nil
}

// kills reports whether the command may be what kills the controller: connections have been lost with it for longer
// than commands wait for one.
func (c *command) kills(a *Association) bool {
	limit := a.cfg.CtrlLossTimeout
	return c.tries > 0 && limit > 0 && a.pulse.now.Load()-c.first > int64(limit)
}

// vacate gives the requests of a queue that the controller has not granted this time to
// the others, and returns how many there were. What was outstanding of them is repeatable,
// and so are they as a whole.
func (q *queue) vacate() (n int) {
	for {
		to := q.a.nextQueue()
		if to == q {
			return n // the association has been made again meanwhile, with more queues
		}
		lockBoth(q, to)
		var r *request
		if c := q.resend.head; c != nil {
			r = c.req
		} else {
			r = q.waiting.First()
		}
		if r == nil {
			q.mu.Unlock()
			to.mu.Unlock()
			return n
		}
		if r.cancel != nil {
			q.dropLocked(func(c *command) bool { return c.req == r }, r.cancel)
			to.mu.Unlock()
			q.unlock()
			continue
		}
		q.releaseLocked(r)
		r.restart(q.a.losses.Load())
		to.moveRequestLocked(r, reqQueued)
		r.queue.Store(to)
		to.waiting.push(r)
		n++
		q.mu.Unlock()
		to.unlock()
	}
}

// lockBoth locks two queues, in the order of their identifiers.
func lockBoth(a, b *queue) {
	if a.id > b.id {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
}

// releaseLocked takes a request out of a queue whose connection has gone.
func (q *queue) releaseLocked(r *request) {
	if r.state == reqQueued {
		q.waiting.remove(r)
	}
	var keep commands
	for q.resend.head != nil {
		if c := q.resend.pop(); c.req == r {
			q.putLocked(c)
		} else {
			keep.push(c)
		}
	}
	q.resend = keep
}

// restart has r carved from its beginning once more.
func (r *request) restart(losses uint32) {
	if r.phase == flushNow {
		r.phase = flushAfter
	}
	r.issued, r.parts, r.losses = 0, 0, losses
}

// refit has what is sent again, and what waits, keep to the limits of a controller that takes less
// in one command than the one before.
func (q *queue) refit() {
	q.mu.Lock()
	defer q.unlock()
	for r := q.waiting.First(); r != nil; r = r.node.Next() {
		r.narrow()
	}
	var long []*request
	for c := q.resend.head; c != nil; c = c.next {
		r := c.req
		r.narrow()
		if r.op.limit != nil && r.phase != flushNow && c.n > r.op.limit(r.geo) && !slices.Contains(long, r) {
			long = append(long, r)
		}
	}
	for _, r := range long { // what was outstanding of them is repeatable, and so are they as a whole
		q.releaseLocked(r)
		r.restart(q.a.losses.Load())
		q.moveRequestLocked(r, reqQueued)
		q.waiting.push(r)
	}
}

// narrow gives r the limits that its namespace has now, if they are narrower. One that has none
// any more lets the controller say so.
func (r *request) narrow() {
	g := r.ns.geo.Load()
	if limit := r.op.limit; limit != nil && limit(g) > 0 && limit(g) < limit(r.geo) {
		r.geo = g
	}
}

// flow lets requests through, and returns how many commands are sent again.
func (q *queue) flow() (replayed int) {
	q.mu.Lock()
	q.flowing = q.tr != nil
	for c := q.resend.head; c != nil; c = c.next {
		replayed++
	}
	q.stats.Replayed += uint64(replayed)
	q.pumpLocked()
	q.unlock()
	q.kick()
	return replayed
}

// fail ends everything, and what comes until the association is live again.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.unlock()
	q.down = err
	q.resend, q.delayed = commands{}, 0
	for i := range q.cmds {
		if c := &q.cmds[i]; c.state != cmdFree && c.req != nil {
			q.endedLocked(c, err)
		}
	}
	for r := q.waiting.First(); r != nil; r = q.waiting.First() {
		q.waiting.remove(r)
		r.cancel = err
		q.finishLocked(r)
	}
}
