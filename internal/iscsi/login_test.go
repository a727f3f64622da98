package iscsi

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	testInitiator = "iqn.2026-11.softiser:initiator"
	testTarget    = "iqn.2026-11.softiser:disk0"
)

// loginPair is a login of both roles against each other.
type loginPair struct {
	i LoginInitiatorConfig
	t LoginTargetConfig
	g LoginGrant
}

func newLoginPair() *loginPair {
	p := &loginPair{}
	p.i = LoginInitiatorConfig{
		InitiatorName: testInitiator, TargetName: testTarget, ISID: ISID{0x40, 1, 2, 3, 4, 5},
		CID: 7, CmdSN: 100, ITT: 0x55, Settings: DefaultSettings(),
	}
	p.g = LoginGrant{Settings: DefaultSettings(), PortalGroupTag: 3, TargetAlias: "a disk"}
	p.t = LoginTargetConfig{
		Admit: func(id *LoginIdentity) (*LoginGrant, error) {
			if id.SessionType == NormalSession && id.TargetName != testTarget {
				return nil, Refuse(LoginNotFound, "no target %s", id.TargetName)
			}
			return &p.g, nil
		},
		Bind: func(r *LoginResult) (LoginBinding, error) {
			w := NewCommandWindow(r.CmdSN, 32)
			return LoginBinding{TSIH: 0x77, ExpCmdSN: w.ExpCmdSN, MaxCmdSN: w.MaxCmdSN}, nil
		},
	}
	return p
}

// trace is one exchanged PDU, copied.
type trace struct {
	BHS  BHS
	Data []byte
}

// run plays the login. It returns both results, both errors and what was said.
func (p *loginPair) run(t *testing.T) (*LoginInitiator, *LoginTarget, error, error, []trace) {
	t.Helper()
	i, tgt := NewLoginInitiator(p.i), NewLoginTarget(p.t)
	var req, resp PDU
	var said []trace
	i.Start(&req)
	for range 200 {
		said = append(said, trace{req.BHS, append([]byte(nil), req.Data...)})
		tdone, terr := tgt.Handle(&PDU{BHS: req.BHS, Data: append([]byte(nil), req.Data...)}, &resp)
		said = append(said, trace{resp.BHS, append([]byte(nil), resp.Data...)})
		idone, ierr := i.Next(&PDU{BHS: resp.BHS, Data: append([]byte(nil), resp.Data...)}, &req)
		if terr != nil || ierr != nil {
			return i, tgt, ierr, terr, said
		}
		if tdone != idone {
			t.Fatalf("target done %v, initiator done %v", tdone, idone)
		}
		if idone {
			return i, tgt, nil, nil, said
		}
	}
	t.Fatal("login does not end")
	return nil, nil, nil, nil, nil
}

func status(err error) LoginStatus {
	var e *LoginError
	if errors.As(err, &e) {
		return e.Status
	}
	return 0xffff
}

func TestLoginNormal(t *testing.T) {
	p := newLoginPair()
	i, tgt, ierr, terr, said := p.run(t)
	if ierr != nil || terr != nil {
		t.Fatal(ierr, terr)
	}
	if len(said) != 2 {
		t.Errorf("login took %d PDUs, want 2", len(said))
	}
	ir, tr := i.Result(), tgt.Result()
	if ir.TSIH != 0x77 || tr.TSIH != 0x77 || ir.Params.TargetPortalGroupTag != 3 || !ir.Params.HasPortalGroup || ir.Params.TargetAlias != "a disk" {
		t.Errorf("initiator's result %+v", ir)
	}
	if ir.ExpCmdSN != 100 || ir.MaxCmdSN != 131 || ir.StatSN != tr.StatSN {
		t.Errorf("numbers: initiator %+v, target %+v", ir, tr)
	}
	if tr.InitiatorName != testInitiator || tr.TargetName != testTarget || tr.CID != 7 || tr.CmdSN != 100 {
		t.Errorf("target's result %+v", tr)
	}
	samePolicy(t, &ir.Params, &tr.Params)
	first := said[1].BHS.LoginResponse()
	if !strings.Contains(string(said[1].Data), "TargetPortalGroupTag=3\x00") || first.CSG() != StageOperational || first.NSG() != StageFullFeature {
		t.Errorf("first response % x %q", said[1].BHS, said[1].Data)
	}
}

