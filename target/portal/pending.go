package portal

import (
	"container/list"
	"net/netip"
	"sync"

	"softiser/internal/peerorigin"
)

// pendingSet holds the connections that are not yet in full feature phase. A flood may
// fill it, but not keep others out (ADR 102):
//
//   - Once the set is more than half full, each origin is limited to its share: a
//     connection beyond it evicts another one of the same origin, or is refused.
//   - When the set is full, a new connection evicts one of the origin that has most.
//
// The connection that is evicted is the oldest that has not sent a Login Request yet, as an
// honest initiator sends one at once.
type pendingSet struct {
	mu      sync.Mutex
	max     int                             // guarded by mu
	share   int                             // guarded by mu: of one origin
	closed  bool                            // guarded by mu: nobody gets a place any more
	n       int                             // guarded by mu
	next    uint64                          // guarded by mu: numbers connections by age
	origins map[netip.Prefix]*pendingOrigin // guarded by mu: those that have connections
}

// pendingOrigin are the connections of one origin, oldest first.
type pendingOrigin struct {
	silent  list.List // of *Place
	talking list.List // of *Place that have sent a Login Request
}

func (o *pendingOrigin) len() int { return o.silent.Len() + o.talking.Len() }

// Place is one place in the set. A nil Place takes none.
type Place struct {
	set   *pendingSet
	from  netip.Prefix
	age   uint64
	evict func() // closes the connection; called without locks held

	of *list.List    // guarded by set.mu; nil: the place has been given back
	at *list.Element // guarded by set.mu
}

// limit sets the number of places, and how many of them are one origin's share. Places that
// are taken stay taken.
func (s *pendingSet) limit(max, share int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.max, s.share = max, share
}

// add takes a place for a connection; p is nil if the connection is refused. If victim is not
// nil, its place has been taken away, and the caller evicts its connection.
func (s *pendingSet) add(from netip.Addr, evict func()) (p, victim *Place) {
	p = &Place{set: s, from: peerorigin.Of(from), evict: evict}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.origins == nil {
		s.origins = map[netip.Prefix]*pendingOrigin{}
	}
	if s.closed {
		return nil, nil
	}
	mine := s.origins[p.from]
	has := 0
	if mine != nil {
		has = mine.len()
	}
	full := s.n >= s.max
	if has > 0 && (s.n >= s.max/2 && has >= s.share || full && has >= s.mostLocked()) {
		e := mine.silent.Front()
		if e == nil {
			return nil, nil
		}
		victim = e.Value.(*Place)
	} else if full {
		victim = s.victimLocked()
	}
	if victim != nil {
		victim.dropLocked()
	}
	// The victim may have been the origin's only one.
	if mine = s.origins[p.from]; mine == nil {
		mine = &pendingOrigin{}
		s.origins[p.from] = mine
	}
	s.next++
	p.age = s.next
	p.of, p.at = &mine.silent, mine.silent.PushBack(p)
	s.n++
	return p, victim
}

// mostLocked is the largest number of connections of one origin. The caller holds s.mu.
func (s *pendingSet) mostLocked() (most int) {
	for _, o := range s.origins {
		most = max(most, o.len())
	}
	return most
}

// victimLocked finds who gives way: of the origins with most connections the oldest
// silent one, or the oldest if all of them talk. The caller holds s.mu.
func (s *pendingSet) victimLocked() (victim *Place) {
	most := s.mostLocked()
	silent := false
	for _, o := range s.origins {
		if o.len() < most {
			continue
		}
		e, quiet := o.silent.Front(), true
		if e == nil {
			e, quiet = o.talking.Front(), false
		}
		if e == nil {
			continue // no connection of this origin waits
		}
		p := e.Value.(*Place)
		if victim == nil || quiet && !silent || quiet == silent && p.age < victim.age {
			victim, silent = p, quiet
		}
	}
	return victim
}

// giveWay takes away the place of the connection that would be evicted next, if that has not
// sent a Login Request, and returns it for the caller to evict; otherwise nil.
func (s *pendingSet) giveWay() (victim *Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if victim = s.victimLocked(); victim == nil || victim.of != &s.origins[victim.from].silent {
		return nil
	}
	victim.dropLocked()
	return victim
}

// Talks says that the connection has sent a Login Request.
func (p *Place) Talks() {
	if p == nil {
		return
	}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	o := p.set.origins[p.from]
	if p.of == nil || p.of == &o.talking {
		return
	}
	o.silent.Remove(p.at)
	p.of, p.at = &o.talking, o.talking.PushBack(p)
}

// Done gives the place back: the login has ended, one way or the other.
func (p *Place) Done() {
	if p == nil {
		return
	}
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	p.dropLocked()
}

// dropLocked gives the place back, once. The caller holds set.mu.
func (p *Place) dropLocked() {
	if p.of == nil {
		return
	}
	p.of.Remove(p.at)
	p.of = nil
	p.set.n--
	if p.set.origins[p.from].len() == 0 {
		delete(p.set.origins, p.from)
	}
}

// len is the number of places taken.
func (s *pendingSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// evictAll closes every pending connection, and turns away those that still come.
func (s *pendingSet) evictAll() {
	s.mu.Lock()
	s.closed = true
	var all []*Place
	for _, o := range s.origins {
		for _, l := range []*list.List{&o.silent, &o.talking} {
			for e := l.Front(); e != nil; e = e.Next() {
				all = append(all, e.Value.(*Place))
			}
		}
	}
	for _, p := range all {
		p.dropLocked()
	}
	s.mu.Unlock()
	for _, p := range all {
		p.evict()
	}
}
