package iscsi

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/loopback"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// discover opens a discovery session.
func (s *server) discover() *rawInitiator {
	s.t.Helper()
	r := s.dial()
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "SessionType=Discovery")
	p, _ := r.loginResponse()
	if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess || p.LoginResponse().TSIH() == 0 {
		s.t.Fatalf("discovery login: status %04x, TSIH %d", uint16(st), p.LoginResponse().TSIH())
	}
	return r
}

// text sends one Text Request.
func (r *rawInitiator) text(ttt uint32, final, cont bool, data []byte) {
	r.t.Helper()
	var b iscsi.BHS
	q := b.NewTextRequest()
	q.SetITT(r.itt)
	q.SetTTT(ttt)
	q.SetFinal(final)
	q.SetContinue(cont)
	q.SetCmdSN(r.cmdSN)
	r.cmdSN++
	r.write(&b, data)
}

// sendTargets runs a whole exchange.
func (r *rawInitiator) sendTargets(which string) string {
	r.t.Helper()
	r.newTag()
	r.text(iscsi.ReservedTag, true, false, keys("SendTargets="+which))
	var all []byte
	for {
		p := r.expect(iscsi.OpTextResponse)
		all = append(all, p.data...)
		if p.Final() {
			if p.TTT() != iscsi.ReservedTag {
				r.t.Fatalf("final Text Response has TTT %#x", p.TTT())
			}
			return string(all)
		}
		if p.TTT() == iscsi.ReservedTag {
			r.t.Fatal("a Text Response that is not final has no TTT")
		}
		r.text(p.TTT(), true, false, nil)
	}
}

func record(name, addr string) string {
	return "TargetName=" + name + "\x00TargetAddress=" + addr + ",1\x00"
}

func TestSendTargets(t *testing.T) {
	s := serve(t, nil)
	s.AddTarget(Target{Name: "iqn.2026-11.softiser:second"})
	s.AddTarget(Target{Name: "iqn.2026-11.softiser:hidden", ACL: ACL{{Initiator: "iqn.other:*"}}})
	r := s.discover()
	one, two := record(testIQN, s.addr), record("iqn.2026-11.softiser:second", s.addr)
	if got := r.sendTargets("All"); got != one+two {
		t.Errorf("SendTargets=All: %q", got)
	}
	if got := r.sendTargets("iqn.2026-11.softiser:second"); got != two {
		t.Errorf("SendTargets=name: %q", got)
	}
	if got := r.sendTargets("iqn.2026-11.softiser:hidden"); got != "" {
		t.Errorf("SendTargets of a target that the initiator may not use: %q", got)
	}
	r.newTag()
	r.text(iscsi.ReservedTag, true, false, keys("SendTargets="))
	r.expect(iscsi.OpReject) // empty is for normal sessions
	// Nothing but Text and Logout in a discovery session.
	r.command(command{cdb: make([]byte, 6)})
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectProtocol {
		t.Errorf("SCSI Command in a discovery session: %v", p.Reject().Reason())
	}
	r.logout()

	n := s.session()
	if got := n.sendTargets(""); got != one {
		t.Errorf("normal session, SendTargets empty: %q", got)
	}
	n.newTag()
	n.text(iscsi.ReservedTag, true, false, keys("SendTargets=All"))
	n.expect(iscsi.OpReject)
	n.logout()
}

