package rdma

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"softiser/internal/peerorigin"
)

// startups are the connections of a listener whose request has not come yet, oldest first. When
// there is no room for another one, the oldest of a peer that has most of them gives way, so that
// whoever connects and says nothing keeps nobody else out; the portals of package target do it alike
// (ADR 102).
type startups struct {
	mu  sync.Mutex
	all []*startup // guarded by mu
}

type startup struct {
	nc    net.Conn
	from  netip.Prefix
	since time.Time
}

// sayBy is how long a connection is not taken for a silent one: a round trip, and a goroutine's turn.
const sayBy = 100 * time.Millisecond

// originOf is what connections are counted by.
func originOf(nc net.Conn) netip.Prefix {
	t, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return peerorigin.Of(t.AddrPort().Addr())
}

// add enters a connection that has just been accepted.
func (s *startups) add(nc net.Conn) *startup {
	c := &startup{nc: nc, from: originOf(nc), since: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, c)
	return c
}

// done removes c, whose request has come, or will not; false: c has given way, and is closed.
func (s *startups) done(c *startup) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeLocked(c)
}

func (s *startups) removeLocked(c *startup) bool {
	i := slices.Index(s.all, c)
	if i < 0 {
		return false
	}
	s.all = slices.Delete(s.all, i, i+1)
	return true
}

// giveWay closes the connection that is to make room; if it came a moment ago, not before due has
// passed: then the caller asks again. ok is false when there is none.
func (s *startups) giveWay() (due time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.victimLocked()
	if c == nil {
		return 0, false
	}
	if due = time.Until(c.since.Add(sayBy)); due > 0 {
		return due, true
	}
	s.removeLocked(c)
	_ = c.nc.Close()
	return 0, true
}

func (s *startups) victimLocked() (victim *startup) {
	has, most := map[netip.Prefix]int{}, 0
	for _, c := range s.all {
		has[c.from]++
		most = max(most, has[c.from])
	}
	for _, c := range s.all {
		if has[c.from] == most {
			return c
		}
	}
	return nil
}
