package iscsi

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// users are the CHAP users of the tests about whose a name is.
var users = Auth{Users: []Credential{{"alice", "the-secret-of-alice"}, {"bob", "the-secret-of-bob-"}}}

// as logs in under CHAP; what follows is for the operational stage.
func (r *rawInitiator) as(user string, kv ...string) iscsi.LoginStatus {
	r.t.Helper()
	secret := secretOf(user)
	p, _, _ := r.chap(testIQN, "7", user, secret, false)
	if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess {
		return st
	}
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, kv...)
	p, r.params = r.loginResponse()
	r.tsih = p.LoginResponse().TSIH()
	return p.LoginResponse().Status()
}

func secretOf(user string) string {
	i := slices.IndexFunc(users.Users, func(c Credential) bool { return c.Name == user })
	return users.Users[i].Secret
}

func (r *rawInitiator) mustBe(user string, kv ...string) {
	r.t.Helper()
	if st := r.as(user, kv...); st != iscsi.LoginSuccess {
		r.t.Fatalf("login of %s as %s: status %04x (%v)", r.name, user, uint16(st), st)
	}
}

// register makes a persistent registration, which outlives the session.
func (r *rawInitiator) register() {
	r.t.Helper()
	o := spc.PersistOut{ActionKey: 0xA11CE}
	list := o.Append(nil)
	cdb := spc.AppendPersistOut(nil, spc.SAProutRegisterIgnore, 0, uint32(len(list)))
	if res := r.do(command{cdb: cdb, write: true, edtl: uint32(len(list))}, list); res.status != 0 {
		r.t.Fatalf("REGISTER AND IGNORE EXISTING KEY: status %#x, sense % x", res.status, res.sense)
	}
}

func (s *server) wantStatus(what string, got, want iscsi.LoginStatus) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: status %04x (%v), want %04x (%v)", what, uint16(got), got, uint16(want), want)
	}
}

// A user with a secret of his own gets neither a session, nor a connection, nor the
// reservations of another one by writing that one's name, ISID and TSIH.
func TestUserOwnsTheName(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		tgt.Auth = users
		c.Session.MaxConnections = 4
	})
	alice := s.dial()
	alice.mustBe("alice", "MaxConnections=4")
	alice.ready()

	s.wantStatus("bob with alice's name and ISID", s.dial().as("bob"), iscsi.LoginForbidden)
	other := s.dial()
	other.isid[5]++
	s.wantStatus("bob with alice's name", other.as("bob"), iscsi.LoginForbidden)
	join := s.dial()
	join.tsih, join.cid, join.cmdSN = alice.tsih, 1, alice.cmdSN
	s.wantStatus("bob joining alice's session", join.as("bob"), iscsi.LoginNoSession)
	same := s.dial()
	same.tsih, same.cmdSN = alice.tsih, alice.cmdSN
	s.wantStatus("bob taking over alice's connection", same.as("bob"), iscsi.LoginNoSession)
	alice.nop(nil) // undisturbed

	own := s.dial()
	own.name = "iqn.2026-11.test:bob"
	own.mustBe("bob")
	second := s.dial()
	second.isid[5] = 77
	second.mustBe("alice") // her own second session

	// Without a session the name is free, unless a registration is left behind.
	second.logout()
	alice.register()
	alice.logout()
	s.wantStatus("bob with the name of alice's registration", s.dial().as("bob"), iscsi.LoginForbidden)
	alice = s.dial()
	alice.mustBe("alice")
	alice.ready()
	if err := s.ReleaseInitiator(testIQN, strings.ToUpper(alice.name)); err != nil {
		t.Fatal(err)
	}
	alice.expectClosed()
	bob := s.dial()
	bob.mustBe("bob")
	bob.ready()
	s.wantStatus("alice after the administrator has released the name", s.dial().as("alice"), iscsi.LoginForbidden)
	if st := s.Status(); len(st.Sessions) != 2 || st.Sessions[1].User != "bob" {
		t.Errorf("status: %+v", st.Sessions)
	}
	if err := s.ReleaseInitiator(testIQN, "iqn.2026-11.test:nobody"); err == nil || !strings.Contains(err.Error(), "has no session there") || !strings.Contains(err.Error(), bob.name) {
		t.Errorf("a name that nobody has was released: %v", err)
	}
	if err := s.ReleaseInitiator("iqn.2026-11.softiser:nope", "x"); err == nil {
		t.Error("a name was released at a target that is not there")
	}
}

