package nvmf

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/target/portal"
)

// shares divides the memory that hosts can make the target hold, for data in capsules,
// parameters and answers, and the controllers that there may be, between those who are
// there: once half of what there is for them is taken, one origin has a share of it (ADR
// 102). An origin is what a connection comes from, since the data of Connect is held too.
type shares struct {
	pool *blockdev.Pool

	mu          sync.Mutex
	by          map[netip.Prefix]*share // guarded by mu: those with connections
	controllers int                     // guarded by mu: of all
}

// share is what one origin holds; it implements nvme.Memory.
type share struct {
	of     *shares
	origin netip.Prefix
	conns  int // guarded by of.mu
	held   atomic.Int64

	controllers int // guarded by of.mu
}

// shareOf is the part of all that there is which an origin has when half is taken.
const shareOf = 8

// join returns the share of an address, until leave.
func (s *shares) join(a netip.Addr) *share {
	o := portal.Origin(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[netip.Prefix]*share{}
	}
	h := s.by[o]
	if h == nil {
		h = &share{of: s, origin: o}
		s.by[o] = h
	}
	h.conns++
	return h
}

func (h *share) leave() {
	s := h.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.conns--; h.conns == 0 {
		delete(s.by, h.origin)
	}
}

var errShare = errors.New("nvmf: the host's address has its share of the controllers")

// addController counts a controller, of limit that there may be.
func (h *share) addController(limit int) error {
	s := h.of
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.controllers >= limit:
		return errBusy
	case s.controllers >= limit/2 && h.controllers >= limit/shareOf:
		return errShare
	}
	s.controllers++
	h.controllers++
	return nil
}

// dropController ends the count of one.
func (h *share) dropController() {
	s := h.of
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controllers--
	h.controllers--
}

// Reserve implements nvme.Memory.
func (h *share) Reserve(n int) bool {
	p := h.of.pool
	reservable := p.Cap() / 2
	if h.held.Add(int64(n)) > reservable/shareOf && p.Reserved() > reservable/2 || !p.Reserve(n) {
		h.held.Add(int64(-n))
		return false
	}
	return true
}

// Unreserve implements nvme.Memory.
func (h *share) Unreserve(n int) {
	h.held.Add(int64(-n))
	h.of.pool.Unreserve(n)
}