// samePolicy checks that both ends believe the same.
func samePolicy(t *testing.T, i, g *Params) {
	t.Helper()
	if i.MaxRecvDataSegmentLength != g.MaxXmitDataSegmentLength || i.MaxXmitDataSegmentLength != g.MaxRecvDataSegmentLength {
		t.Errorf("data segment lengths: initiator %d/%d, target %d/%d", i.MaxRecvDataSegmentLength, i.MaxXmitDataSegmentLength,
			g.MaxRecvDataSegmentLength, g.MaxXmitDataSegmentLength)
	}
	a, b := *i, *g
	for _, p := range []*Params{&a, &b} {
		p.MaxRecvDataSegmentLength, p.MaxXmitDataSegmentLength = 0, 0
		p.InitiatorAlias, p.MaxOutstandingUnexpectedPDUs = "", 0
	}
	if a != b {
		t.Errorf("the ends disagree:\ninitiator %+v\ntarget    %+v", a, b)
	}
}

func TestLoginISER(t *testing.T) {
	p := newLoginPair()
	p.i.Profile = KeyProfile{RDMA: RDMARequired, NoDigests: true, RecvDataSegmentLength: 65536, DeclareTaggedBuffer: true}
	p.t.Profile = KeyProfile{RDMA: RDMARequired, NoDigests: true, RecvDataSegmentLength: 8192}
	i, tgt, ierr, terr, _ := p.run(t)
	if ierr != nil || terr != nil {
		t.Fatal(ierr, terr)
	}
	ip := i.Result().Params
	if !ip.RDMAExtensions || ip.MaxXmitDataSegmentLength != 8192 || ip.MaxRecvDataSegmentLength != 65536 || !ip.TaggedBufferForSolicitedDataOnly {
		t.Errorf("%+v", ip)
	}
	samePolicy(t, &ip, &tgt.Result().Params)
}

// Only a target that knows the key of our own gets data segments that are longer than the
// default, whatever it answers to TargetRecvDataSegmentLength.
func TestLoginISERBuffers(t *testing.T) {
	for _, c := range []struct {
		sends, holds  uint32 // bytes: messages of the initiator, buffers of the target
		foreign       bool   // the target knows only the RFC's key
		offers, want  uint32
		offersLongest uint32 // 0: it does not
	}{
		{16384, 16384, false, 8192, 16384, 16384},
		{16384, 65536, false, 8192, 16384, 16384},
		{65536, 16384, false, 8192, 16384, 65536},
		{16384, 8192, false, 8192, 8192, 16384},
		{16384, 4096, false, 8192, 4096, 16384},
		{8192, 16384, false, 8192, 8192, 0},
		{4096, 16384, false, 4096, 4096, 0},
		{16384, 65536, true, 8192, 8192, 16384},
		{16384, 4096, true, 8192, 4096, 16384},
	} {
		i := NewNegotiation(RoleInitiator, DefaultSettings(), KeyProfile{RDMA: RDMARequired, NoDigests: true, SendDataSegmentLength: c.sends}, true)
		g := NewNegotiation(RoleTarget, DefaultSettings(), KeyProfile{RDMA: RDMARequired, NoDigests: true, RecvDataSegmentLength: c.holds}, true)
		text := i.Offer(nil)
		own := rules[KeyLongTargetRecv].name
		if c.foreign {
			text = bytes.ReplaceAll(text, []byte(own), []byte("X-other"))
		}
		offer := keysOf(t, text)
		answer, err := g.Receive(nil, offer, StageOperational)
		if err != nil {
			t.Fatal(err)
		}
		if c.foreign {
			answer = bytes.ReplaceAll(answer, []byte("X-other"), []byte(own))
		}
		if _, err := i.Receive(nil, keysOf(t, answer), StageOperational); err != nil || !i.Settled() {
			t.Fatalf("%+v: %v, settled %v", c, err, i.Settled())
		}
		said := map[string]string{}
		for _, kv := range keysOf(t, text) {
			said[strings.Replace(kv.Key, "X-other", own, 1)] = kv.Value
		}
		longest := ""
		if c.offersLongest > 0 {
			longest = fmt.Sprint(c.offersLongest)
		}
		if said["TargetRecvDataSegmentLength"] != fmt.Sprint(c.offers) || said[own] != longest {
			t.Errorf("%+v: offered %q", c, text)
		}
		ip, tp := i.Params(), g.Params()
		if ip.MaxXmitDataSegmentLength != c.want || tp.MaxRecvDataSegmentLength != c.want {
			t.Errorf("%+v: initiator %d, target %d", c, ip.MaxXmitDataSegmentLength, tp.MaxRecvDataSegmentLength)
		}
	}
}

