package volume

import "slices"

// Which of the holds that have been announced may go; ranges.go has the rules.

// claim is the hold of a copy on blocks of a volume.
type claim struct {
	set   *Tasks
	by    *Copy
	hold  hold
	ready chan struct{} // nil: granted at once
}

// grantLocked starts the announced exclusives whose range is free. One that joins the writes keeps
// nobody dormant any more; who they are sees the caller, or the end of the op that made way.
func (s *Tasks) grantLocked() {
	joined := false
	for i := 0; i < len(s.exclusives); i++ {
		o := s.exclusives[i]
		if o.hold.granted || s.rangeBusyLocked(o, s.exclusives[:i]) {
			continue
		}
		o.stopTimer()
		if o.hold.joins {
			s.exclusives = slices.Delete(s.exclusives, i, i+1)
			i--
			o.hold.kind, o.hold.joins, joined = HoldWrite, false, true
		} else {
			o.hold.granted = true
		}
		s.pool.enqueueLocked(o)
	}
	if joined && len(s.claims) > 0 {
		s.grantClaimsLocked()
	}
}

// keptOffLocked reports whether one of exclusives, or a copy that has been stopped and may
// still be writing, has blocks of o.
func (s *Tasks) keptOffLocked(o *Op, exclusives []*Op) bool {
	for _, x := range exclusives {
		if o.hold.overlaps(&x.hold) {
			return true
		}
	}
	for _, c := range s.claims {
		if c.hold.kind == HoldWrite && c.hold.granted && c.by.Stopped() && o.hold.overlaps(&c.hold) {
			return true
		}
	}
	return false
}

// rangeBusyLocked reports whether one of earlier, an earlier claim or a running
// command overlaps o.
func (s *Tasks) rangeBusyLocked(o *Op, earlier []*Op) bool {
	if o.hold.joins {
		return s.keptOffLocked(o, earlier)
	}
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
	o.hold.kind, o.hold.joins = HoldNone, false
	if len(s.exclusives) > 0 {
		s.grantLocked()
	}
}
