package bench

import (
	"softiser/initiator/blockio"
)

// submitNext gives the slot its next operation; false: there is none and the
// slot rests. Runner only.
func (c *clone) submitNext(s *slot) bool {
	switch c.live.at() {
	case phaseRun:
		return c.runNext(s)
	case phaseFlush:
		return c.flushNext(s)
	case phaseVerify:
		return c.verifyNext(s)
	}
	return false
}

// runNext gives slot s its next command, and reports whether it has one: false when the
// clone's work is done, its time over, or it has failed.
func (c *clone) runNext(s *slot) bool {
	if c.expired(s.start) || c.halted(c.job.ContinueOnErr) {
		// Being stopped counts as an interruption only if there was something left to do.
		c.cut = c.cut || c.stopped.Load() && !c.expired(s.start) && (s.held || c.work.next(&s.ext) || c.work.drained)
		s.held = false
		return false
	}
	if c.rampedUp(s.start, c.job.RampTime) {
		c.measure(s.start)
	}
	if c.flushes.due() {
		c.submitFlush(s)
		return true
	}
	if !s.held {
		if c.search != nil && !c.admitDepth(s) {
			return true
		}
		if !c.share.admit() {
			c.awaitFlow(s)
			return true
		}
		if !c.work.next(&s.ext) {
			return false
		}
		if c.pace.on {
			if wait := c.pace.take(s.ext, s.start); wait > 0 {
				s.held = true
				c.park(s, s.start+wait)
				return true
			}
		}
	}
	s.held = false
	c.submitData(s)
	return true
}

// submitData hands s.ext to the session.
func (c *clone) submitData(s *slot) {
	e, r := s.ext, &s.req
	s.d = e.d
	r.Off, r.Len, r.Buf, r.FUA = e.off, int64(e.n), s.buf[:e.n], false
	switch e.d {
	case dirRead:
		r.Op = blockio.OpRead
	case dirWrite:
		r.Op, r.FUA = blockio.OpWrite, c.job.FUA
		c.flushes.since++
		if c.ledger != nil {
			c.ledger.sign(r.Buf, e.off, c.job)
		} else {
			c.content.renew(r.Buf, e.off)
		}
	case dirTrim:
		r.Op, r.Buf = blockio.OpDiscard, nil
	}
	c.submit(s)
}

func (c *clone) submitFlush(s *slot) {
	c.flushes.begin()
	s.flush()
	c.submit(s)
}

// flushNext: one flush of everything, by the first slot that asks.
func (c *clone) flushNext(s *slot) bool {
	if c.flushes.last || c.stopped.Load() {
		c.cut = c.cut || !c.flushes.last
		return false
	}
	c.flushes.last = true
	s.flush()
	c.submit(s)
	return true
}

// verifyNext reads the next block that the ledger knows.
func (c *clone) verifyNext(s *slot) bool {
	c.cut = c.cut || c.stopped.Load() && (c.ledger == nil || c.verifyAt < c.ledger.blocks)
	if c.stopped.Load() || c.stats.Bad > 0 && c.job.VerifyFatal || c.stats.Errors > 0 && !c.job.ContinueOnErr {
		return false
	}
	if c.ledger == nil {
		return c.readCheckNext(s)
	}
	for ; c.verifyAt < c.ledger.blocks; c.verifyAt++ {
		off := c.ledger.base + int64(c.verifyAt)*c.ledger.unit
		if _, known := c.ledger.window(off, c.job.VerifyDurable); known {
			c.verifyAt++
			s.ext = extent{dirRead, off, int(c.ledger.unit)}
			c.submitData(s)
			return true
		}
	}
	return false
}

// readCheckNext is verify-only of a job that reads: its own pattern once.
func (c *clone) readCheckNext(s *slot) bool {
	if !c.work.next(&s.ext) {
		return false
	}
	c.submitData(s)
	return true
}

// submit hands the slot's request to its session. s.start to here is slat.
func (c *clone) submit(s *slot) {
	s.req.Err, s.req.Residual, s.req.Status = nil, 0, 0
	s.inFlight = true
	c.flight++
	c.stats.Depth[depthBucket(c.flight)]++
	s.issue = c.now()
	s.lun.Submit(&s.req) // Done may have been called when this returns
}

// admitDepth reports whether the slot may issue; otherwise the slot rests until
// [clone.callIdle]. Runner only.
func (c *clone) admitDepth(s *slot) bool {
	if !c.work.exhausted() && !c.search.mayIssue(c.flight) {
		c.idle = append(c.idle, s)
		return false
	}
	if c.search.draining {
		c.search.draining = false
		c.search.window(s.start)
	}
	return true
}

// callIdle hands slots that the search has held back to the runner, which is the
// caller: as many as it may now use, or all when the phase ends.
func (c *clone) callIdle() {
	n := len(c.idle)
	if !c.stopped.Load() && !c.over && !c.failed && !c.expired(c.now()) && !c.work.exhausted() {
		free := c.search.depth - c.flight
		if c.search.draining {
			free = 0
			if c.flight == 0 {
				free = 1 // one slot is called: it ends the draining and calls the others
			}
		}
		n = min(n, max(free, 0))
	}
	c.mu.Lock()
	now := c.now()
	for range n {
		s := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		s.end = now
		c.ready.push(s)
	}
	c.mu.Unlock()
}

// awaitFlow parks a slot until its clone may go on. Runner only.
func (c *clone) awaitFlow(s *slot) {
	if d := c.job.FlowSleep; d > 0 {
		c.park(s, s.start+d)
		return
	}
	c.gate(s)
}