func keysOf(t *testing.T, text []byte) []KeyValue {
	t.Helper()
	kvs, err := ParseText(text)
	if err != nil {
		t.Fatal(err)
	}
	return kvs
}

func TestLoginStreamUpgrade(t *testing.T) {
	p := newLoginPair()
	p.i.Profile.RDMA, p.t.Profile.RDMA = RDMAOptional, RDMAOptional
	i, tgt, ierr, terr, said := p.run(t)
	if ierr != nil || terr != nil {
		t.Fatal(ierr, terr)
	}
	if !i.Result().Params.RDMAExtensions || i.Result().Params.HeaderDigest != DigestNone {
		t.Errorf("%+v", i.Result().Params)
	}
	samePolicy(t, &i.Result().Params, &tgt.Result().Params)
	if !strings.Contains(string(said[0].Data), "HeaderDigest=None\x00") {
		t.Errorf("offer %q", said[0].Data)
	}
	p.t.Profile.RDMA = RDMANever
	i, tgt, ierr, terr, _ = p.run(t)
	if ierr != nil || terr != nil || i.Result().Params.RDMAExtensions || tgt.Result().Params.RDMAExtensions {
		t.Fatal("a plain target made it RDMA", ierr, terr)
	}
}

func TestLoginDiscovery(t *testing.T) {
	for _, profile := range []KeyProfile{{}, {RDMA: RDMARequired, NoDigests: true, RecvDataSegmentLength: 8192}} {
		p := newLoginPair()
		p.i.SessionType, p.i.TargetName = DiscoverySession, ""
		p.i.Profile, p.t.Profile = profile, profile
		i, tgt, ierr, terr, said := p.run(t)
		if ierr != nil || terr != nil {
			t.Fatal(ierr, terr)
		}
		if tgt.Result().Params.SessionType != DiscoverySession || i.Result().Params.RDMAExtensions || i.Result().Params.HasPortalGroup {
			t.Errorf("%+v", i.Result().Params)
		}
		samePolicy(t, &i.Result().Params, &tgt.Result().Params)
		for _, key := range []string{"RDMAExtensions", "InitialR2T", "MaxBurstLength"} {
			if strings.Contains(string(said[0].Data), key) {
				t.Errorf("discovery offers %s", key)
			}
		}
	}
}

func chapAuth(user, secret string) TargetAuth {
	return TargetAuth{Required: true, Lookup: func(u string) (Secret, bool) {
		return Secret(secret), u == user
	}}
}

func TestLoginCHAP(t *testing.T) {
	for _, alg := range []CHAPAlgorithm{CHAPMD5, CHAPSHA1, CHAPSHA256, CHAPSHA3} {
		for _, mutual := range []bool{false, true} {
			t.Run(fmt.Sprint(alg, mutual), func(t *testing.T) {
				p := newLoginPair()
				p.g.Auth = chapAuth("alice", "wonderland-1865")
				p.i.Auth = &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865"), Algorithms: []CHAPAlgorithm{alg}}
				if mutual {
					p.g.Auth.MutualUser, p.g.Auth.MutualSecret = "tgt", Secret("looking-glass-1871")
					p.i.Auth.MutualUser, p.i.Auth.MutualSecret = "tgt", Secret("looking-glass-1871")
				}
				i, tgt, ierr, terr, said := p.run(t)
				if ierr != nil || terr != nil {
					t.Fatal(ierr, terr)
				}
				if tgt.Result().AuthUser != "alice" || i.Result().AuthUser != "alice" {
					t.Errorf("user %q", tgt.Result().AuthUser)
				}
				samePolicy(t, &i.Result().Params, &tgt.Result().Params)
				for _, s := range said {
					if strings.Contains(string(s.Data), "wonderland") || strings.Contains(string(s.Data), "glass") {
						t.Error("a secret is on the wire")
					}
				}
				if len(said) != 8 {
					t.Errorf("%d PDUs", len(said))
				}
			})
		}
	}
}

