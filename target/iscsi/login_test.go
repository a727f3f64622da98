package iscsi

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
)

func TestLogin(t *testing.T) {
	s := serve(t, func(_ *serverConfig, tgt *Target) { tgt.Alias = "first disk" })
	r := s.dial()
	p := r.login(testIQN, "MaxRecvDataSegmentLength=65536", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=262144",
		"FirstBurstLength=65536", "MaxConnections=8", "ErrorRecoveryLevel=2", "HeaderDigest=None", "X-org.example=1",
		"TaskReporting=FastAbort,ResponseFence,RFC3720", "DataPDUInOrder=No", "DataSequenceInOrder=No", "MaxOutstandingR2T=100")
	if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess {
		t.Fatalf("status %04x", uint16(st))
	}
	for k, want := range map[string]string{
		"TargetPortalGroupTag": "1", "TargetAlias": "first disk", "InitialR2T": "Yes", "ImmediateData": "Yes",
		"MaxBurstLength": "262144", "FirstBurstLength": "65536", "MaxConnections": "1", "ErrorRecoveryLevel": "0",
		"HeaderDigest": "None", "X-org.example": "NotUnderstood",
		"TaskReporting": "RFC3720", "DataPDUInOrder": "No", "DataSequenceInOrder": "No", "MaxOutstandingR2T": "8",
	} {
		if got := r.params[k]; got != want {
			t.Errorf("%s=%s, want %s", k, got, want)
		}
	}
	if p.LoginResponse().TSIH() == 0 || p.LoginResponse().ISID() != r.isid {
		t.Errorf("TSIH %#x ISID %v", p.LoginResponse().TSIH(), p.LoginResponse().ISID())
	}
	if p.ExpCmdSN() != 1 || p.MaxCmdSN() != 128 {
		t.Errorf("window %d..%d, want 1..128", p.ExpCmdSN(), p.MaxCmdSN())
	}
	r.ready()
	st := s.Status()
	if len(st.Sessions) != 1 || st.Sessions[0].Initiator != r.name || st.Sessions[0].Target != testIQN || st.Logins != 1 {
		t.Errorf("status: %+v", st)
	}
}

func TestLoginRefused(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		tgt.ACL = ACL{{Initiator: "iqn.2026-11.test:*", Network: netip.MustParsePrefix("127.0.0.0/8")}}
		c.Limits.Sessions = 2
	})
	if err := s.AddTarget(Target{Name: "iqn.2026-11.softiser:moved", Redirect: Redirect{Address: "192.0.2.9:3260,1"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTarget(Target{Name: "iqn.2026-11.softiser:gone"}); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveTarget(t.Context(), "iqn.2026-11.softiser:gone"); err != nil {
		t.Fatal(err)
	}
	keep := s.session() // the session that must not be disturbed
	for _, c := range []struct {
		name   string
		do     func(r *rawInitiator) *pdu
		status iscsi.LoginStatus
	}{
		{"unknown target", func(r *rawInitiator) *pdu { return r.login("iqn.2026-11.softiser:nope") }, iscsi.LoginNotFound},
		{"access list", func(r *rawInitiator) *pdu { r.name = "iqn.1999-01.other:x"; return r.login(testIQN) }, iscsi.LoginNotFound},
		{"moved", func(r *rawInitiator) *pdu { return r.login("iqn.2026-11.softiser:moved") }, iscsi.LoginMovedTemporarily},
		{"removed", func(r *rawInitiator) *pdu { return r.login("iqn.2026-11.softiser:gone") }, iscsi.LoginTargetRemoved},
		{"no such session", func(r *rawInitiator) *pdu { r.tsih = 0x7777; return r.login(testIQN) }, iscsi.LoginNoSession},
		{"second connection", func(r *rawInitiator) *pdu { r.tsih, r.cid = keep.tsih, 1; return r.login(testIQN) }, iscsi.LoginTooManyConnections},
		{"no name", func(r *rawInitiator) *pdu {
			r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "TargetName="+testIQN)
			p, _ := r.loginResponse()
			return p
		}, iscsi.LoginMissingParameter},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.dial()
			r.t = t
			p := c.do(r)
			if got := p.LoginResponse().Status(); got != c.status {
				t.Errorf("status %04x (%v), want %04x", uint16(got), got, uint16(c.status))
			}
			if c.status == iscsi.LoginMovedTemporarily && parseKeys(p.data)["TargetAddress"] != "192.0.2.9:3260,1" {
				t.Errorf("redirection says %q", p.data)
			}
			r.expectClosed()
		})
	}
	t.Run("sessions exhausted", func(t *testing.T) {
		r := s.dial()
		r.isid[5] = 99
		r.mustLogin(testIQN)
		r = s.dial()
		r.isid[5] = 100
		if got := r.login(testIQN).LoginResponse().Status(); got != iscsi.LoginOutOfResources {
			t.Errorf("status %04x", uint16(got))
		}
	})
	keep.nop(nil)
}