// Who has proved that he is bob is not told of targets where his name is alice's, and could not
// log in to. A user of discovery alone, and whoever has proved nothing, may be anybody.
func TestSendTargetsOfBoundNames(t *testing.T) {
	all := append([]Credential{{"seeker", "the-secret-of-seeker"}}, users.Users...)
	s := serve(t, func(c *serverConfig, _ *Target) { c.DiscoveryAuth = Auth{Users: all} })
	const his, hers = "iqn.2026-11.softiser:his", "iqn.2026-11.softiser:hers"
	s.AddTarget(Target{Name: his, Auth: users, ACL: ACL{{Users: []string{"bob"}}}})
	s.AddTarget(Target{Name: hers, Auth: Auth{Users: users.Users[:1]}, ACL: ACL{{Users: []string{"alice"}}, {Initiator: "iqn.other:*", Users: []string{"bob"}}}})
	free := record(testIQN, s.addr)
	as := func(user, secret string) *rawInitiator {
		r := s.dial()
		r.loginRequest(true, iscsi.StageSecurity, iscsi.StageOperational, "InitiatorName="+r.name, "SessionType=Discovery", "AuthMethod=CHAP")
		r.loginResponse()
		r.answerCHAP("7", user, secret, false)
		r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature)
		if p, _ := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginSuccess {
			t.Fatalf("discovery as %s: status %04x", user, uint16(p.LoginResponse().Status()))
		}
		return r
	}
	for _, c := range []struct{ user, secret, all, hers string }{
		{"alice", secretOf("alice"), free + record(hers, s.addr), record(hers, s.addr)},
		{"bob", secretOf("bob"), free + record(his, s.addr), ""},
		{"seeker", "the-secret-of-seeker", free + record(his, s.addr) + record(hers, s.addr), record(hers, s.addr)},
	} {
		r := as(c.user, c.secret)
		if got := r.sendTargets("All"); got != c.all {
			t.Errorf("%s is told of %q, want %q", c.user, got, c.all)
		}
		if got := r.sendTargets(hers); got != c.hers {
			t.Errorf("%s asks for hers: %q, want %q", c.user, got, c.hers)
		}
		r.logout()
	}
}

// Many targets make an answer that needs several PDUs; a request may come in
// pieces too.
func TestLongText(t *testing.T) {
	s := serve(t, nil)
	want := record(testIQN, s.addr)
	for i := range 300 {
		name := fmt.Sprintf("iqn.2026-11.softiser:%s%03d", strings.Repeat("long", 20), i)
		if err := s.AddTarget(Target{Name: name}); err != nil {
			t.Fatal(err)
		}
		want += record(name, s.addr)
	}
	r := s.discover()
	if got := r.sendTargets("All"); got != want {
		t.Errorf("the answer has %d bytes, want %d", len(got), len(want))
	}
	r.newTag()
	r.text(iscsi.ReservedTag, false, true, []byte("SendTar"))
	p := r.expect(iscsi.OpTextResponse)
	if p.Final() || len(p.data) != 0 || p.TTT() == iscsi.ReservedTag {
		t.Fatalf("answer to a partial request: final %v, %d bytes, TTT %#x", p.Final(), len(p.data), p.TTT())
	}
	r.text(p.TTT(), true, false, keys("gets="+testIQN))
	p = r.expect(iscsi.OpTextResponse)
	if string(p.data) != record(testIQN, s.addr) || !p.Final() {
		t.Errorf("answer to a request in two pieces: %q", p.data)
	}
	r.text(0x1234, true, false, nil)
	r.expect(iscsi.OpReject) // a TTT that was never given out
}

// SendTargets stands once in a text; the answer is made piece by piece, and not
// under the lock that the session's commands need.
func TestSendTargetsOnce(t *testing.T) {
	s := serve(t, nil)
	for i := range 200 {
		if err := s.AddTarget(Target{Name: fmt.Sprintf("iqn.2026-11.softiser:%s%03d", strings.Repeat("long", 20), i)}); err != nil {
			t.Fatal(err)
		}
	}
	r := s.discover()
	r.newTag()
	r.text(iscsi.ReservedTag, true, false, bytes.Repeat(keys("SendTargets=All"), 1024))
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectProtocol {
		t.Errorf("SendTargets 1024 times: reject reason %v", p.Reject().Reason())
	}

	x := s.sessionList(nil)[0]
	c := x.conns.list()[0]
	s.mu.Lock() // holds up the answer, which asks the server for its targets
	r.newTag()
	r.text(iscsi.ReservedTag, true, false, keys("SendTargets=All"))
	eventually(t, "the answer is being made, and the session's lock is free", func() bool {
		if !x.mu.TryLock() {
			return false
		}
		defer x.mu.Unlock()
		return c.text.busy
	})
	s.mu.Unlock()
	got := 0
	for {
		p := r.expect(iscsi.OpTextResponse)
		got += len(p.data)
		x.mu.Lock()
		kept := cap(c.text.out)
		x.mu.Unlock()
		if kept > 2*iscsi.DefaultMRDSL {
			t.Fatalf("%d bytes of answer are kept for pieces of %d", kept, iscsi.DefaultMRDSL)
		}
		if p.Final() {
			break
		}
		r.text(p.TTT(), true, false, nil)
	}
	if got < 200*100 {
		t.Errorf("%d bytes of answer in all", got)
	}
}