func TestLoginRefused(t *testing.T) {
	alice := &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865")}
	withMutual := func(m string) *InitiatorAuth {
		a := *alice
		a.MutualSecret = Secret(m)
		return &a
	}
	for _, c := range []struct {
		name   string
		change func(*loginPair)
		want   LoginStatus
		says   string // in the error of the side that knows
		ours   bool   // raised by the initiator
	}{
		{"unknown target", func(p *loginPair) { p.i.TargetName = "iqn.2026-11.x:no" }, LoginNotFound, "no target iqn.2026-11.x:no", false},
		{"no initiator name", func(p *loginPair) { p.i.InitiatorName = "" }, LoginMissingParameter, "InitiatorName", false},
		{"no target name", func(p *loginPair) { p.i.TargetName = "" }, LoginMissingParameter, "TargetName", false},
		{"ACL", func(p *loginPair) {
			p.t.Admit = func(id *LoginIdentity) (*LoginGrant, error) {
				return nil, Refuse(LoginForbidden, "%s is not on the list", id.InitiatorName)
			}
		}, LoginForbidden, "is not on the list", false},
		{"broken policy", func(p *loginPair) {
			p.t.Admit = func(*LoginIdentity) (*LoginGrant, error) { return nil, errors.New("disk on fire") }
		}, LoginTargetFailure, "disk on fire", false},
		{"bind", func(p *loginPair) {
			p.t.Bind = func(*LoginResult) (LoginBinding, error) {
				return LoginBinding{}, Refuse(LoginOutOfResources, "64 sessions are open")
			}
		}, LoginOutOfResources, "64 sessions", false},
		{"CHAP required, security skipped", func(p *loginPair) { p.g.Auth = chapAuth("alice", "x") }, LoginAuthFailure, "no CHAP user configured", false},
		{"CHAP required, none offered", func(p *loginPair) {
			p.g.Auth = TargetAuth{Required: true}
			p.i.Auth = alice
		}, LoginAuthFailure, "requires CHAP", false},
		{"CHAP offered, target has no users", func(p *loginPair) { p.i.Auth = alice }, LoginAuthFailure, "has no user for it", false},
		{"unknown user", func(p *loginPair) {
			p.g.Auth = chapAuth("bob", "x")
			p.i.Auth = alice
		}, LoginAuthFailure, `user "alice" is unknown`, false},
		{"wrong secret", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1866")
			p.i.Auth = alice
		}, LoginAuthFailure, "wrong response", false},
		{"no common algorithm", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.g.Auth.Algorithms = []CHAPAlgorithm{CHAPSHA3}
			a := *alice
			a.Algorithms = []CHAPAlgorithm{CHAPMD5}
			p.i.Auth = &a
		}, LoginAuthFailure, "SHA3-256", false},
		{"mutual without target secret", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.i.Auth = withMutual("looking-glass-1871")
		}, LoginAuthFailure, "no secret of its own", false},
		{"mutual, wrong target secret", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.g.Auth.MutualSecret = Secret("something-else-entirely")
			p.i.Auth = withMutual("looking-glass-1871")
		}, LoginAuthFailure, "mutual CHAP", true},
		{"mutual, wrong target name", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.g.Auth.MutualUser, p.g.Auth.MutualSecret = "somebody", Secret("looking-glass-1871")
			p.i.Auth = withMutual("looking-glass-1871")
			p.i.Auth.MutualUser = "tgt"
		}, LoginAuthFailure, `calls itself "somebody"`, true},
		{"mutual, same secret", func(p *loginPair) {
			p.g.Auth = chapAuth("alice", "wonderland-1865")
			p.i.Auth = withMutual("wonderland-1865")
		}, LoginAuthFailure, "same secret", true},
		{"RDMA required, stream target", func(p *loginPair) { p.i.Profile.RDMA = RDMARequired }, LoginInitiatorFailure, "RDMAExtensions", true},
		{"RDMA connection, plain initiator", func(p *loginPair) { p.t.Profile.RDMA = RDMARequired }, LoginInitiatorFailure, "RDMAExtensions", false},
		{"digest required by the target", func(p *loginPair) {
			p.g.Settings.HeaderDigest = []Digest{DigestCRC32C}
			p.i.Settings.HeaderDigest = []Digest{DigestNone}
		}, LoginInitiatorFailure, "HeaderDigest", false},
		{"digest required by the initiator", func(p *loginPair) {
			p.g.Settings.DataDigest = []Digest{DigestNone}
			p.i.Settings.DataDigest = []Digest{DigestCRC32C}
		}, LoginInitiatorFailure, "DataDigest", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newLoginPair()
			c.change(p)
			_, _, ierr, terr, _ := p.run(t)
			err := terr
			if c.ours {
				err = ierr
			}
			if status(err) != c.want || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v (other side: %v)", err, map[bool]error{true: terr, false: ierr}[c.ours])
			}
			if !c.ours {
				var e *LoginError
				if !errors.As(ierr, &e) || !e.Remote || e.Status != c.want {
					t.Errorf("the initiator learned %v", ierr)
				}
			}
		})
	}
}

