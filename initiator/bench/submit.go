package bench

import (
	"fmt"
	"syscall"
	"time"

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
	if c.stopped.Load() || c.expired(s.start) || c.over || c.failed && !c.job.ContinueOnErr {
		// Being stopped counts as an interruption only if there was something left to do.
		c.cut = c.cut || c.stopped.Load() && !c.expired(s.start) && (s.held || c.work.next(&s.ext) || c.work.drained)
		s.held = false
		return false
	}
	if !c.ramped && s.start-c.began >= c.job.RampTime {
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
		if c.flow != nil && !c.flow.admit(c) {
			c.awaitFlow(s)
			return true
		}
		if !c.work.next(&s.ext) {
			return false
		}
		if c.paced {
			l := &c.lim[s.ext.d]
			wait := l.wait(s.start)
			l.take(s.ext.n)
			if wait > 0 {
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

// measure ends the ramp: what happened so far is forgotten.
func (c *clone) measure(now time.Duration) {
	c.ramped = true
	c.began = now
	c.usage0 = processUsage()
	c.stats.Dir, c.stats.Depth = [dirs]DirStats{}, [7]uint64{}
	for d := range c.live.ios {
		c.live.ios[d].Store(0)
		c.live.bytes[d].Store(0)
	}
	for d := range c.lim {
		c.lim[d].reset(now)
	}
	c.floors = newFloors(c.job)
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
		switch {
		case c.ledger != nil:
			c.ledger.sign(r.Buf, e.off, c.job)
		case c.refills:
			c.content.fill(r.Buf)
		case c.scrambles:
			c.content.scramble(r.Buf, e.off)
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

// replay enters in the ledger what an earlier run of the same write job has
// written: the sequence depends on the options and the seed alone.
func (c *clone) replay() {
	if c.ledger == nil {
		return
	}
	var s slot
	for c.work.next(&s.ext) || c.work.drained {
		if c.work.drained {
			c.work.restart()
			continue
		}
		if s.ext.d != dirWrite {
			continue
		}
		for off := s.ext.off; off < s.ext.off+int64(s.ext.n); off += c.work.offsets.unit {
			c.ledger.issue(off)
			c.ledger.ack(off, true)
		}
	}
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

// account enters the result of a finished operation. Runner only.
func (c *clone) account(s *slot) {
	r := &s.req
	if s.d == dirSync {
		c.flushes.inFlight = false
	}
	if r.Err == nil && r.Residual > 0 {
		r.Err = fmt.Errorf("%d of %d bytes were not transferred: %w", r.Residual, s.ext.n, syscall.EIO)
	}
	if r.Err != nil {
		c.fail(s, r.Err)
		return
	}
	slat, clat := int64(s.issue-s.start), int64(s.end-s.issue)
	c.stats.Dir[s.d].add(s.ext.n, slat, clat, c.job)
	if limit := c.job.MaxLatency; limit > 0 && s.end-s.start > limit && !c.over {
		c.giveUp(fmt.Errorf("%v of %d bytes at offset %d took %v, longer than max_latency=%v", s.d, s.ext.n, s.ext.off, s.end-s.start, limit), syscall.ETIMEDOUT)
	}
	c.live.ios[s.d].Add(1)
	c.live.bytes[s.d].Add(int64(s.ext.n))
	if len(c.series) > 0 && c.ramped && s.d < datas {
		c.series.enter(s.end-c.sinceEpoch, s.d, s.ext.off, s.ext.n, slat, clat)
	}
	if c.ticker != nil && s.d < datas {
		c.ticker.add(s.end, s.d, s.ext.n, clat)
	}
	if c.search != nil {
		c.judge(s)
	}
	if len(c.floors) > 0 {
		c.checkFloors(s.end)
	}
	switch s.d {
	case dirSync:
		c.accountFlush()
	case dirWrite:
		if c.ledger != nil {
			c.flushes.acknowledged(c.ledger, s.ext, s.req.FUA)
		}
	case dirRead:
		if c.checksReads() {
			c.check(s)
		}
	}
}

func (c *clone) accountFlush() {
	if c.ledger == nil {
		return
	}
	if c.live.at() == phaseFlush {
		c.ledger.flushedAll()
		return
	}
	c.flushes.durable(c.ledger)
}

// checksReads reports whether a read's content is checked: in the verify phase
// and in jobs that only read.
func (c *clone) checksReads() bool {
	return c.job.Verify != VerifyNone && (c.live.at() == phaseVerify || !c.job.writes())
}

func (c *clone) check(s *slot) {
	unit := int(c.work.offsets.unit)
	p, off := s.req.Buf, s.ext.off
	for ; len(p) >= unit; p, off = p[unit:], off+int64(unit) {
		w, seed := window{unknown: true}, c.job.Seed
		if c.ledger != nil {
			var known bool
			if w, known = c.ledger.window(off, c.job.VerifyDurable); !known {
				continue
			}
			seed = c.ledger.seed
		}
		c.stats.Verified++
		if m := checkBlock(p[:unit], seed, off, w); m != nil {
			c.stats.mismatch(m)
			c.failed = c.failed || c.job.VerifyFatal
		}
	}
}

func (c *clone) fail(s *slot, err error) {
	c.stats.Errors++
	c.failed = true
	c.stats.first(fmt.Errorf("%v of %d bytes at offset %d: %w", s.d, s.ext.n, s.ext.off, err), errnoOf(err))
}
