package bench

import (
	"math"
	"sync"
	"time"
)

// turns give the slots of a clone that have finished, or whose time has come, to one
// goroutine at a time, the runner. Whoever pushes one becomes the runner if nobody is: it
// steps through the slots until none is left; the others only leave theirs on the list.
type turns struct {
	c *clone

	mu      sync.Mutex // guards what follows
	ready   slotList   // finished
	running bool
	parked  []*slot // waiting for their time
	timer   *time.Timer
	resumed bool // the flow has called while no slot was parked for it
}

// never is when a slot is due that something else will wake.
const never = time.Duration(math.MaxInt64)

// pushAllLocked hands every slot to the runner.
func (t *turns) pushAllLocked() {
	now := t.c.now()
	for i := range t.c.slots {
		t.c.slots[i].end = now
		t.ready.push(&t.c.slots[i])
	}
}

// runAndUnlock makes the caller the runner unless there is one. It is called with t.mu held,
// which is free while a slot takes its step, and afterwards.
func (t *turns) runAndUnlock() {
	if t.running {
		t.mu.Unlock()
		return
	}
	t.running = true
	for s := t.ready.pop(); s != nil; s = t.ready.pop() {
		t.mu.Unlock()
		t.c.step(s)
		t.mu.Lock()
	}
	t.running = false
	t.mu.Unlock()
}

// park keeps a slot until due.
func (t *turns) park(s *slot, due time.Duration) {
	if t.c.deadline > 0 {
		due = min(due, t.c.deadline)
	}
	s.due = due
	t.mu.Lock()
	t.parked = append(t.parked, s)
	t.armLocked()
	t.mu.Unlock()
}

// armLocked sets the timer for the earliest parked slot.
func (t *turns) armLocked() {
	first := never
	for _, s := range t.parked {
		first = min(first, s.due)
	}
	if first == never {
		return
	}
	d := max(first-t.c.now(), 0)
	if t.timer == nil {
		t.timer = time.AfterFunc(d, t.wake)
	} else {
		t.timer.Reset(d)
	}
}

// wake hands the slots that are due to the runner; all of them when stopped.
func (t *turns) wake() {
	now := t.c.now()
	t.mu.Lock()
	keep := t.parked[:0]
	for _, s := range t.parked {
		if s.due > now && !t.c.stopped.Load() {
			keep = append(keep, s)
			continue
		}
		s.end, s.gated = now, false
		t.ready.push(s)
	}
	t.parked = keep
	t.armLocked()
	t.runAndUnlock()
}

// resume hands the slots that wait for the clone's flow to the runner, or lets the
// next one that would wait look again.
func (t *turns) resume() {
	now := t.c.now()
	t.mu.Lock()
	keep, found := t.parked[:0], false
	for _, s := range t.parked {
		if !s.gated {
			keep = append(keep, s)
			continue
		}
		found, s.gated, s.end = true, false, now
		t.ready.push(s)
	}
	t.parked = keep
	t.resumed = t.resumed || !found
	t.runAndUnlock()
}

// gate parks a slot until resume is called, or takes a call that has come already.
func (t *turns) gate(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.resumed {
		t.resumed = false
		s.end = s.start
		t.ready.push(s)
		return
	}
	s.gated, s.due = true, never
	if t.c.deadline > 0 {
		s.due = t.c.deadline
	}
	t.parked = append(t.parked, s)
	t.armLocked()
}
