package bench

import (
	"fmt"
	"time"

	"softiser/initiator/blockio"
)

// start sets the clone going; done is closed when it has ended.
func (c *clone) start() {
	if d := c.job.StartDelay; d > 0 {
		c.mu.Lock()
		late := c.stopped.Load() // stop was called before there was a timer to end
		if !late {
			c.delay = time.AfterFunc(d, c.begin)
		}
		c.mu.Unlock()
		if !late {
			return
		}
	}
	c.begin()
}

// begin starts the clocks of a clone and submits the first command of each slot.
func (c *clone) begin() {
	c.share.join()
	now := c.now()
	c.set(now, c.job.RampTime, c.job.Runtime)
	c.startLogs(now)
	c.usage0 = processUsage()
	c.pace.reset(now)
	if c.job.VerifyOnly {
		if c.job.replayed() {
			c.replay()
		}
		c.live.enter(phaseVerify)
		c.verifyBegan = now
	}
	c.started.Store(true)
	c.mu.Lock()
	c.pushAllLocked()
	c.runAndUnlock()
}

// stop lets requests in flight finish and issues no more.
func (c *clone) stop() {
	c.stopped.Store(true)
	c.mu.Lock()
	delay := c.delay
	c.delay = nil
	c.mu.Unlock()
	if delay != nil && delay.Stop() {
		c.begin() // every slot finds that it is over
	}
	c.wake()
}

// dismiss ends the clone before its time because another one has ended.
func (c *clone) dismiss() {
	c.dismissed.Store(true)
	c.stop()
}

// slotDone is every request's Done.
func slotDone(r *blockio.Request) {
	s := r.User.(*slot)
	c := s.c
	s.end = c.now()
	c.mu.Lock()
	c.ready.push(s)
	c.runAndUnlock()
}

// step accounts a slot's finished operation, if it has one, and starts the
// next.
func (c *clone) step(s *slot) {
	if s.ask != nil {
		s.ask <- c.copyResults()
		return
	}
	if s.inFlight {
		s.inFlight = false
		c.flight--
		c.account(s)
		s.start = s.end
		if t := c.job.ThinkTime; t > 0 && c.live.at() == phaseRun {
			c.park(s, s.end+t)
			return
		}
	} else {
		s.start = c.now()
	}
	more := c.submitNext(s)
	if len(c.idle) > 0 {
		c.callIdle()
	}
	if !more {
		c.rest()
	}
}

// rest takes a slot out of circulation; the last one moves the clone on.
func (c *clone) rest() {
	if c.resting++; c.resting < len(c.slots) {
		return
	}
	c.resting = 0
	if c.advance() {
		c.mu.Lock()
		c.pushAllLocked()
		c.mu.Unlock()
		return // this goroutine is the runner and finds them
	}
	c.finish()
}

// advance chooses what comes when all slots rest; false: the end.
func (c *clone) advance() bool {
	now := c.now()
	halted := c.halted(c.job.ContinueOnErr)
	switch c.live.at() {
	case phaseRun:
		if c.work.drained && !halted && !c.expired(now) {
			c.work.restart()
			return true
		}
		c.leaves(c.work.drained && !c.expired(now))
		c.closeRun(now)
		if c.job.writes() && c.job.EndFsync {
			if !halted {
				c.live.enter(phaseFlush)
				return true
			}
			c.leaves(true)
		}
		return c.toVerify(halted)
	case phaseFlush:
		return c.toVerify(halted)
	case phaseVerify:
		c.stats.Dir[dirRead].Runtime += now - c.verifyBegan
		c.stats.Elapsed += now - c.verifyBegan
	}
	return false
}

// closeRun ends the measured time of the main phase.
func (c *clone) closeRun(now time.Duration) {
	c.share.leave()
	if c.abandoned.Load() {
		now = c.deadline // nothing has been done since
	}
	c.stats.Elapsed = now - c.began
	for d := range c.stats.Dir {
		if c.stats.Dir[d].IOs > 0 {
			c.stats.Dir[d].Runtime = now - c.began
		}
	}
}

func (c *clone) toVerify(halted bool) bool {
	if c.ledger == nil || !c.job.writes() || !c.job.DoVerify {
		return false
	}
	if halted {
		c.leaves(true)
		return false
	}
	c.live.enter(phaseVerify)
	c.verifyBegan = c.now()
	return true
}

func (c *clone) finish() {
	if err := c.series.end(c.now() - c.logged); err != nil {
		c.stats.first(fmt.Errorf("log: %w", err), errnoOf(err))
	}
	if c.ticker != nil {
		c.ticker.flush()
	}
	if c.search != nil {
		c.stats.FoundDepth = c.search.depth
	}
	c.live.enter(phaseDone)
	c.stats.Usage = processUsage().sub(c.usage0)
	close(c.done)
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