func TestLoginRedirect(t *testing.T) {
	p := newLoginPair()
	p.t.Admit = func(*LoginIdentity) (*LoginGrant, error) { return nil, Redirect(false, "[::1]:3261,2") }
	_, _, ierr, _, _ := p.run(t)
	var e *LoginError
	if !errors.As(ierr, &e) || e.Status != LoginMovedTemporarily || e.Redirect != "[::1]:3261,2" {
		t.Fatal(ierr)
	}
}

// The target brings up what the initiator left out but it cannot accept.
func TestLoginTargetDemands(t *testing.T) {
	p := newLoginPair()
	p.g.Settings.ImmediateData = false
	p.g.Settings.MaxBurstLength = 65536
	p.g.Settings.FirstBurstLength = 16384
	tgt := NewLoginTarget(p.t)
	say := func(text string, transit bool) (string, LoginResponse, bool) {
		t.Helper()
		var req, resp PDU
		q := req.BHS.NewLoginRequest()
		q.SetStages(transit, false, StageOperational, StageFullFeature)
		req.Data = []byte(text)
		done, err := tgt.Handle(&req, &resp)
		if err != nil {
			t.Fatal(err)
		}
		return string(resp.Data), resp.BHS.LoginResponse(), done
	}
	got, r, done := say("InitiatorName=i\x00TargetName="+testTarget+"\x00", true)
	if done || r.Transit() || !strings.Contains(got, "ImmediateData=No\x00") || !strings.Contains(got, "MaxBurstLength=65536\x00") || !strings.Contains(got, "FirstBurstLength=16384\x00") {
		t.Fatalf("%q", got)
	}
	got, r, done = say("ImmediateData=No\x00MaxBurstLength=32768\x00FirstBurstLength=8192\x00", true)
	if !done || !r.Transit() || got != "" {
		t.Fatalf("%q %v", got, done)
	}
	if q := tgt.Result().Params; q.ImmediateData || q.MaxBurstLength != 32768 || q.FirstBurstLength != 8192 {
		t.Fatalf("%+v", q)
	}
}

// Text in pieces, one byte per PDU, and answers longer than a PDU.
func TestLoginContinuedText(t *testing.T) {
	p := newLoginPair()
	tgt := NewLoginTarget(p.t)
	text := "InitiatorName=i\x00TargetName=" + testTarget + "\x00"
	for i := 0; i < 700; i++ {
		text += fmt.Sprintf("X-softiser.k%d=1\x00", i)
	}
	var resp PDU
	send := func(data string, more, transit bool) (bool, LoginResponse) {
		t.Helper()
		var req PDU
		q := req.BHS.NewLoginRequest()
		q.SetStages(transit, more, StageOperational, StageFullFeature)
		req.Data = []byte(data)
		done, err := tgt.Handle(&req, &resp)
		if err != nil {
			t.Fatal(err)
		}
		return done, resp.BHS.LoginResponse()
	}
	for len(text) > 5000 {
		done, r := send(text[:5000], true, false)
		if done || r.Transit() || r.Continue() || len(resp.Data) != 0 {
			t.Fatalf("a piece was answered with % x %q", *r.BHS, resp.Data)
		}
		text = text[5000:]
	}
	done, r := send(text, false, true)
	var answer []byte
	rounds := 0
	for !done {
		if !r.Continue() || r.Transit() || len(resp.Data) != DefaultMRDSL {
			t.Fatalf("% x, %d bytes", *r.BHS, len(resp.Data))
		}
		answer = append(answer, resp.Data...)
		done, r = send("", false, true)
		rounds++
	}
	answer = append(answer, resp.Data...)
	if rounds == 0 || strings.Count(string(answer), "=NotUnderstood\x00") != 700 {
		t.Fatalf("%d rounds, %d bytes", rounds, len(answer))
	}
}

