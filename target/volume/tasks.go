package volume

import (
	"sync"

	"softiser/internal/list"
)

// Tasks is the task set of a volume (SAM-5 §8): every command of every front end, from
// Admit to Leave. Ordering:
//
//	Simple       waits for older Ordered and HeadOfQueue commands
//	Ordered      waits for all older commands
//	HeadOfQueue  starts at once
//
// A command that may not start yet is dormant. The usual case (nothing but Simple
// commands, no block range held exclusively) costs a few compares.
//
// One lock guards the set, the ranges that its commands hold (ranges.go), the rate limit
// (limiter.go) and the workers with their queue (workers.go), because a command goes from
// one of them to the next.
type Tasks struct {
	tracing
	fault func(error) // called with internal errors (Config.Fault); may be nil

	mu         sync.Mutex    // guards everything below, and the fields of each op that Op says
	set        list.List[Op] // the task set, oldest first
	nEnabled   int           // ops that have started
	nOrdered   int           // of these: Ordered and HeadOfQueue
	dormant    opQueue
	exclusives []*Op // announced, in order
	claims     []*claim
	copying    map[*Copy][]*Wait // copies that touch the volume, and the waits for the end of each
	announced  uint64            // exclusives and claims so far
	limit      limiter
	pool       pool    // workers, and ops that wait for one
	frozen     *freeze // not nil: no command may start
	pause      pause   // of rewrites
}

// Admit puts o into the task set and reports whether it may run now, on the caller's
// goroutine; if not, a worker calls its Step when it may.
func (s *Tasks) Admit(o *Op) bool {
	if t := s.trace.Load(); t != nil {
		t.begin(o)
	}
	s.mu.Lock()
	o.set = s
	s.set.Push(&o.node, o)
	if s.dormant.head == nil && s.nOrdered == 0 && len(s.exclusives) == 0 && len(s.claims) == 0 && o.Order == Simple && s.frozen == nil {
		o.to(Running)
		s.nEnabled++
		s.mu.Unlock()
		return true
	}
	now := s.mayStartLocked(o, s.orderedDormantLocked())
	if now {
		s.startLocked(o)
	} else {
		s.sleepLocked(o)
	}
	s.mu.Unlock()
	return now
}

// sleepLocked makes o dormant.
func (s *Tasks) sleepLocked(o *Op) {
	o.to(Dormant)
	s.dormant.push(o)
}

// mayStartLocked reports whether o may start; olderOrdered says that an older
// Ordered command is still dormant.
func (s *Tasks) mayStartLocked(o *Op, olderOrdered bool) bool {
	if s.frozen != nil {
		return false
	}
	switch o.Order {
	case HeadOfQueue:
	case Ordered:
		if s.nEnabled > 0 || s.dormant.head != nil && s.dormant.head != o {
			return false
		}
	default:
		if s.nOrdered > 0 || olderOrdered {
			return false
		}
	}
	return !s.keptOffLocked(o, s.exclusives)
}

func (s *Tasks) orderedDormantLocked() bool {
	for q := s.dormant.head; q != nil; q = q.qnext {
		if q.Order == Ordered {
			return true
		}
	}
	return false
}

func (s *Tasks) startLocked(o *Op) {
	o.to(Running)
	s.nEnabled++
	if o.Order != Simple {
		s.nOrdered++
	}
}

// wakeLocked starts the dormant commands that may start now, on workers.
func (s *Tasks) wakeLocked() {
	var prev *Op
	ordered := false
	for o := s.dormant.head; o != nil; {
		next := o.qnext
		if !s.mayStartLocked(o, ordered) {
			ordered = ordered || o.Order == Ordered
			prev, o = o, next
			continue
		}
		s.dormant.removeBehind(prev, o)
		s.startLocked(o)
		s.pool.enqueueLocked(o)
		o = next
	}
}

// Leave takes a command that has started out of the task set, and starts what waited
// for it. It returns whether the command has been aborted, which is settled by that, and
// whoever waits for its end: they are to be told (Waits.Done) when its status is on the
// way.
func (s *Tasks) Leave(o *Op) (AbortReason, Waits) {
	s.mu.Lock()
	why := AbortReason(o.aborted.Load())
	s.set.Remove(&o.node)
	s.nEnabled--
	s.tellFreezeLocked()
	if o.Order != Simple {
		s.nOrdered--
	}
	o.to(Ended)
	if o.hold.kind != HoldNone {
		s.dropRangeLocked(o)
	}
	if s.dormant.head != nil {
		s.wakeLocked()
	}
	waits := o.waits
	o.waits, o.copying = nil, nil
	s.mu.Unlock()
	return why, waits
}

// tellFreezeLocked wakes up whoever waits for the volume to come to rest.
func (s *Tasks) tellFreezeLocked() {
	if s.frozen == nil {
		return
	}
	select {
	case s.frozen.ended <- struct{}{}:
	default:
	}
}

// tellPauseLocked wakes up whoever waits for a rewrite to rest.
func (s *Tasks) tellPauseLocked() {
	s.tellFreezeLocked()
	if s.pause.held == nil {
		return
	}
	select {
	case s.pause.changed <- struct{}{}:
	default:
	}
}
