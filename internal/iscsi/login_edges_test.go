package iscsi

import (
	"strings"
	"testing"
)

// securityResponse is a Login Response in the security stage.
func securityResponse(transit, more bool, text string) *PDU {
	var p PDU
	r := p.BHS.NewLoginResponse()
	r.SetISID(ISID{0x40, 1, 2, 3, 4, 5})
	r.SetStages(transit, more, StageSecurity, StageOperational)
	p.BHS.SetITT(0x55)
	if !transit {
		r.SetStages(false, more, StageSecurity, 0)
	}
	p.Data = []byte(text)
	p.BHS.SetDataLen(len(p.Data))
	return &p
}

// What a target may answer to AuthMethod=CHAP, and to AuthMethod=CHAP,None.
func TestAuthMethodAnswers(t *testing.T) {
	for _, c := range []struct {
		answer   string
		optional bool
		good     bool
		asks     bool // the request that follows offers CHAP's algorithms
	}{
		{"AuthMethod=CHAP\x00", false, true, true},
		{"AuthMethod=CHAP\x00", true, true, true},
		{"AuthMethod=None\x00", true, true, false},
		{"AuthMethod=None\x00", false, false, false},
		{"AuthMethod=KRB5\x00", true, false, false},
		{"AuthMethod=Reject\x00", false, false, false},
		{"", false, false, false},
		{"", true, false, false},
	} {
		p := newLoginPair()
		p.i.Auth = &InitiatorAuth{User: "u", Secret: Secret("wonderland-1865"), Optional: c.optional}
		i := NewLoginInitiator(p.i)
		var req PDU
		i.Start(&req)
		if offer := "CHAP,None"; strings.Contains(string(req.Data), offer) != c.optional {
			t.Errorf("optional %v: offered %q", c.optional, req.Data)
		}
		done, err := i.Next(securityResponse(false, false, c.answer), &req)
		if (err == nil) != c.good || done {
			t.Errorf("%q, optional %v: done %v, %v", c.answer, c.optional, done, err)
			continue
		}
		if err != nil && status(err) != LoginAuthFailure {
			t.Errorf("%q: %v", c.answer, err)
		}
		if err == nil && strings.Contains(string(req.Data), "CHAP_A=") != c.asks {
			t.Errorf("%q: asks %q", c.answer, req.Data)
		}
		if q := req.BHS.LoginRequest(); err == nil && q.Transit() == c.asks {
			t.Errorf("%q: transit %v", c.answer, q.Transit())
		}
	}
}

// A target that goes on answering is not listened to for ever.
func TestEndlessLogin(t *testing.T) {
	p := newLoginPair()
	i := NewLoginInitiator(p.i)
	var req PDU
	i.Start(&req)
	for n := range 10 * maxLoginRounds {
		var resp PDU
		r := resp.BHS.NewLoginResponse()
		r.SetISID(p.i.ISID)
		r.SetStages(false, false, StageOperational, 0)
		resp.BHS.SetITT(0x55)
		resp.BHS.SetSequence(Sequence{StatSN: uint32(n)})
		if _, err := i.Next(&resp, &req); err != nil {
			if n < 2 {
				t.Fatalf("round %d: %v", n, err)
			}
			return
		}
	}
	t.Error("the login does not end")
}

// A piece of a text is confirmed with the stage as it is, without data, and a joining
// connection that has proved nothing learns nothing of its session's numbers.
func TestPieceIsConfirmed(t *testing.T) {
	for _, tsih := range []uint16{0, 0x77} {
		p := newLoginPair()
		tgt := NewLoginTarget(p.t)
		var req, resp PDU
		q := req.BHS.NewLoginRequest()
		q.SetStages(false, true, StageOperational, 0)
		q.SetISID(ISID{0x40, 1, 2, 3, 4, 5})
		q.SetTSIH(tsih)
		req.BHS.SetITT(9)
		req.BHS.SetCmdSN(500)
		req.Data = []byte("InitiatorName=")
		done, err := tgt.Handle(&req, &resp)
		r := resp.BHS.LoginResponse()
		if done || err != nil || r.Transit() || r.Continue() || r.CSG() != StageOperational || r.NSG() != 0 || len(resp.Data) != 0 || resp.BHS.ITT() != 9 {
			t.Errorf("TSIH %#x: %v, %v, % x %q", tsih, done, err, resp.BHS, resp.Data)
		}
		want := Sequence{StatSN: resp.BHS.StatSN(), ExpCmdSN: 500, MaxCmdSN: 500}
		if tsih != 0 {
			want.MaxCmdSN = 498
		}
		if got := resp.BHS.Sequence(); got != want {
			t.Errorf("TSIH %#x: %+v, want %+v", tsih, got, want)
		}
	}
}

