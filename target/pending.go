package target

import (
	"container/list"
	"sync"
)

// pendingSet holds the connections that are not yet in full feature phase,
// oldest first. When it is full the oldest one has to go: a flood of silent or
// slow connections can delay a login, but not keep it out, and takes no more
// memory than the set allows.
type pendingSet struct {
	mu  sync.Mutex
	max int       // guarded by mu
	all list.List // guarded by mu; of *pendingConn
}

// pendingConn is one place in the set.
type pendingConn struct {
	set   *pendingSet
	evict func() // closes the connection; called without locks held
	elem  *list.Element
}

// add takes a place, evicting the oldest connection when there is none left.
func (s *pendingSet) add(evict func()) (p *pendingConn, evicted bool) {
	p = &pendingConn{set: s, evict: evict}
	var old *pendingConn
	s.mu.Lock()
	if s.all.Len() >= s.max {
		e := s.all.Front()
		old = s.all.Remove(e).(*pendingConn)
		old.elem = nil
	}
	p.elem = s.all.PushBack(p)
	s.mu.Unlock()
	if old != nil {
		old.evict()
	}
	return p, old != nil
}

// done gives the place back: the login has ended, one way or the other.
func (p *pendingConn) done() {
	p.set.mu.Lock()
	defer p.set.mu.Unlock()
	if p.elem != nil {
		p.set.all.Remove(p.elem)
		p.elem = nil
	}
}

// limit changes how many places there are. Whoever has one keeps it.
func (s *pendingSet) limit(max int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.max = max
}

// len is the number of places taken.
func (s *pendingSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Len()
}

// evictAll closes every pending connection.
func (s *pendingSet) evictAll() {
	s.mu.Lock()
	var all []*pendingConn
	for e := s.all.Front(); e != nil; e = e.Next() {
		p := e.Value.(*pendingConn)
		p.elem = nil
		all = append(all, p)
	}
	s.all.Init()
	s.mu.Unlock()
	for _, p := range all {
		p.evict()
	}
}
