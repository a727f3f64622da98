package volume

import (
	"slices"
	"time"
)

// Commands that must be all-or-nothing (a compare-and-write, an atomic write) hold
// their blocks exclusively while they read and write the volume. The task set itself is
// the range table: it knows the blocks of every command in execution, so reads and
// writes pay nothing for this while no exclusive command is there.
//
// Rules. When its data have arrived, an exclusive command announces its range;
// commands that arrive from then on and overlap it stay dormant. It starts when
// the overlapping commands and the earlier exclusives that were already running
// have ended; until then it is blocked, without occupying a worker. A write
// waits for its initiator's data, so this is bounded: after RetryAfter the
// command goes on with TimeOut and nothing done, and its initiator tries again.
//
// Whoever looks at the blocks therefore sees the command done or not begun:
// reads that run are waited for as well. (What a read has lent to the transport
// when its status goes out is the device's affair: a write to blocks that are
// lent waits for their return.)
//
// A copy is one command that touches blocks of several volumes, piece by piece. It
// claims each piece, of one volume at a time, while it reads or writes it. Claims and
// exclusives that overlap take turns in the order of their announcement.
//
// A write that has been aborted, and a copy, keep others off the blocks that they may
// still be writing until they have ended, see outliveLocked.

// RetryAfter is how long a command waits for its blocks.
const RetryAfter = 2 * time.Second

// hold is the block range of a command in the task set.
type hold struct {
	lo, hi  uint64 // [lo, hi)
	kind    Hold
	granted bool   // an exclusive or a claim that runs
	order   uint64 // of the announcement of an exclusive or a claim
}

// Hold is how a command touches its blocks.
type Hold uint8

// Holds.
const (
	HoldNone      Hold = iota
	HoldRead           // runs beside everything but an exclusive
	HoldWrite          // likewise
	HoldStaged         // collects data, then becomes exclusive
	holdExclusive      // announced
)

func (h *hold) overlaps(o *hold) bool {
	return h.kind != HoldNone && o.kind != HoldNone && h.lo < o.hi && o.lo < h.hi
}

// Exclusively makes the range of o, which runs, its alone, then has a worker call its
// Step, with TimeOut when that took too long. It holds the range until it leaves the
// task set or Yield is called.
func (s *Tasks) Exclusively(o *Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.hold.kind = holdExclusive
	o.hold.granted = false
	o.hold.order = s.nextOrderLocked()
	s.exclusives = append(s.exclusives, o)
	o.to(Blocked)
	if s.grantLocked(); o.hold.granted {
		return
	}
	order := o.hold.order
	o.timer = time.AfterFunc(RetryAfter, func() { s.expire(order) })
}

// All is Exclusively for every block of the volume.
func (s *Tasks) All(o *Op) {
	s.mu.Lock()
	o.hold = hold{lo: 0, hi: ^uint64(0)}
	s.mu.Unlock()
	s.Exclusively(o)
}

// Yield ends the exclusive hold of o between two parts of its work: the next one waits
// for the initiator, which nobody else should have to do.
func (s *Tasks) Yield(o *Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropRangeLocked(o)
	o.hold.kind = HoldStaged
	if s.dormant.head != nil {
		s.wakeLocked()
	}
}

// grantLocked starts the announced exclusives whose range is free.
func (s *Tasks) grantLocked() {
	for i, o := range s.exclusives {
		if !o.hold.granted && !s.rangeBusyLocked(o, s.exclusives[:i]) {
			o.hold.granted = true
			o.stopTimer()
			s.enqueueLocked(o)
		}
	}
}

// expire ends the exclusive that was announced under a number, if it still waits. The
// timer does not know the op: by the time that it fires, the slot may hold a command
// for another volume, whose lock this is not.
func (s *Tasks) expire(order uint64) {
	s.mu.Lock()
	i := slices.IndexFunc(s.exclusives, func(o *Op) bool { return o.hold.order == order && !o.hold.granted })
	if i < 0 {
		s.mu.Unlock()
		return
	}
	o := s.exclusives[i]
	s.dropRangeLocked(o) // or it could be granted before it has ended
	o.to(Running)
	req := o.req
	port := req.Via()
	s.mu.Unlock()
	req.Step(TimeOut)
	port.Push()
}