// Requests that break the state machine, sent raw.
func TestLoginBadRequests(t *testing.T) {
	names := "InitiatorName=i\x00TargetName=" + testTarget + "\x00"
	good := func() *PDU {
		var p PDU
		p.BHS.NewLoginRequest().SetStages(false, false, StageOperational, 0)
		p.Data = []byte(names)
		return &p
	}
	for _, c := range []struct {
		name  string
		first func() *PDU
		then  func(*PDU)
		want  LoginStatus
	}{
		{"wrong opcode", nil, func(p *PDU) { p.BHS.NewNopOut() }, LoginInvalidRequest},
		{"AHS", nil, func(p *PDU) { p.BHS.SetAHSLen(8) }, LoginInvalidRequest},
		{"T and C", nil, func(p *PDU) { p.BHS[1] |= 0xc0 }, LoginInitiatorFailure},
		{"version", nil, func(p *PDU) { p.BHS.LoginRequest().SetVersions(2, 1) }, LoginBadVersion},
		{"begins in full feature phase", nil, func(p *PDU) { p.BHS.LoginRequest().SetStages(false, false, 3, 0) }, LoginInvalidRequest},
		{"begins in stage 2", nil, func(p *PDU) { p.BHS.LoginRequest().SetStages(false, false, 2, 0) }, LoginInvalidRequest},
		{"transit to stage 2", nil, func(p *PDU) { p.BHS.LoginRequest().SetStages(true, false, 1, 2) }, LoginInvalidRequest},
		{"transit to the same stage", nil, func(p *PDU) { p.BHS.LoginRequest().SetStages(true, false, 1, 1) }, LoginInvalidRequest},
		{"transit backwards", nil, func(p *PDU) { p.BHS.LoginRequest().SetStages(true, false, 1, 0) }, LoginInvalidRequest},
		{"stage changed", good, func(p *PDU) { p.BHS.LoginRequest().SetStages(false, false, 0, 0) }, LoginInvalidRequest},
		{"ISID changed", good, func(p *PDU) { p.BHS.LoginRequest().SetISID(ISID{9}) }, LoginInitiatorFailure},
		{"CID changed", good, func(p *PDU) { p.BHS.LoginRequest().SetCID(9) }, LoginInitiatorFailure},
		{"TSIH changed", good, func(p *PDU) { p.BHS.LoginRequest().SetTSIH(9) }, LoginInitiatorFailure},
		{"no equals sign", nil, func(p *PDU) { p.Data = []byte("hello\x00") }, LoginInitiatorFailure},
		{"key twice", good, func(p *PDU) { p.Data = []byte("MaxConnections=1\x00MaxConnections=2\x00") }, LoginInitiatorFailure},
		{"session type", nil, func(p *PDU) { p.Data = []byte(names + "SessionType=Party\x00") }, LoginBadSessionType},
		{"too much text", nil, func(p *PDU) { p.Data = make([]byte, MaxLoginText+1) }, LoginInitiatorFailure},
		{"first burst beyond max burst", good, func(p *PDU) {
			p.Data = []byte("FirstBurstLength=65536\x00")
		}, LoginSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			tgt := NewLoginTarget(newLoginPair().t)
			var resp PDU
			if c.first != nil {
				if _, err := tgt.Handle(c.first(), &resp); err != nil {
					t.Fatal(err)
				}
			}
			p := good()
			if c.first != nil {
				p.Data = nil
			}
			c.then(p)
			_, err := tgt.Handle(p, &resp)
			if c.want == LoginSuccess {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if status(err) != c.want || resp.BHS.LoginResponse().Status() != c.want {
				t.Fatalf("got %v, status %v", err, resp.BHS.LoginResponse().Status())
			}
			if _, err := tgt.Handle(good(), &resp); status(err) != LoginInvalidRequest {
				t.Fatalf("after the end: %v", err)
			}
		})
	}
}

