package initiator

import (
	"errors"
	"fmt"
	"time"
)

// maxTick is how often keep looks at the clock; a session that nobody uses
// costs one wake-up in this time.
const maxTick = time.Second

// watch looks at everything of a session that has a time-out. The session's mutex guards it.
type watch struct {
	s    *Session
	mute mute // whether the target says anything
}

// keep sees to pings, time-outs, and commands to be sent again after a while. It ends
// with s.ctx.
func (w *watch) keep() {
	s := w.s
	defer s.wg.Done()
	tick := s.cfg.tickLength()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		case <-s.clock.wake:
		}
		timer.Reset(w.tick(tick))
	}
}

// tickLength is short enough for the shortest time-out to be seen in time.
func (c *Config) tickLength() time.Duration {
	d := maxTick
	for _, t := range []time.Duration{c.NopInterval, c.NopTimeout, c.CommandTimeout, c.AbortTimeout, c.ResetTimeout} {
		if t > 0 {
			d = min(d, t/4)
		}
	}
	return max(d, time.Millisecond)
}

// tick looks at everything that waits and returns when to look again.
func (w *watch) tick(next time.Duration) time.Duration {
	s := w.s
	s.mu.Lock()
	s.clock.now = s.clock.elapsed()
	c := s.conn
	if c != nil && c.state != connDead && !s.resting {
		w.connection(c)
		if s.wait.delayed > 0 {
			next = min(next, w.delayed())
		}
		w.overdue(c)
		s.pump()
		if s.clock.busy = s.tasks.used > 0; s.clock.busy && s.cfg.SilenceProbe > 0 {
			next = min(next, s.cfg.SilencePing/2)
		}
	}
	s.unlock()
	if c != nil {
		c.kick()
	}
	return next
}

// connection pings when nothing was heard for NopInterval, and ends a connection
// that leaves a ping unanswered for NopTimeout. Anything that arrives proves
// that the target is there.
func (w *watch) connection(c *conn) {
	s := w.s
	// Data goes past this code, so calls that received something count as signs of life, too.
	heard := c.heard + c.dm.Stats().ReceiveCalls
	w.silence(c, heard)
	if heard != c.seen {
		c.seen, c.quiet = heard, s.clock.now
		return
	}
	if s.cfg.NopInterval < 0 {
		return
	}
	idle := time.Duration(s.clock.now - c.quiet)
	switch {
	case (!c.pinged || c.early) && idle >= s.cfg.NopInterval:
		if !c.pinged {
			c.ping()
		}
		c.early = false
		c.quiet = s.clock.now // the time-out of the ping begins now
	case c.pinged && !c.early && s.cfg.NopTimeout > 0 && idle >= s.cfg.NopTimeout:
		c.doom(fmt.Errorf("the target did not answer a ping within %v", s.cfg.NopTimeout))
	}
}

// delayed moves commands that are due to the list to be sent again, and
// returns the time until the next one is.
func (w *watch) delayed() time.Duration {
	s := w.s
	next := time.Hour
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		if t.state != taskDelayed {
			continue
		}
		if wait := time.Duration(t.due - s.clock.now); wait > 0 {
			next = min(next, wait)
			continue
		}
		s.wait.delayed--
		s.wait.pushResend(t)
	}
	return next
}

// overdue aborts commands that have taken too long and escalates task
// management that was not answered.
func (w *watch) overdue(c *conn) {
	s := w.s
	for i := range s.tasks.slots {
		t := &s.tasks.slots[i]
		switch {
		case t.state == taskFree:
		case t.kind == kindTMF && s.clock.now >= t.deadline:
			ref, f, answer := s.tasks.find(t.refITT), t.function, t.answer
			// The slot stays taken: its answer may still come. It no longer counts
			// among those outstanding.
			t.deadline = 1<<63 - 1
			s.tm.over(t)
			why := errors.New("no answer in time")
			if answer != nil {
				c.doom(fmt.Errorf("%v: %w", f, why))
			}
			s.tm.escalate(c, f, ref, why)
			s.tm.nextAbort(c)
		case t.kind == kindCommand && t.state == taskSent && s.cfg.CommandTimeout > 0 && time.Duration(s.clock.now-t.started) >= s.cfg.CommandTimeout+s.cfg.tickLength():
			s.tm.abort(c, t, ErrTimeout)
		}
	}
}