// While the initiator's text is not complete, a target that wants to leave the stage, or
// has text of its own in pieces, breaks the protocol.
func TestTargetAnswersTooEarly(t *testing.T) {
	for _, c := range []struct{ transit, more, good bool }{{false, false, true}, {true, false, false}, {false, true, false}} {
		p := newLoginPair()
		p.i.InitiatorAlias = strings.Repeat("a", 9000)
		i := NewLoginInitiator(p.i)
		var req PDU
		i.Start(&req)
		if !req.BHS.LoginRequest().Continue() {
			t.Fatal("the text fits one PDU")
		}
		var resp PDU
		r := resp.BHS.NewLoginResponse()
		r.SetISID(p.i.ISID)
		r.SetStages(c.transit, c.more, StageOperational, StageFullFeature)
		resp.BHS.SetITT(0x55)
		if _, err := i.Next(&resp, &req); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// The policy is asked about a user once, and only when there is nothing left to prove.
func TestProvedIsAskedOnce(t *testing.T) {
	for _, auth := range []bool{false, true} {
		p := newLoginPair()
		asked := []string{}
		p.g.Proved = func(user string) error { asked = append(asked, user); return nil }
		want := ""
		if auth {
			want = "alice"
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.i.Auth = &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865")}
		}
		if _, _, ierr, terr, _ := p.run(t); ierr != nil || terr != nil {
			t.Fatal(ierr, terr)
		}
		if len(asked) != 1 || asked[0] != want {
			t.Errorf("asked about %q", asked)
		}
		p = newLoginPair()
		p.g.Auth = chapAuth("alice", "wonderland-1865")
		p.g.Proved = func(string) error { t.Error("asked about a user who has proved nothing"); return nil }
		p.i.Auth = &InitiatorAuth{User: "alice", Secret: Secret("another-secret-1")}
		if _, _, ierr, _, _ := p.run(t); ierr == nil {
			t.Error("the wrong secret was good enough")
		}
	}
}

// A name that is said again must be the same.
func TestRepeatedNames(t *testing.T) {
	for value, good := range map[string]bool{"one": true, "two": false} {
		n := NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
		if _, err := n.Receive(nil, []KeyValue{{Key: "InitiatorAlias", Value: "one"}}, StageSecurity); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Receive(nil, []KeyValue{{Key: "InitiatorAlias", Value: value}}, StageOperational); (err == nil) != good {
			t.Errorf("%s: %v", value, err)
		}
	}
	// Numbers are not repeated, the same or not (RFC 7143 §6.3).
	n := NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
	k := []KeyValue{{Key: "MaxRecvDataSegmentLength", Value: "8192"}}
	if _, err := n.Receive(nil, k, StageOperational); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Receive(nil, k, StageOperational); err == nil {
		t.Error("MaxRecvDataSegmentLength was taken twice")
	}
}

// A text of just the limit is taken.
func TestTextLimit(t *testing.T) {
	b := TextBuffer{Limit: 8}
	if _, _, err := b.Add([]byte("12345"), true); err != nil {
		t.Fatal(err)
	}
	if text, done, err := b.Add([]byte("678"), false); err != nil || !done || string(text) != "12345678" {
		t.Errorf("%q, %v, %v", text, done, err)
	}
	if _, _, err := b.Add([]byte("123456789"), false); err == nil {
		t.Error("a byte too many was taken")
	}
}

// EUI-64 and NAA names are hexadecimal.
func TestHexNames(t *testing.T) {
	for _, c := range "ghzGZ/:-@`" {
		for _, prefix := range []string{"eui.012345678", "naa.012345678"} {
			if name := prefix + string(c) + "abcdef"; CheckName(name) == nil {
				t.Errorf("%q was taken", name)
			}
		}
	}
}