// An initiator whose random numbers repeat the target's challenge would be answered
// with its own response (RFC 7143 §12.1.3).
func TestCHAPRepeatedChallenge(t *testing.T) {
	auth := &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865"), MutualSecret: Secret("looking-glass-1871")}
	size := CHAPSHA256.new().Size()
	for _, same := range []bool{false, true} {
		random := bytes.Repeat([]byte{7}, 1+size)
		theirs := bytes.Clone(random[1:])
		if !same {
			theirs[0]++
		}
		c := chapInitiator{auth: auth}
		_, err := c.respond(nil, &chapKeys{algorithms: []CHAPAlgorithm{CHAPSHA256}, id: 1, challenge: theirs}, bytes.NewReader(random))
		if (err != nil) != same {
			t.Errorf("the same challenge: %v, error %v", same, err)
		}
	}
}

// An algorithm that the initiator has not offered is not taken from a target.
func TestCHAPAlgorithmNotOffered(t *testing.T) {
	for alg, good := range map[CHAPAlgorithm]bool{CHAPSHA256: true, CHAPMD5: false} {
		c := chapInitiator{auth: &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865"), Algorithms: []CHAPAlgorithm{CHAPSHA256, CHAPSHA3}}}
		_, err := c.respond(nil, &chapKeys{algorithms: []CHAPAlgorithm{alg}, id: 1, challenge: make([]byte, 16)}, nil)
		if (err == nil) != good {
			t.Errorf("%v: %v", alg, err)
		}
	}
}

// CHAP keys in the wrong order, the reflection attack, and one secret for both directions.
func TestLoginCHAPAttacks(t *testing.T) {
	targets := Secret("looking-glass-1871")
	start := func() (*LoginTarget, func(string) (string, error)) {
		p := newLoginPair()
		p.g.Auth = chapAuth("alice", "wonderland-1865")
		p.g.Auth.MutualUser, p.g.Auth.MutualSecret = "tgt", targets
		tgt := NewLoginTarget(p.t)
		return tgt, func(text string) (string, error) {
			var req, resp PDU
			req.BHS.NewLoginRequest().SetStages(false, false, StageSecurity, 0)
			req.Data = []byte(text)
			_, err := tgt.Handle(&req, &resp)
			return string(resp.Data), err
		}
	}
	hello := "InitiatorName=i\x00TargetName=" + testTarget + "\x00AuthMethod=CHAP\x00"
	for _, seq := range [][]string{
		{hello, "CHAP_N=alice\x00CHAP_R=0x00\x00"},
		{hello, "AuthMethod=CHAP\x00"},
		{hello, "CHAP_A=5\x00", "CHAP_A=5\x00"},
		{hello, "CHAP_A=5\x00", "CHAP_N=alice\x00"},
		{hello, "CHAP_A=5\x00", "CHAP_R=0x00\x00"},
		{hello, "CHAP_A=99,banana\x00"},
		{hello, "CHAP_A=5\x00CHAP_A=5\x00"},
		{hello, "CHAP_A=5\x00", "CHAP_N=alice\x00CHAP_R=0xzz\x00"},
		{hello, "CHAP_A=5\x00", "CHAP_N=alice\x00CHAP_R=12\x00"},
		{"InitiatorName=i\x00TargetName=" + testTarget + "\x00CHAP_A=5\x00"},
	} {
		_, say := start()
		var err error
		for i, s := range seq {
			if _, err = say(s); err != nil && i < len(seq)-1 {
				t.Fatalf("%q: %v", seq[:i+1], err)
			}
		}
		if status(err) != LoginAuthFailure {
			t.Errorf("%q: %v", seq, err)
		}
	}

	for _, c := range []struct {
		secret  Secret // the target's
		reflect bool
		says    string
	}{{targets, true, "reflection"}, {Secret("wonderland-1865"), false, "same secret"}} {
		targets = c.secret
		_, say := start()
		if _, err := say(hello); err != nil {
			t.Fatal(err)
		}
		text, err := say("CHAP_A=5\x00")
		if err != nil {
			t.Fatal(err)
		}
		kvs, _ := ParseText([]byte(text))
		k, err := parseCHAP(kvs)
		if err != nil {
			t.Fatal(err)
		}
		answer := CHAPResponse(CHAPMD5, byte(k.id), Secret("wonderland-1865"), k.challenge)
		if !c.reflect {
			k.challenge[0]++
		}
		_, err = say("CHAP_N=alice\x00CHAP_R=" + formatBinary(answer) + "\x00CHAP_I=1\x00CHAP_C=" + formatBinary(k.challenge) + "\x00")
		if status(err) != LoginAuthFailure || !strings.Contains(err.Error(), c.says) {
			t.Fatal(err)
		}
	}
}

func TestSecretDoesNotShow(t *testing.T) {
	s := Secret("hunter2")
	a := InitiatorAuth{User: "u", Secret: s, MutualSecret: s}
	for _, out := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q %x %d", s, a, a, s, s, s, s), s.String(), s.GoString()} {
		if strings.Contains(out, "hunter") || strings.Contains(out, "68756e") || strings.Contains(out, "104 117") {
			t.Errorf("printed as %s", out)
		}
	}
}

