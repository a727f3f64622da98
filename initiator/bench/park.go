package bench

import (
	"math"
	"time"
)

// never is when a slot is due that something else will wake.
const never = time.Duration(math.MaxInt64)

// park keeps a slot until due.
func (c *clone) park(s *slot, due time.Duration) {
	if c.deadline > 0 {
		due = min(due, c.deadline)
	}
	s.due = due
	c.mu.Lock()
	c.parked = append(c.parked, s)
	c.armLocked()
	c.mu.Unlock()
}

// armLocked sets the timer for the earliest parked slot.
func (c *clone) armLocked() {
	first := never
	for _, s := range c.parked {
		first = min(first, s.due)
	}
	if first == never {
		return
	}
	d := max(first-c.now(), 0)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.wake)
	} else {
		c.timer.Reset(d)
	}
}

// wake hands the slots that are due to the runner; all of them when stopped.
func (c *clone) wake() {
	now := c.now()
	c.mu.Lock()
	keep := c.parked[:0]
	for _, s := range c.parked {
		if s.due > now && !c.stopped.Load() {
			keep = append(keep, s)
			continue
		}
		s.end, s.gated = now, false
		c.ready.push(s)
	}
	c.parked = keep
	c.armLocked()
	c.run()
}
