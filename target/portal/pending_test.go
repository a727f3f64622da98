package portal

import (
	"net/netip"
	"testing"

	"softiser/internal/peerorigin"
)

// addr is one of many addresses.
func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

// pendings is a set whose evictions a test can see.
type pendings struct {
	pendingSet
	t    *testing.T
	gone map[*Place]bool
}

func newPendings(t *testing.T, max, share int) *pendings {
	s := &pendings{t: t, gone: map[*Place]bool{}}
	s.limit(max, share)
	return s
}

// from takes a place for a connection from an address; nil: it is refused.
func (s *pendings) from(a netip.Addr) *Place {
	p, victim := s.add(a, func() {})
	if victim != nil {
		s.gone[victim] = true
	}
	if s.len() > s.max {
		s.t.Fatalf("%d places taken of %d", s.len(), s.max)
	}
	return p
}

// Half of the places go to whoever comes; beyond, an address has a share, and its own
// connections make room for more.
func TestPendingShares(t *testing.T) {
	s := newPendings(t, 16, 4)
	var first []*Place
	for range 8 {
		first = append(first, s.from(addr(1)))
	}
	if len(s.gone) != 0 {
		t.Fatalf("%d evicted while the set is half empty", len(s.gone))
	}
	first[0].Talks()
	if p := s.from(addr(1)); p == nil || !s.gone[first[1]] || len(s.gone) != 1 {
		t.Error("beyond its share an address does not lose its oldest silent connection")
	}
	// Another address is not touched by that, until it has its own share.
	other := []*Place{s.from(addr(2)), s.from(addr(2)), s.from(addr(2)), s.from(addr(2))}
	if len(s.gone) != 1 {
		t.Error("the share of another address has cost somebody his place")
	}
	for _, p := range other {
		p.Talks()
	}
	if p := s.from(addr(2)); p != nil {
		t.Error("an address with its share of connections that talk was let in")
	}
	other[0].Done()
	other[0].Done() // once is enough
	if p := s.from(addr(2)); p == nil {
		t.Error("a place that was given back is not free")
	}
	for i := range 4 {
		s.from(addr(100 + i))
	}
	if s.len() != 16 || len(s.gone) != 1 {
		t.Fatalf("%d places taken, %d evicted", s.len(), len(s.gone))
	}
	// Full: who has most gives way, whoever comes.
	if p := s.from(addr(200)); p == nil || !s.gone[first[2]] {
		t.Error("in a full set it is not the address with most that gives way")
	}
}

// When everybody comes from an address of his own, who has sent nothing gives way, oldest
// first.
func TestPendingOfManyAddresses(t *testing.T) {
	s := newPendings(t, 8, 2)
	honest := s.from(addr(0))
	honest.Talks()
	var silent []*Place
	for i := range 100 {
		silent = append(silent, s.from(addr(1+i)))
	}
	if s.gone[honest] {
		t.Error("the one that has sent a Login Request has given way to silent ones")
	}
	for i, p := range silent {
		if s.gone[p] != (i < 93) {
			t.Fatalf("connection %d of 100: evicted %v", i, s.gone[p])
		}
	}
	for _, p := range silent[93:] {
		p.Talks()
	}
	if p := s.from(addr(1000)); p == nil || !s.gone[honest] {
		t.Error("where all talk, the oldest does not give way")
	}
	if p := s.giveWay(); p == nil || p.from != peerorigin.Of(addr(1000)) {
		t.Error("the silent one does not give way")
	}
	if p := s.giveWay(); p != nil {
		t.Error("one that talks gives way where descriptors are short")
	}
}

// Whoever has most of a full set does not push out his own logins that go on.
func TestPendingOfOneWhoTalks(t *testing.T) {
	s := newPendings(t, 4, 8)
	for range 4 {
		s.from(addr(1)).Talks()
	}
	if p := s.from(addr(1)); p != nil || len(s.gone) != 0 {
		t.Error("a login that goes on has made room for another one of its address")
	}
	if p := s.from(addr(2)); p == nil || len(s.gone) != 1 {
		t.Error("another address does not get a place")
	}
}