// Keys that belong together: one without the other is refused (RFC 7143 §12.1.3).
func TestCHAPIncomplete(t *testing.T) {
	challenge := []byte("0123456789abcdef")
	auth := &InitiatorAuth{User: "alice", Secret: Secret("wonderland-1865"), Algorithms: []CHAPAlgorithm{CHAPMD5, CHAPSHA256}}
	for name, tt := range map[string]struct {
		keys chapKeys
		ok   bool
	}{
		"all":            {chapKeys{algorithms: []CHAPAlgorithm{CHAPMD5}, id: 0, challenge: challenge}, true},
		"without CHAP_A": {chapKeys{id: 1, challenge: challenge}, false},
		"two algorithms": {chapKeys{algorithms: []CHAPAlgorithm{CHAPMD5, CHAPSHA256}, id: 1, challenge: challenge}, false},
		"without CHAP_I": {chapKeys{algorithms: []CHAPAlgorithm{CHAPMD5}, id: -1, challenge: challenge}, false},
		"without CHAP_C": {chapKeys{algorithms: []CHAPAlgorithm{CHAPMD5}, id: 1}, false},
	} {
		c := chapInitiator{auth: auth}
		if _, err := c.respond(nil, &tt.keys, nil); (err == nil) != tt.ok {
			t.Errorf("the target's challenge %s: %v", name, err)
		}
	}
	secret, mutual := Secret("wonderland-1865"), Secret("looking-glass-1871")
	proof := CHAPResponse(CHAPMD5, 7, secret, challenge)
	for name, tt := range map[string]struct {
		keys  chapKeys
		ok    bool
		reply string
	}{
		"alone":                     {chapKeys{hasName: true, name: "alice", response: proof, id: -1}, true, ""},
		"with a challenge":          {chapKeys{hasName: true, name: "alice", response: proof, id: 0, challenge: []byte("x")}, true, "CHAP_N=target\x00CHAP_R=" + formatBinary(CHAPResponse(CHAPMD5, 0, mutual, []byte("x"))) + "\x00"},
		"without CHAP_N":            {chapKeys{response: proof, id: -1}, false, ""},
		"without CHAP_R":            {chapKeys{hasName: true, name: "alice", id: -1}, false, ""},
		"with CHAP_I alone":         {chapKeys{hasName: true, name: "alice", response: proof, id: 0}, false, ""},
		"with CHAP_C alone":         {chapKeys{hasName: true, name: "alice", response: proof, id: -1, challenge: []byte("x")}, false, ""},
		"of somebody else":          {chapKeys{hasName: true, name: "bob", response: proof, id: -1}, false, ""},
		"of nobody, with no secret": {chapKeys{hasName: true, name: "bob", response: CHAPResponse(CHAPMD5, 7, nil, challenge), id: -1}, false, ""},
	} {
		c := chapTarget{alg: CHAPMD5, id: 7, challenge: challenge, auth: &TargetAuth{MutualUser: "target", MutualSecret: mutual,
			Lookup: func(user string) (Secret, bool) {
				if user == "alice" {
					return secret, true
				}
				return nil, false
			}}}
		reply, err := c.verify(nil, &tt.keys)
		if (err == nil) != tt.ok || string(reply) != tt.reply {
			t.Errorf("the initiator's answer %s: %q, %v", name, reply, err)
		}
	}
	// Numbers that no algorithm of ours has are passed over, whatever they look like.
	for text, want := range map[string][]CHAPAlgorithm{"5": {CHAPMD5}, "256,261,0x107": {}, "x,5,-1": {CHAPMD5}, "7,0x5": {CHAPSHA256, CHAPMD5}} {
		k, err := parseCHAP([]KeyValue{{keyCHAPA, text}})
		if err != nil || k.algorithms == nil || !slices.Equal(k.algorithms, want) {
			t.Errorf("CHAP_A=%s: %v, %v", text, k.algorithms, err)
		}
	}
}
