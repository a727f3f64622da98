package iscsi

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
)

// visit opens a session from an address, under a name of its own.
func (s *server) visit(from netip.Addr, name string) (*rawInitiator, iscsi.LoginStatus) {
	s.t.Helper()
	r := s.dial()
	r.nc.Close()
	r.nc = s.dialFrom(from)
	r.name = name
	return r, r.login(testIQN).LoginResponse().Status()
}

// visitDiscovery opens a discovery session from an address.
func (s *server) visitDiscovery(from netip.Addr) (*rawInitiator, iscsi.LoginStatus) {
	s.t.Helper()
	r := s.dial()
	r.nc.Close()
	r.nc = s.dialFrom(from)
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "SessionType=Discovery")
	p, _ := r.loginResponse()
	return r, p.LoginResponse().Status()
}

var (
	here      = netip.MustParseAddr("127.0.0.1")
	elsewhere = netip.MustParseAddr("127.0.0.2")
	third     = netip.MustParseAddr("127.0.0.3")
)

// Half of the table is anybody's; beyond, an address has a share, and the last places are
// for those whom an access list names.
func TestSessionShares(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		c.Limits.Sessions, c.Limits.SessionsPerAddress, c.Limits.ReservedSessions = 16, 4, 3
		tgt.ACL = ACL{{}, {Initiator: "iqn.2026-11.test:known-*"}}
	})
	n := 0
	want := func(from netip.Addr, name string, want iscsi.LoginStatus) *rawInitiator {
		t.Helper()
		n++
		r, got := s.visit(from, fmt.Sprintf("iqn.2026-11.test:%s-%d", name, n))
		if got != want {
			t.Fatalf("%d sessions, one more of a %s initiator from %v: status %04x (%v), want %04x", len(s.Status().Sessions), name, from, uint16(got), got, uint16(want))
		}
		return r
	}
	var first *rawInitiator
	for range 8 { // one address may have half the table
		first = want(here, "new", iscsi.LoginSuccess)
	}
	want(here, "new", iscsi.LoginOutOfResources)
	for range 4 {
		want(elsewhere, "new", iscsi.LoginSuccess)
	}
	want(elsewhere, "new", iscsi.LoginOutOfResources)
	want(third, "new", iscsi.LoginSuccess)
	want(third, "new", iscsi.LoginOutOfResources) // 13 of 16: the rest is reserved
	for range 3 {
		want(third, "known", iscsi.LoginSuccess)
	}
	want(netip.MustParseAddr("127.0.0.4"), "known", iscsi.LoginOutOfResources) // full
	if l := s.Status(); l.NoRoom != 4 || l.Room.Sessions != 16 || l.Room.SessionsPerAddress != 4 || l.Room.ReservedSessions != 3 {
		t.Errorf("status: %+v", l.Status)
	}
	// Whoever is there may come back: reinstatement takes the old one's place.
	again := s.dial()
	again.name, again.isid = first.name, first.isid
	first.logout()
	if st := again.login(testIQN).LoginResponse().Status(); st != iscsi.LoginOutOfResources {
		t.Errorf("a place that was left went to an address beyond its share: status %04x", uint16(st))
	}
	s.SetLimits(serverLimits{Room: Room{Sessions: 64}})
	want(here, "new", iscsi.LoginSuccess)
}

// The sessions of a user who has proved himself are his share, wherever he comes from.
func TestUsersHaveShares(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		tgt.Auth = users
		c.Limits.Sessions, c.Limits.SessionsPerAddress, c.Limits.ReservedSessions = 8, 2, 2
	})
	login := func(user string, i int) iscsi.LoginStatus {
		r := s.dial()
		r.name = fmt.Sprintf("iqn.2026-11.test:%s-%d", user, i)
		return r.as(user)
	}
	for i := range 4 {
		s.wantStatus("alice", login("alice", i), iscsi.LoginSuccess)
	}
	s.wantStatus("alice beyond her share", login("alice", 4), iscsi.LoginOutOfResources)
	for i := range 2 { // from the same address
		s.wantStatus("bob", login("bob", i), iscsi.LoginSuccess)
	}
	s.wantStatus("bob beyond his share", login("bob", 2), iscsi.LoginOutOfResources)
	for _, x := range s.sessionList(nil) {
		x.dismiss(errKilled)
		<-x.done
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions.shares) != 0 {
		t.Errorf("shares of nobody: %v", s.sessions.shares)
	}
}