// The claim ends with the last session of the name.
func TestNameIsFreeAfterTheLastSession(t *testing.T) {
	s := serve(t, func(_ *serverConfig, tgt *Target) { tgt.Auth = users })
	for _, user := range []string{"alice", "bob", "alice"} {
		r := s.dial()
		r.mustBe(user)
		r.ready()
		r.nc.Close() // without logout: the next login waits for the end
	}
}

// A name that the access list binds is that of the users it names, and of nobody else,
// whatever other rules let in.
func TestBoundName(t *testing.T) {
	const bound, shared = "iqn.2026-11.test:bound", "iqn.2026-11.test:shared"
	s := serve(t, func(_ *serverConfig, tgt *Target) {
		tgt.Auth = users
		tgt.ACL = ACL{{}, {Initiator: bound, Users: []string{"alice"}}, {Initiator: shared, Users: []string{"alice", "bob"}}}
	})
	login := func(name, user string) iscsi.LoginStatus {
		r := s.dial()
		r.name = name
		return r.as(user)
	}
	s.wantStatus("bob under a name bound to alice", login(bound, "bob"), iscsi.LoginForbidden)
	s.wantStatus("alice under her name", login(bound, "alice"), iscsi.LoginSuccess)
	s.wantStatus("bob under a name that is not bound", login("iqn.2026-11.test:free", "bob"), iscsi.LoginSuccess)
	// Users of one name take over each other's sessions: there is one I_T nexus.
	s.wantStatus("alice under a shared name", login(shared, "alice"), iscsi.LoginSuccess)
	s.wantStatus("bob under a shared name", login(shared, "bob"), iscsi.LoginSuccess)
	if n := len(s.Status().Sessions); n != 3 {
		t.Errorf("%d sessions, want 3", n)
	}
}

func TestAllowUser(t *testing.T) {
	const name = "iqn.2026-11.test:a"
	near, far := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	bind := Rule{Initiator: "IQN.2026-11.test:*", Network: netip.MustParsePrefix("192.0.2.0/24"), Users: []string{"alice"}}
	for _, c := range []struct {
		acl       ACL
		far       bool
		user      string
		ok, bound bool
	}{
		{nil, false, "bob", true, false},
		{ACL{}, false, "alice", false, false},
		{ACL{{}}, false, "bob", true, false},
		{ACL{bind}, false, "alice", true, true},
		{ACL{bind}, false, "bob", false, true},
		{ACL{bind}, false, "", false, true},
		{ACL{bind}, true, "alice", false, true},
		{ACL{{}, bind}, true, "bob", false, true}, // the binding holds everywhere
		{ACL{{}, bind}, true, "alice", false, true},
		{ACL{{Initiator: "iqn.other:*", Users: []string{"bob"}}, {}}, false, "alice", true, false},
	} {
		from := near
		if c.far {
			from = far
		}
		if ok, bound := c.acl.allowUser(name, from, c.user); ok != c.ok || bound != c.bound {
			t.Errorf("%+v, %s from %v: %v, bound %v; want %v, %v", c.acl, c.user, from, ok, bound, c.ok, c.bound)
		}
	}
}

