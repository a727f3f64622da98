package nvmf

import (
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// answered takes the answer to a command of a request.
func (q *queue) answered(c *command) {
	r := c.req
	s := c.CQE.Status()
	err := c.Err
	if err == nil && s != nvme.Success {
		err = statusError(r.op.name, s)
	}
	again := errors.Is(err, nvme.ErrDataDigest) || c.Err == nil && retryable(s) && !(q.a.cfg.Path && errors.Is(err, blockio.ErrInaccessible))
	switch {
	case c.abort != nil:
		q.ended(c, c.abort)
	case err == nil && c.ToHost() && int64(c.Received) < c.n:
		q.ended(c, fmt.Errorf("%w: %d of %d", ErrShort, c.Received, c.n))
	case err == nil:
		q.count(c)
		q.ended(c, nil)
	case again && c.SQE.Fuse() == nvme.FuseNone && r.cancel == nil && q.mayRetry(c):
		q.delay(c)
	default:
		if r.Op == blockio.OpWriteZeroes && errors.Is(err, blockdev.ErrNotSupported) {
			r.ns.noZeroes()
		}
		q.ended(c, err)
	}
}

// count takes a success into the account.
func (q *queue) count(c *command) {
	r := c.req
	switch {
	case c.ToHost():
		q.stats.ReadBytes += uint64(c.n)
	case r.op.data && r.phase != flushNow && c.fused == nil:
		q.stats.WriteBytes += uint64(c.n)
	}
	if r.cached() {
		r.ns.epoch.Load().Wrote(r.Flusher)
	}
}

// Tries of a command that the controller asks to send again: with digests that are wrong it
// is more likely the path.
const (
	retryDelay  = 50 * time.Millisecond
	digestTries = 5
)

func (q *queue) mayRetry(c *command) bool {
	if c.Err != nil {
		return c.tries < digestTries
	}
	limit := q.a.cfg.CommandTimeout
	return limit < 0 || q.a.pulse.now.Load()-c.first < int64(limit)
}

// delay sends a command again a little later.
func (q *queue) delay(c *command) {
	q.moveCommand(c, cmdDelayed)
	c.tries++
	q.delayed++
	q.stats.Retries++
	if q.retry == nil {
		q.retry = time.AfterFunc(retryDelay, q.wake)
	} else if q.delayed == 1 {
		q.retry.Reset(retryDelay)
	}
}

// wake sends what has been delayed.
func (q *queue) wake() {
	q.mu.Lock()
	if q.delayed > 0 {
		q.delayed = 0
		for i := range q.cmds {
			if c := &q.cmds[i]; c.state == cmdDelayed {
				q.moveCommand(c, cmdResend)
				q.resend.push(c)
			}
		}
		q.pump()
	}
	q.unlock()
	q.kick()
}

// ended gives a command's slot back, and with its last command ends its request.
func (q *queue) ended(c *command, err error) {
	r := c.req
	if other := c.fused; other != nil {
		other.fused = nil
	}
	q.put(c)
	if err != nil && (r.cancel == nil || onlyFollows(r.cancel)) {
		r.cancel = err
		if r.state == reqQueued { // the request has more commands to send: they are not sent
			q.waiting.remove(r)
			q.moveRequest(r, reqRunning)
		}
	}
	if r.parts--; r.parts > 0 {
		return
	}
	if r.cancel != nil {
		q.finish(r)
		return
	}
	if r.issued == r.total && !q.settle(r) {
		q.finish(r)
	}
}

// onlyFollows reports that err is the end of a fused command whose other half has failed,
// which says why.
func onlyFollows(err error) bool {
	var se *StatusError
	return errors.As(err, &se) && se.Status == uint16(nvme.AbortedFailedFused)
}

// settle gives a request whose commands have all succeeded its next phase; false: it has
// ended, with r.cancel as its error.
func (q *queue) settle(r *request) bool {
	switch {
	case r.phase == flushNone:
		if r.Op == blockio.OpFlush {
			r.cancel = r.sync.End(true)
		}
		return false
	case r.losses != q.a.losses.Load() && r.redone == maxAgain:
		r.cancel = fmt.Errorf("%w (the connection was lost between the write and its flush)", blockio.ErrCacheLost)
		return false
	case r.losses != q.a.losses.Load():
		// What was acknowledged before the loss may be gone.
		r.redone++
		r.losses, r.phase, r.issued = q.a.losses.Load(), flushAfter, 0
	case r.phase == flushAfter:
		r.phase, r.sync = flushNow, r.ns.epoch.Load().Begin(nil)
	default:
		r.sync.Cover()
		return false
	}
	q.moveRequest(r, reqQueued)
	q.waiting.push(r)
	return true
}
