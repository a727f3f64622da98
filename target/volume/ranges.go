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
// Rules. When its data has arrived, an exclusive command announces its range;
// commands that arrive from then on and overlap it stay dormant. It starts when
// the overlapping commands that were running already, and earlier exclusives, have
// ended; until then it is blocked, without occupying a worker. As a running write may
// be waiting for its initiator's data, that wait is bounded: after RetryAfter the
// command ends with TimeOut and nothing done, and its initiator tries again.
//
// Every other command therefore sees the exclusive one as done or not begun, as running
// reads are waited for as well. (Memory that a read has lent to the transport when its
// status goes out is protected by the device: a write to lent blocks waits for their
// return, see blockdev.Ranges.)
//
// A copy is one command that touches blocks of several volumes, piece by piece. It
// claims each piece, of one volume at a time, while it reads or writes it. Claims and
// exclusives that overlap take turns in the order of their announcement.
//
// A write that has been aborted, and a copy, keep others off the blocks that they may
// still be writing until they have ended, see outliveLocked.

// RetryAfter is how long a command waits for its blocks.
const RetryAfter = 2 * time.Second

// Exclusively waits until o, which is Running, has its range to itself, and then has a worker
// call its Step; with TimeOut if that took longer than RetryAfter. o holds the range until it
// leaves the task set or Yield is called.
func (s *Tasks) Exclusively(o *Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announceLocked(o)
}

// JoinWrites turns o, which is Running and has collected its data (HoldStaged), into a write of its
// range, and then has a worker call its Step; with TimeOut if exclusive commands held the range
// for longer than RetryAfter. It is for commands such as UNMAP, whose range is known only from
// their data and therefore covers every block: until the data is there, they must not keep
// exclusive commands waiting for the initiator.
func (s *Tasks) JoinWrites(o *Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.hold.joins = true
	s.announceLocked(o)
}

// announceLocked has o wait for its range. Preconditions: s.mu is held.
func (s *Tasks) announceLocked(o *Op) {
	o.hold.kind = holdExclusive
	o.hold.granted = false
	o.hold.order = s.nextOrderLocked()
	s.exclusives = append(s.exclusives, o)
	o.to(Blocked)
	if s.grantLocked(); o.state != Blocked {
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

// Yield gives up the exclusive hold of o between two parts of its work: before the next one it
// waits for its initiator's data, and no other command should have to wait for that.
func (s *Tasks) Yield(o *Op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropRangeLocked(o)
	o.hold.kind = HoldStaged
	if s.dormant.head != nil {
		s.wakeLocked()
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