// Who may not use a target is told the same as if it were not there, or had never
// been.
func TestExcludedInitiatorLearnsNothing(t *testing.T) {
	s := serve(t, func(_ *serverConfig, tgt *Target) { tgt.ACL = ACL{{Initiator: "iqn.2026-11.test:initiator"}} })
	for _, name := range []string{"moved", "gone", "chap"} {
		tgt := Target{Name: "iqn.2026-11.softiser:" + name, ACL: ACL{{Initiator: "iqn.2026-11.test:initiator"}}}
		switch name {
		case "moved":
			tgt.Redirect = Redirect{Address: "192.0.2.9:3260,1"}
		case "chap":
			tgt.Auth = users
		}
		if err := s.AddTarget(tgt); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RemoveTarget(t.Context(), "iqn.2026-11.softiser:gone"); err != nil {
		t.Fatal(err)
	}
	answer := func(target string) string {
		r := s.dial()
		r.name = "iqn.2026-11.test:somebody"
		p := r.login(target)
		r.expectClosed()
		return fmt.Sprintf("% x %q", p.BHS[:], p.data)
	}
	want := answer("iqn.2026-11.softiser:never")
	for _, target := range []string{testIQN, "iqn.2026-11.softiser:moved", "iqn.2026-11.softiser:gone", "iqn.2026-11.softiser:chap"} {
		if got := answer(target); got != want {
			t.Errorf("%s: %s\nwant %s", target, got, want)
		}
	}
	if st := s.dial().login("iqn.2026-11.softiser:gone").LoginResponse().Status(); st != iscsi.LoginTargetRemoved {
		t.Errorf("who might use it: status %04x", uint16(st))
	}
}

// A connection that says it is part of a session sees nothing of it before its
// initiator has proved who it is: neither that it exists, nor its numbers.
func TestJoinerLearnsNothingBeforeProof(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		tgt.Auth = users
		c.Session.MaxConnections = 4
	})
	alice := s.dial()
	alice.cmdSN = 5000
	alice.mustBe("alice", "MaxConnections=4")
	alice.ready()
	first := func(tsih uint16) (*rawInitiator, string) {
		r := s.dial()
		r.tsih, r.cid, r.cmdSN = tsih, 1, 77
		r.loginRequest(true, iscsi.StageSecurity, iscsi.StageOperational, "InitiatorName="+r.name, "TargetName="+testIQN,
			"SessionType=Normal", "AuthMethod=CHAP")
		p, _ := r.loginResponse()
		if exp, most := p.ExpCmdSN(), p.MaxCmdSN(); most != exp-2 {
			t.Errorf("window %d to %d before proof, want one that is ignored", exp, most)
		}
		p.LoginResponse().SetTSIH(0) // what the initiator has said itself
		return r, fmt.Sprintf("% x %q", p.BHS[:], p.data)
	}
	_, none := first(alice.tsih + 9)
	r, some := first(alice.tsih)
	if none != some {
		t.Errorf("of a session that is there: %s\nof one that is not: %s", some, none)
	}
	r.nc.Close()
	r, _ = first(alice.tsih + 9)
	p, _, _ := r.answerCHAP("7", "alice", secretOf("alice"), false)
	s.wantStatus("a session that is not there, with proof", p.LoginResponse().Status(), iscsi.LoginNoSession)
	join := s.dial()
	join.tsih, join.cid, join.cmdSN = alice.tsih, 1, alice.cmdSN
	join.mustBe("alice")
	if got := join.nop(nil).ExpCmdSN(); got != alice.cmdSN {
		t.Errorf("ExpCmdSN %d on the second connection, want %d", got, alice.cmdSN)
	}
}

// Names and aliases come from peers; terminals and logs get what can be read.
func TestPeerTextIsQuoted(t *testing.T) {
	log, lines := observedLog()
	s := serve(t, func(c *serverConfig, _ *Target) { c.Log = log })
	for _, name := range []string{"iqn.2026-11.test:\x1b[2J", "iqn.2026-11.test:\u202eevil", "iqn.2026-11.test:\xff", "iqn.2026-11.test:a\nb", "iqn.2026-11.test:\u009b1m"} {
		r := s.dial()
		r.name = name
		s.wantStatus(fmt.Sprintf("%q", name), r.login(testIQN).LoginResponse().Status(), iscsi.LoginInitiatorFailure)
		r.expectClosed()
	}
	r := s.dial()
	s.wantStatus("a target that nobody has", r.login("iqn.2026-11.softiser:\x1b[31mred\u009b").LoginResponse().Status(), iscsi.LoginNotFound)
	r = s.dial()
	r.mustLogin(testIQN, "InitiatorAlias=\x1b]0;owned\a\u202e")
	if got := s.Status().Sessions[0].Alias; got != `\x1b]0;owned\a\u202e` {
		t.Errorf("alias %q", got)
	}
	for _, l := range lines() {
		for k, v := range l {
			if text, ok := v.(string); ok && iscsi.Printable(text) != text {
				t.Errorf("%s=%q reached the log", k, text)
			}
		}
	}
}