// UpdateTarget decides about the next login, and leaves sessions alone.
func TestUpdateTarget(t *testing.T) {
	s := serve(t, nil)
	keep := s.session()
	to := func(acl ACL, alias string) {
		t.Helper()
		if err := s.UpdateTarget(Target{Name: strings.ToUpper(testIQN), ACL: acl, Alias: alias}); err != nil {
			t.Fatal(err)
		}
	}
	to(ACL{{Initiator: "iqn.1999-01.other:x"}}, "closed")
	r := s.dial()
	r.isid[5] = 77
	if got := r.login(testIQN).LoginResponse().Status(); got != iscsi.LoginNotFound {
		t.Errorf("status %04x", uint16(got))
	}
	to(nil, "open again")
	r = s.dial()
	r.isid[5] = 78
	r.mustLogin(testIQN)
	if r.params["TargetAlias"] != "open again" {
		t.Errorf("alias %q", r.params["TargetAlias"])
	}
	keep.nop(nil)
	if err := s.UpdateTarget(Target{Name: "iqn.2026-11.softiser:nope"}); err == nil {
		t.Error("a target that is not there was updated")
	}
}

func TestFirstPDUIsNotALogin(t *testing.T) {
	s := serve(t, nil)
	r := s.dial()
	// The first byte passes for a login; the rest of the header is another matter.
	r.loginRequest(false, iscsi.StageOperational, 0, "InitiatorName="+r.name, "TargetName="+testIQN)
	if p, _ := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginSuccess {
		t.Fatal("the first request was refused")
	}
	r.sendNop(nil)
	if p, _ := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginInvalidRequest {
		t.Errorf("NOP-Out during login: status %04x", uint16(p.LoginResponse().Status()))
	}
	r.expectClosed()
}

func TestFirstBytesTimeout(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.FirstBytes, c.Timeouts.Login = 200*time.Millisecond, time.Hour
	})
	silent := s.dial()
	half := s.dial()
	half.nc.Write([]byte("MPA ID Re")) // a key that never ends
	for _, r := range []*rawInitiator{silent, half} {
		r.expectClosed()
	}
	eventually(t, "both are counted as silent", func() bool { return s.Status().Portals[0].Silent == 2 })
	eventually(t, "pending logins go", func() bool { return s.listening.Pending() == 0 })
}

func TestLoginTimeout(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, 500*time.Millisecond
	})
	begun := s.dial()
	begun.loginRequest(false, iscsi.StageOperational, 0, "InitiatorName="+begun.name, "TargetName="+testIQN)
	torn := s.dial()
	torn.nc.Write([]byte{0x43, 0x87, 0, 0})
	for _, r := range []*rawInitiator{begun, torn} {
		r.expectClosed()
	}
	eventually(t, "both are counted as aborted", func() bool { return s.Status().LoginsAborted == 2 })
	eventually(t, "pending logins go", func() bool { return s.listening.Pending() == 0 })
}

// A peer that ends its side in the middle of an MPA key is not waited for: nothing that
// could still come decides what it wanted.
func TestHalfAKey(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Timeouts.FirstBytes = time.Hour })
	s.send([]byte(mpaKey[:5]))
	// The same when the end comes after the target has begun to wait for more.
	r := s.dial()
	r.nc.Write([]byte(mpaKey[:5]))
	eventually(t, "the target has looked at the half", func() bool { return s.listening.Pending() == 1 })
	if err := r.nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.expectClosed()
	eventually(t, "both are counted as silent", func() bool { return s.Status().Portals[0].Silent == 2 })
	eventually(t, "pending logins go", func() bool { return s.listening.Pending() == 0 })
}

