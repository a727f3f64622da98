package target

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// addr is one of many addresses.
func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

// pendings is a set whose evictions a test can see.
type pendings struct {
	pendingSet
	t    *testing.T
	gone map[*pendingConn]bool
}

func newPendings(t *testing.T, max, share int) *pendings {
	s := &pendings{t: t, gone: map[*pendingConn]bool{}}
	s.limit(max, share)
	return s
}

// from takes a place for a connection from an address; nil: it is refused.
func (s *pendings) from(a netip.Addr) *pendingConn {
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
	var first []*pendingConn
	for range 8 {
		first = append(first, s.from(addr(1)))
	}
	if len(s.gone) != 0 {
		t.Fatalf("%d evicted while the set is half empty", len(s.gone))
	}
	first[0].talks()
	if p := s.from(addr(1)); p == nil || !s.gone[first[1]] || len(s.gone) != 1 {
		t.Error("beyond its share an address does not lose its oldest silent connection")
	}
	// Another address is not touched by that, until it has its own share.
	other := []*pendingConn{s.from(addr(2)), s.from(addr(2)), s.from(addr(2)), s.from(addr(2))}
	if len(s.gone) != 1 {
		t.Error("the share of another address has cost somebody his place")
	}
	for _, p := range other {
		p.talks()
	}
	if p := s.from(addr(2)); p != nil {
		t.Error("an address with its share of connections that talk was let in")
	}
	other[0].done()
	other[0].done() // once is enough
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
	honest.talks()
	var silent []*pendingConn
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
		p.talks()
	}
	if p := s.from(addr(1000)); p == nil || !s.gone[honest] {
		t.Error("where all talk, the oldest does not give way")
	}
	if p := s.giveWay(); p == nil || p.from != origin(addr(1000)) {
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
		s.from(addr(1)).talks()
	}
	if p := s.from(addr(1)); p != nil || len(s.gone) != 0 {
		t.Error("a login that goes on has made room for another one of its address")
	}
	if p := s.from(addr(2)); p == nil || len(s.gone) != 1 {
		t.Error("another address does not get a place")
	}
}

// A connection that has sent a Login Request is one that talks.
func TestLoginInProgressKeepsItsPlace(t *testing.T) {
	s := serve(t, func(c *Config, _ *Target) {
		c.Limits.PendingLogins = 4
		c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour
	})
	r := s.dial()
	r.loginRequest(false, iscsi.StageOperational, 0, "InitiatorName="+r.name, "TargetName="+testIQN)
	r.loginResponse()
	for range 12 {
		s.dialFrom(netip.MustParseAddr("127.0.0.1"))
	}
	eventually(t, "the silent ones make room", func() bool { return s.Status().Portals[0].Evicted >= 12-4 })
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature)
	if p, _ := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginSuccess {
		t.Errorf("status %04x", uint16(p.LoginResponse().Status()))
	}
}

func TestOrigin(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1:2:3:4": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "::1": "::/64",
	} {
		if got := origin(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s comes from %v, want %s", a, got, want)
		}
	}
}

// dialFrom connects from an address of the loopback network.
func (s *server) dialFrom(a netip.Addr) net.Conn {
	s.t.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))}
	nc, err := d.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	return nc
}

// Logins succeed, every one of them, in the middle of floods: of silent connections and of
// such that begin a login, from one address and from many.
func TestLoginsInAFlood(t *testing.T) {
	for _, c := range []struct {
		name string
		from func(i int) netip.Addr
		send []byte
	}{
		{"silence from one address", func(int) netip.Addr { return netip.MustParseAddr("127.0.0.2") }, nil},
		{"silence from many addresses", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }, nil},
		{"half a header from one address", func(int) netip.Addr { return netip.MustParseAddr("127.0.0.2") }, []byte{0x43, 0x87, 0, 0}},
		{"half a header from many addresses", func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 2, byte(i >> 8), byte(i)}) }, []byte{0x43, 0x87, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(c *Config, _ *Target) {
				c.Limits.PendingLogins = 32
				c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour
			})
			s.t = t
			n := 0
			for honest := range 20 {
				for range 20 {
					n++
					s.dialFrom(c.from(n)).Write(c.send) // it may have made room already
				}
				r := s.dial()
				r.isid[5] = byte(honest)
				if p := r.login(testIQN); p.LoginResponse().Status() != 0 {
					t.Fatalf("login %d: status %04x", honest, uint16(p.LoginResponse().Status()))
				}
			}
			if st := s.Status(); st.Pending > 32 || st.Logins != 20 {
				t.Errorf("%d pending, %d logins", st.Pending, st.Logins)
			}
			eventually(t, "all but 32 of 400 connections have made room", func() bool {
				p := s.Status().Portals[0]
				return p.Evicted+p.Turned >= 400-32
			})
		})
	}
}

// The limits leave descriptors to what is no connection.
func TestBudget(t *testing.T) {
	l := Limits{Sessions: 4096, PendingLogins: 256}
	for _, c := range []struct {
		limit, used       uint64
		sessions, pending int
	}{
		{1 << 20, 20, 4096, 256},
		{8192, 20, 4096, 256},
		{4096, 20, 4096 - 20 - 256 - 256, 256},
		{1024, 24, (1024 - 24 - 64) * 3 / 4, (1024 - 24 - 64) / 4},
		{256, 200, 18, 6},
		{64, 60, 1, 1},
		{^uint64(0), 20, 4096, 256},
	} {
		s, p := descriptorBudget(c.limit, c.used, l)
		if s != c.sessions || p != c.pending {
			t.Errorf("%d descriptors, %d used: %d sessions and %d pending logins, want %d and %d", c.limit, c.used, s, p, c.sessions, c.pending)
		}
		if uint64(s+p)+c.used > c.limit && c.limit > 100 {
			t.Errorf("%d descriptors, %d used: %d are given out", c.limit, c.used, s+p)
		}
	}
}
