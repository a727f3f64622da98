package iscsi

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// A connection that has sent a Login Request is one that talks.
func TestLoginInProgressKeepsItsPlace(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
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
			s := serve(t, func(c *serverConfig, _ *Target) {
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
