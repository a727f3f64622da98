package bench

import (
	"fmt"
	"math"
	"syscall"
	"time"
)

// What the end of an operation leads to. Runner only.

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
		if s.d == dirSync && c.ledger != nil {
			c.flushes.failed(c.ledger)
		}
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
		c.series.enter(s.end-c.logged, s.d, s.ext.off, s.ext.n, slat, clat)
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
			if c.job.replayed() && c.job.TimeBased {
				w.hi = math.MaxUint32 // nobody knows how often it was written again
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
	if c.abandoned.Load() {
		err = fmt.Errorf("%w (%w)", errAway, err)
	}
	c.stats.first(fmt.Errorf("%v of %d bytes at offset %d: %w", s.d, s.ext.n, s.ext.off, err), errnoOf(err))
}

// measure ends the ramp: what happened so far is forgotten.
func (c *clone) measure(now time.Duration) {
	if !c.ramped {
		c.startLogs(now)
	}
	c.restart(now)
	c.usage0 = processUsage()
	c.stats.Dir, c.stats.Depth = [dirs]DirStats{}, [7]uint64{}
	for d := range c.live.ios {
		c.live.ios[d].Store(0)
		c.live.bytes[d].Store(0)
	}
	c.live.begun.Add(1)
	c.pace.reset(now)
	for i := range c.slots {
		if s := &c.slots[i]; s.held { // parked until its old time, and issued in the new account
			c.pace.take(s.ext, now)
		}
	}
	c.floors = newFloors(c.job)
}

// judge follows the search's verdict on a finished operation. Runner only.
func (c *clone) judge(s *slot) {
	if !c.ramped || c.live.at() != phaseRun {
		return
	}
	switch c.search.ended(s.end, s.end-s.start) {
	case measure:
		c.measure(s.end)
	case finished:
		c.over = true
	case tooSlow:
		c.giveUp(fmt.Errorf("%v of %d bytes at offset %d took %v, longer than latency_target=%v, with nothing else in flight",
			s.d, s.ext.n, s.ext.off, s.end-s.start, c.search.want.Target), syscall.ETIMEDOUT)
	}
}

// checkFloors ends the clone when it is too slow. Runner only.
func (c *clone) checkFloors(now time.Duration) {
	if !c.ramped || c.live.at() != phaseRun || now-c.began < floorSettle {
		return
	}
	for i := range c.floors {
		f := &c.floors[i]
		if err := f.missed(now, c.job.Floor.Cycle, &c.stats.Dir[f.d]); err != nil && !c.over {
			c.giveUp(err, syscall.EIO)
		}
	}
}

// giveUp ends the clone early with an error, whatever continue_on_error says.
func (c *clone) giveUp(err error, code syscall.Errno) {
	c.over = true
	c.stats.first(err, int(code))
}