// Discovery sessions do not keep others out: the oldest makes room, of the same address
// where that has its share, of any when the table is full.
func TestDiscoveryMakesRoom(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Sessions, c.Limits.SessionsPerAddress = 8, 3 })
	open := func(from netip.Addr) *rawInitiator {
		t.Helper()
		r, st := s.visitDiscovery(from)
		if st != iscsi.LoginSuccess {
			t.Fatalf("discovery from %v: status %04x", from, uint16(st))
		}
		return r
	}
	var mine []*rawInitiator
	for range 6 { // from the fifth on, the oldest of the same address goes
		mine = append(mine, open(here))
	}
	mine[0].expectClosed()
	mine[1].expectClosed()
	for range 3 {
		open(elsewhere)
	}
	open(third) // 8 of 8
	if n := len(s.Status().Sessions); n != 8 {
		t.Fatalf("%d sessions, want 8", n)
	}
	if r, st := s.visit(elsewhere, "iqn.2026-11.test:honest"); st != iscsi.LoginSuccess {
		t.Fatalf("a login while discovery sessions fill the table: status %04x", uint16(st))
	} else {
		r.ready()
	}
	mine[2].expectClosed()
	st := s.Status()
	if len(st.Sessions) != 8 || st.DiscoveryEnded != 3 {
		t.Errorf("%d sessions, %d discovery sessions made room", len(st.Sessions), st.DiscoveryEnded)
	}
}

// A discovery session ends at its age, whatever it does; others have none.
func TestDiscoveryAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopStart(t)
		p := &iscsi.PDU{Data: keys("InitiatorName=iqn.2026-11.test:loop", "SessionType=Discovery")}
		l := p.BHS.NewLoginRequest()
		l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
		l.SetDataLen(len(p.Data))
		m.deliver(p)
		if c.state.get() != connFull {
			t.Fatalf("discovery login: state %v", c.state.get())
		}
		normal, nm := s.loopConn(t)
		ping := func(m *loopMover) {
			p := &iscsi.PDU{}
			n := p.BHS.NewNopOut()
			n.SetITT(7)
			n.SetTTT(iscsi.ReservedTag)
			n.SetImmediate(true)
			m.deliver(p)
		}
		for range 59 {
			time.Sleep(10 * time.Second)
			ping(m)
			ping(nm)
		}
		if c.state.get() != connFull {
			t.Fatalf("state %v before its age", c.state.get())
		}
		time.Sleep(10*time.Second + hangUpTime)
		synctest.Wait()
		if got := c.state.get(); got != connClosed {
			t.Errorf("state %v after its age", got)
		}
		if got := normal.state.get(); got != connFull {
			t.Errorf("a normal session of the same age: state %v", got)
		}
		if n := s.Status().DiscoveryEnded; n != 1 {
			t.Errorf("%d discovery sessions ended", n)
		}
	})
}

func TestKnows(t *testing.T) {
	net := netip.MustParsePrefix("192.0.2.0/24")
	for _, c := range []struct {
		acl  ACL
		want bool
	}{
		{nil, false}, {ACL{{}}, false}, {ACL{{Network: net}}, false}, {ACL{{Initiator: "*"}}, false}, {ACL{{Initiator: "?*"}}, false},
		{ACL{{Initiator: "iqn.2026-11.test:a"}}, true}, {ACL{{Initiator: "IQN.2026-*"}}, true}, {ACL{{Initiator: "iqn.other"}}, false},
		{ACL{{Initiator: "iqn.2026-11.test:a", Network: net}}, false},
	} {
		if got := c.acl.knows("iqn.2026-11.test:a", here); got != c.want {
			t.Errorf("%+v: %v", c.acl, got)
		}
	}
}
