package nvmf

import (
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// answeredLocked takes the answer to a command of a request.
func (q *queue) answeredLocked(c *command) {
	r := c.req
	s := c.CQE.Status()
	err := c.Err
	if err == nil && s != nvme.Success {
		err = statusError(r.op.name, s)
	}
	again := errors.Is(err, nvme.ErrDataDigest) || c.Err == nil && retryable(s) && !(q.a.cfg.Path && errors.Is(err, blockio.ErrInaccessible))
	switch {
	case c.abort != nil:
		q.endedLocked(c, c.abort)
	case err == nil && c.ToHost() && int64(c.Received) < c.n:
		q.endedLocked(c, fmt.Errorf("%w: %d of %d", ErrShort, c.Received, c.n))
	case err == nil:
		q.countLocked(c)
		q.endedLocked(c, nil)
	case again && c.SQE.Fuse() == nvme.FuseNone && r.cancel == nil && q.mayRetryLocked(c):
		q.delayLocked(c)
	default:
		if r.Op == blockio.OpWriteZeroes && errors.Is(err, blockdev.ErrNotSupported) {
			r.ns.noZeroes()
		}
		q.endedLocked(c, err)
	}
}

// countLocked counts what a command that has succeeded has moved.
func (q *queue) countLocked(c *command) {
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

// mayRetryLocked reports whether a command that has failed for now may be sent again.
func (q *queue) mayRetryLocked(c *command) bool {
	if c.Err != nil {
		return c.tries < digestTries
	}
	limit := q.a.cfg.CommandTimeout
	return limit < 0 || q.a.pulse.now.Load()-c.first < int64(limit)
}

// delayLocked sends a command again a little later.
func (q *queue) delayLocked(c *command) {
	q.moveCommandLocked(c, cmdDelayed)
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
				q.moveCommandLocked(c, cmdResend)
				q.resend.push(c)
			}
		}
		q.pumpLocked()
	}
	q.unlock()
	q.kick()
}

// endedLocked gives a command's slot back. The last command of a request ends the request.
func (q *queue) endedLocked(c *command, err error) {
	r := c.req
	if other := c.fused; other != nil {
		other.fused = nil
	}
	q.putLocked(c)
	if err != nil && (r.cancel == nil || onlyFollows(r.cancel)) {
		r.cancel = err
		if r.state == reqQueued { // the request has more commands to send: they are not sent
			q.waiting.remove(r)
			q.moveRequestLocked(r, reqRunning)
		}
	}
	if r.parts--; r.parts > 0 {
		return
	}
	if r.cancel != nil {
		q.finishLocked(r)
		return
	}
	if r.issued == r.total && !q.settleLocked(r) {
		q.finishLocked(r)
	}
}

// onlyFollows reports that err is the end of a fused command whose other half has failed,
// which says why.
func onlyFollows(err error) bool {
	var se *StatusError
	return errors.As(err, &se) && se.Status == uint16(nvme.AbortedFailedFused)
}

// settleLocked gives a request whose commands have all succeeded its next phase; false: it has
// ended, with r.cancel as its error.
func (q *queue) settleLocked(r *request) bool {
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
	q.moveRequestLocked(r, reqQueued)
	q.waiting.push(r)
	return true
}
