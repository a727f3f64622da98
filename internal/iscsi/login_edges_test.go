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

// Nor is an initiator that goes on asking.
func TestEndlessRequests(t *testing.T) {
	p := newLoginPair()
	tgt := NewLoginTarget(p.t)
	var req, resp PDU
	req.BHS.NewLoginRequest().SetStages(false, false, StageOperational, 0)
	req.Data = []byte("InitiatorName=i\x00TargetName=" + testTarget + "\x00")
	for n := range 10 * maxLoginRounds {
		if _, err := tgt.Handle(&req, &resp); err != nil {
			if n < 2 || status(err) != LoginInitiatorFailure {
				t.Fatalf("round %d: %v", n, err)
			}
			return
		}
		req.Data = nil
	}
	t.Error("the login does not end")
}

// An initiator that wants to leave the security stage before it has proved who it is stays in it, or
// is refused, whatever it has said so far.
func TestNoTransitBeforeProof(t *testing.T) {
	hello := "InitiatorName=i\x00TargetName=" + testTarget + "\x00"
	for _, c := range []struct {
		texts   []string
		refused bool
	}{
		{[]string{hello}, true},
		{[]string{hello + "AuthMethod=CHAP\x00"}, false},
		{[]string{hello + "AuthMethod=CHAP\x00", "CHAP_A=7\x00"}, false},
		{[]string{hello + "AuthMethod=CHAP\x00CHAP_A=7\x00"}, false},
		{[]string{hello + "AuthMethod=CHAP\x00", "CHAP_A=7\x00", ""}, false},
	} {
		p := newLoginPair()
		p.g.Auth = chapAuth("alice", "wonderland-1865")
		tgt := NewLoginTarget(p.t)
		for i, text := range c.texts {
			var req, resp PDU
			req.BHS.NewLoginRequest().SetStages(true, false, StageSecurity, StageFullFeature)
			req.Data = []byte(text)
			done, err := tgt.Handle(&req, &resp)
			if r := resp.BHS.LoginResponse(); done || r.Transit() || r.CSG() != StageSecurity && err == nil {
				t.Errorf("%q: done %v, % x", c.texts[:i+1], done, resp.BHS)
			}
			if (err != nil) != c.refused || err != nil && status(err) != LoginAuthFailure {
				t.Errorf("%q: %v", c.texts[:i+1], err)
			}
		}
	}
}

// While the target's text is not complete the initiator asks for the rest of it, and says nothing else.
func TestInitiatorSpeaksTooEarly(t *testing.T) {
	for _, c := range []struct {
		text string
		more bool
		good bool
	}{{"", false, true}, {"MaxConnections=1\x00", false, false}, {"", true, false}} {
		p := newLoginPair()
		p.g.TargetAlias = strings.Repeat("a", 9000)
		tgt := NewLoginTarget(p.t)
		var req, resp PDU
		q := req.BHS.NewLoginRequest()
		q.SetStages(false, false, StageOperational, 0)
		req.Data = []byte("InitiatorName=i\x00TargetName=" + testTarget + "\x00")
		if _, err := tgt.Handle(&req, &resp); err != nil || !resp.BHS.LoginResponse().Continue() {
			t.Fatalf("the answer fits one PDU: %v", err)
		}
		q.SetStages(false, c.more, StageOperational, 0)
		req.Data = []byte(c.text)
		if _, err := tgt.Handle(&req, &resp); (err == nil) != c.good {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// What an initiator must not take from a target in the header of a response.
func TestLoginBadResponses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*PDU)
		good   bool
	}{
		{"as it should be", func(*PDU) {}, true},
		{"another task tag", func(p *PDU) { p.BHS.SetITT(0x56) }, false},
		{"another ISID", func(p *PDU) { p.BHS.LoginResponse().SetISID(ISID{9}) }, false},
		{"StatSN", func(p *PDU) { p.BHS.SetSequence(Sequence{StatSN: p.BHS.StatSN() + 1}) }, false},
		{"TSIH 0", func(p *PDU) { p.BHS.LoginResponse().SetTSIH(0) }, false},
		{"another stage", func(p *PDU) { p.BHS.LoginResponse().SetStages(true, false, StageSecurity, StageFullFeature) }, false},
		{"not to the full feature phase", func(p *PDU) { p.BHS.LoginResponse().SetStages(true, false, StageOperational, 2) }, false},
		{"T and C", func(p *PDU) { p.BHS.LoginResponse().SetStages(true, true, StageOperational, StageFullFeature) }, false},
		{"a question", func(p *PDU) { p.Data = []byte("X-what=1\x00") }, false},
		{"AHS", func(p *PDU) { p.BHS.SetAHSLen(8) }, false},
	} {
		p := newLoginPair()
		p.g.Auth = chapAuth("alice", "wonderland-1865") // so that the last response is not the first
		p.i.Auth = &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865")}
		i, tgt := NewLoginInitiator(p.i), NewLoginTarget(p.t)
		var req, resp PDU
		i.Start(&req)
		for last := false; !last; {
			var err error
			if last, err = tgt.Handle(&req, &resp); err != nil {
				t.Fatal(err)
			}
			if last {
				c.change(&resp)
			}
			done, err := i.Next(&resp, &req)
			if !last && err != nil {
				t.Fatal(err)
			}
			if last && (done != c.good || (err == nil) != c.good) {
				t.Errorf("%s: done %v, %v", c.name, done, err)
			}
		}
	}
}

// A first burst that was not negotiated is no longer than the burst that was (RFC 7143 §13.14).
func TestFirstBurstWithinBurst(t *testing.T) {
	n := NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{}, true)
	if _, err := n.Receive(nil, []KeyValue{{Key: "MaxBurstLength", Value: "512"}}, StageOperational); err != nil {
		t.Fatal(err)
	}
	if p := n.Params(); p.MaxBurstLength != 512 || p.FirstBurstLength != 512 {
		t.Errorf("MaxBurstLength %d, FirstBurstLength %d", p.MaxBurstLength, p.FirstBurstLength)
	}
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
	if _, _, err := b.Add([]byte("12345"), true); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Add([]byte("6789"), false); err == nil {
		t.Error("a byte too many was taken, in two pieces")
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

// TestSessionTypeChanges: the type of a session is that of the first text, by which the target has been
// chosen, and the initiator let in. Saying it again is no harm.
func TestSessionTypeChanges(t *testing.T) {
	for typ, good := range map[string]bool{"Normal": true, "Discovery": false} {
		p := newLoginPair()
		l := NewLoginTarget(p.t)
		login := func(text string) error {
			var req, resp PDU
			q := req.BHS.NewLoginRequest()
			q.SetStages(false, false, StageOperational, 0)
			req.Data = []byte(text)
			_, err := l.Handle(&req, &resp)
			return err
		}
		if err := login("InitiatorName=i\x00TargetName=" + testTarget + "\x00"); err != nil {
			t.Fatal(err)
		}
		if err := login("SessionType=" + typ + "\x00"); good && err != nil || !good && status(err) != LoginInitiatorFailure {
			t.Errorf("%s: %v", typ, err)
		}
	}
}