// chap runs a CHAP login; it returns the last response.
func (r *rawInitiator) chap(target, alg, user, secret string, mutual bool) (*pdu, map[string]string, []byte) {
	r.t.Helper()
	r.loginRequest(true, iscsi.StageSecurity, iscsi.StageOperational, "InitiatorName="+r.name, "TargetName="+target,
		"SessionType=Normal", "AuthMethod=CHAP,None")
	p, m := r.loginResponse()
	if p.LoginResponse().Status() != iscsi.LoginSuccess || m["AuthMethod"] != "CHAP" {
		return p, m, nil
	}
	return r.answerCHAP(alg, user, secret, mutual)
}

// answerCHAP goes on where AuthMethod=CHAP has been agreed on.
func (r *rawInitiator) answerCHAP(alg, user, secret string, mutual bool) (*pdu, map[string]string, []byte) {
	r.t.Helper()
	r.loginRequest(false, iscsi.StageSecurity, 0, "CHAP_A="+alg)
	p, m := r.loginResponse()
	if p.LoginResponse().Status() != iscsi.LoginSuccess {
		return p, m, nil
	}
	a, _ := strconv.Atoi(m["CHAP_A"])
	id, _ := strconv.Atoi(m["CHAP_I"])
	challenge, err := hex.DecodeString(strings.TrimPrefix(m["CHAP_C"], "0x"))
	if err != nil {
		r.t.Fatalf("challenge %q: %v", m["CHAP_C"], err)
	}
	resp := iscsi.CHAPResponse(iscsi.CHAPAlgorithm(a), byte(id), iscsi.Secret(secret), challenge)
	kv := []string{"CHAP_N=" + user, fmt.Sprintf("CHAP_R=0x%x", resp)}
	own := pattern(16, 9)
	if mutual {
		kv = append(kv, "CHAP_I=77", fmt.Sprintf("CHAP_C=0x%x", own))
	}
	r.loginRequest(true, iscsi.StageSecurity, iscsi.StageOperational, kv...)
	p, m = r.loginResponse()
	return p, m, iscsi.CHAPResponse(iscsi.CHAPAlgorithm(a), 77, iscsi.Secret("target-secret-2"), own)
}

func TestCHAP(t *testing.T) {
	s := serve(t, func(_ *serverConfig, tgt *Target) {
		tgt.Auth = Auth{
			Users:  []Credential{{"alice", "initiator-secret"}, {"bob", "another-secret-1"}},
			Mutual: Credential{"the-target", "target-secret-2"},
		}
	})
	for _, alg := range []string{"5", "6", "7", "8"} {
		for _, mutual := range []bool{false, true} {
			t.Run(fmt.Sprintf("algorithm %s mutual %v", alg, mutual), func(t *testing.T) {
				r := s.dial()
				r.t = t
				p, m, want := r.chap(testIQN, alg, "alice", "initiator-secret", mutual)
				if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess || !p.Final() {
					t.Fatalf("status %04x final %v", uint16(st), p.Final())
				}
				if mutual && (m["CHAP_N"] != "the-target" || !strings.EqualFold(m["CHAP_R"], fmt.Sprintf("0x%x", want))) {
					t.Fatalf("the target answered CHAP_N=%s CHAP_R=%s", m["CHAP_N"], m["CHAP_R"])
				}
				r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature)
				p, _ = r.loginResponse()
				if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess || !p.Final() {
					t.Fatalf("operational stage: status %04x", uint16(st))
				}
				r.ready()
				r.logout()
			})
		}
	}
	for _, c := range []struct{ name, alg, user, secret string }{
		{"wrong secret", "7", "alice", "initiator-secrex"},
		{"other user's secret", "7", "alice", "another-secret-1"},
		{"unknown user", "7", "mallory", "initiator-secret"},
		{"unknown algorithm", "99", "alice", "initiator-secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.dial()
			r.t = t
			p, _, _ := r.chap(testIQN, c.alg, c.user, c.secret, false)
			if st := p.LoginResponse().Status(); st != iscsi.LoginAuthFailure {
				t.Fatalf("status %04x", uint16(st))
			}
			r.expectClosed()
		})
	}
	t.Run("skipped", func(t *testing.T) {
		r := s.dial()
		r.t = t
		if st := r.login(testIQN).LoginResponse().Status(); st != iscsi.LoginAuthFailure {
			t.Fatalf("status %04x", uint16(st))
		}
		r.expectClosed()
	})
}