func TestWildcardAddresses(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Portals = []portal.Config{{Listen: "0.0.0.0:0"}, {Listen: "127.0.0.1:0", Group: 2}, {Listen: "127.0.0.1:0", Advertise: "203.0.113.7:3260", Group: 3}}
	})
	_, port, err := net.SplitHostPort(s.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	s.addr = "127.0.0.1:" + port
	r := s.discover()
	want := fmt.Sprintf("TargetName=%s\x00TargetAddress=127.0.0.1:%s,1\x00TargetAddress=%s,2\x00TargetAddress=203.0.113.7:3260,3\x00", testIQN, port, s.Addrs()[1])
	if got := r.sendTargets("All"); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Each portal group is a target port group of its own.
func TestPortGroups(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		c.Portals = []portal.Config{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.1:0", Group: 7}, {Listen: "127.0.0.1:0", Group: 9}}
		tgt.Portals = []uint16{1, 7}
		tgt.LUNs[0].Access = map[uint16]scsi.AccessState{0: scsi.ActiveNonOptimized}
	})
	for i, group := range []byte{1, 7} {
		s.addr = s.Addrs()[i]
		r := s.dial()
		r.isid[5] = group
		r.mustLogin(testIQN)
		if got := r.params["TargetPortalGroupTag"]; got != fmt.Sprint(group) {
			t.Errorf("portal %d: TargetPortalGroupTag=%s", i, got)
		}
		r.ready()
		// REPORT TARGET PORT GROUPS: two descriptors of 8 bytes and a port each.
		res := r.do(command{cdb: []byte{0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0}, read: true, edtl: 255}, nil)
		if res.status != 0 || len(res.data) != 4+2*12 || res.data[7] != 1 || res.data[19] != 7 || res.data[4]&0xf != 1 {
			t.Errorf("REPORT TARGET PORT GROUPS: status %#x, % x", res.status, res.data)
		}
	}
	s.addr = s.Addrs()[2]
	if st := s.dial().login(testIQN).LoginResponse().Status(); st != iscsi.LoginNotFound {
		t.Errorf("login through a portal that the target is not offered on: status %04x", uint16(st))
	}
}

func TestAddressFor(t *testing.T) {
	loopback.NeedIPv6(t)
	s := serve(t, func(c *serverConfig, _ *Target) { c.Portals = []portal.Config{{Listen: "[::1]:0"}} })
	r := s.discover()
	if got := r.sendTargets("All"); got != record(testIQN, s.addr) || !strings.Contains(got, "=[::1]:") {
		t.Errorf("IPv6: %q", got)
	}
}

// TestTagOfATextExchange: the tag of an exchange is good for nothing once that is over (RFC 7143
// §11.10.4), and a session that has had one can be carried like any other.
func TestTagOfATextExchange(t *testing.T) {
	s := serve(t, nil)
	for i := range 300 {
		s.AddTarget(Target{Name: fmt.Sprintf("iqn.2026-11.softiser:one-of-many-targets-%03d", i)})
	}
	r := s.discover()
	r.text(iscsi.ReservedTag, true, false, keys("SendTargets=All"))
	tag := uint32(iscsi.ReservedTag)
	for {
		p := r.expect(iscsi.OpTextResponse)
		if p.Final() {
			break
		}
		tag = p.TTT()
		r.text(tag, true, false, nil)
	}
	if tag == iscsi.ReservedTag {
		t.Fatal("the answer came in one PDU")
	}
	r.text(tag, true, false, nil)
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectInvalidField {
		t.Errorf("the tag of an exchange that is over: %v", p.Reject().Reason())
	}
	r.logout()

	n := s.session()
	n.sendTargets("")
	eventually(t, "the discovery session is over", func() bool { return len(s.Status().Sessions) == 1 })
	x := s.sessionByTSIH(n.tsih)
	x.mu.Lock()
	open := x.conns.members.conns[0].text.ttt
	x.mu.Unlock()
	if open != iscsi.ReservedTag {
		t.Fatalf("the exchange %#x is open: the session would never stand still", open)
	}
	k, left := s.carried(t)
	k.Discard()
	if len(k.Sessions) != 1 || len(left) != 0 {
		t.Errorf("%d sessions are carried; %v", len(k.Sessions), left)
	}
	s.Handover().Resume()
}