// nextOrderLocked numbers announcements.
func (s *Tasks) nextOrderLocked() uint64 {
	s.announced++
	return s.announced
}

// rangeBusyLocked reports whether one of earlier, an earlier claim or a running
// command overlaps o.
func (s *Tasks) rangeBusyLocked(o *Op, earlier []*Op) bool {
	for _, x := range earlier {
		if o.hold.overlaps(&x.hold) {
			return true
		}
	}
	for _, c := range s.claims {
		if c.hold.order < o.hold.order && o.hold.overlaps(&c.hold) {
			return true
		}
	}
	for x := s.set.First(); x != nil; x = x.node.Next() {
		running := x.hold.kind == HoldRead || x.hold.kind == HoldWrite
		if x != o && x.state != Dormant && running && o.hold.overlaps(&x.hold) {
			return true
		}
	}
	return false
}

// claim is the hold of a copy on blocks of a volume.
type claim struct {
	set   *Tasks
	by    *Copy
	hold  hold
	ready chan struct{} // nil: granted at once
}

// claim waits until no exclusive command has the blocks [lo, hi), which is bounded as
// an exclusive command's own wait is, and keeps new ones off them until drop. The caller
// holds no other claim and no worker.
func (s *Tasks) claim(by *Copy, kind Hold, lo, hi uint64) *claim {
	c := &claim{set: s, by: by, hold: hold{lo: lo, hi: hi, kind: kind}}
	s.mu.Lock()
	c.hold.order = s.nextOrderLocked()
	s.claims = append(s.claims, c)
	if !s.claimBusyLocked(c) {
		c.hold.granted = true
	} else {
		c.ready = make(chan struct{})
	}
	s.mu.Unlock()
	if c.ready != nil {
		<-c.ready
	}
	return c
}

// claimBusyLocked reports whether an exclusive that was announced earlier
// overlaps c.
func (s *Tasks) claimBusyLocked(c *claim) bool {
	for _, o := range s.exclusives {
		if o.hold.order < c.hold.order && c.hold.overlaps(&o.hold) {
			return true
		}
	}
	return false
}

// drop ends the claim.
func (c *claim) drop() {
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.claims, c); i >= 0 {
		s.claims = slices.Delete(s.claims, i, i+1)
	}
	if len(s.exclusives) > 0 {
		s.grantLocked()
	}
	if s.dormant.head != nil {
		s.wakeLocked()
	}
}

// outliveLocked keeps others off the blocks of a write that has been aborted while it is
// with the device: its initiator may be gone, and nobody who waits for its end be left.
// What arrives from now on must not be overtaken by it, so it counts as an exclusive
// command that runs until it ends. Preconditions: s.mu is held.
func (s *Tasks) outliveLocked(o *Op) {
	o.hold.kind, o.hold.granted, o.hold.order = holdExclusive, true, 0
	s.exclusives = slices.Insert(s.exclusives, 0, o)
}

// grantClaimsLocked lets the claims go that no exclusive is in the way of.
func (s *Tasks) grantClaimsLocked() {
	for _, c := range s.claims {
		if !c.hold.granted && !s.claimBusyLocked(c) {
			c.hold.granted = true
			close(c.ready)
		}
	}
}

// dropRangeLocked ends the hold of o on its blocks.
func (s *Tasks) dropRangeLocked(o *Op) {
	if o.hold.kind == holdExclusive {
		for i, x := range s.exclusives {
			if x == o {
				s.exclusives = append(s.exclusives[:i], s.exclusives[i+1:]...)
				break
			}
		}
		o.stopTimer()
		if len(s.claims) > 0 {
			s.grantClaimsLocked()
		}
	}
	o.hold.kind = HoldNone
	if len(s.exclusives) > 0 {
		s.grantLocked()
	}
}

func (o *Op) stopTimer() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}