func TestSecretsAreNotPrinted(t *testing.T) {
	a := Auth{Users: []Credential{{"u", "hush-hush-hush"}}, Mutual: Credential{"m", "hush-hush-hush"}}
	for _, f := range []string{"%v", "%+v", "%#v", "%s"} {
		if out := fmt.Sprintf(f, a); strings.Contains(out, "hush") {
			t.Errorf("%s prints %s", f, out)
		}
	}
}

// A refused login says why in the log: name, access list, secret, algorithm.
func TestRefusalsAreExplained(t *testing.T) {
	log, lines := observedLog()
	s := serve(t, func(c *serverConfig, tgt *Target) {
		c.Log = log
		tgt.ACL = ACL{{Initiator: "iqn.2026-11.test:*"}}
		tgt.Auth = Auth{Users: []Credential{{"alice", "initiator-secret"}}, Algorithms: []int{8}}
	})
	for _, c := range []struct {
		want, kind string
		do         func(r *rawInitiator)
	}{
		{"there is no target iqn.2026-11.softiser:nope", "no_such_target", func(r *rawInitiator) { r.login("iqn.2026-11.softiser:nope") }},
		{"no access rule names this initiator", "access_list", func(r *rawInitiator) { r.name = "iqn.1999-01.other:x"; r.login(testIQN) }},
		{"requires CHAP", "authentication", func(r *rawInitiator) { r.login(testIQN) }},
		{"secret", "authentication", func(r *rawInitiator) { r.chap(testIQN, "8", "alice", "wrong-secret-123", false) }},
		{"mallory", "authentication", func(r *rawInitiator) { r.chap(testIQN, "8", "mallory", "initiator-secret", false) }},
		{"lgorithm", "authentication", func(r *rawInitiator) { r.chap(testIQN, "5", "alice", "initiator-secret", false) }},
	} {
		r := s.dial()
		c.do(r)
		r.expectClosed()
		found := false
		for _, l := range lines() {
			reason, _ := l["reason"].(string)
			found = found || strings.Contains(reason, c.want) && l["kind"] == c.kind
			if strings.Contains(fmt.Sprint(l), "initiator-secret") || strings.Contains(fmt.Sprint(l), "wrong-secret") {
				t.Errorf("a secret is in the log: %v", l)
			}
		}
		if !found {
			t.Errorf("no line of the log says %q: %v", c.want, lines())
		}
	}
	st := s.Status()
	if by := st.Refusals; st.LoginsRefused != 6 || by["no_such_target"] != 1 || by["access_list"] != 1 || by["authentication"] != 4 {
		t.Errorf("%d refused logins counted, want 6: %v", st.LoginsRefused, by)
	}
}

// Six refusals are six lines, one kind hides no other, and of a flood none is forgotten.
func TestRefusalsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := observedLog()
		var r refusals
		r.init(log)
		told := func() (single map[string]int, counted map[string]int) {
			single, counted = map[string]int{}, map[string]int{}
			for _, l := range lines() {
				kind, _ := l["kind"].(string)
				if n, ok := l["count"].(int64); ok {
					counted[kind] += int(n)
					continue
				}
				single[kind]++
				if n, ok := l["similar_lines_dropped"].(int64); ok {
					counted[kind] += int(n)
				}
			}
			return single, counted
		}
		for range 6 {
			r.note(log, refusedSecret)
			r.note(log, refusedAccess)
		}
		if one, _ := told(); one["authentication"] != 6 || one["access_list"] != 6 {
			t.Errorf("six of two kinds: %v", one)
		}
		for range 1000 {
			r.note(log, refusedNoTarget)
		}
		r.note(log, refusedNoRoom)
		one, many := told()
		if one["no_such_target"] != refusalBurst || one["limits"] != 1 || many["no_such_target"] != 0 {
			t.Errorf("a flood: %v %v", one, many)
		}
		time.Sleep(refusalSummary + time.Second)
		if one, many := told(); one["no_such_target"]+many["no_such_target"] != 1000 || many["limits"] != 0 {
			t.Errorf("the flood is over: %v %v", one, many)
		}
		// What is left when the server ends.
		for range 100 {
			r.note(log, refusedNegotiation)
		}
		r.stop()
		if one, many := told(); one["negotiation"]+many["negotiation"] != 100 {
			t.Errorf("after the end: %v %v", one, many)
		}
		if n, by := r.counts(); n != 1113 || by["no_such_target"] != 1000 {
			t.Errorf("counted %d: %v", n, by)
		}
	})
}
