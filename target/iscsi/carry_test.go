package iscsi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/internal/loopback"
	"softiser/internal/spc"
	"softiser/target/portal"
	"softiser/target/scsi"
)

func never(string) bool { return false }

// carried is what a server hands over, as the next process reads it.
func (s *server) carried(t *testing.T) (k Carried, left []string) {
	t.Helper()
	s.Handover().Rest(t.Context())
	k, left, err := s.Handover().Carry(never)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Discard)
	var fds []int
	for i := range k.Sessions {
		for j := range k.Sessions[i].Conns {
			c := &k.Sessions[i].Conns[j]
			c.File = len(fds)
			fds = append(fds, c.FD)
			c.FD = -1
		}
	}
	b, err := json.Marshal(&k)
	if err != nil {
		t.Fatal(err)
	}
	was := k
	k = Carried{}
	if err := json.Unmarshal(b, &k); err != nil {
		t.Fatal(err)
	}
	for i := range k.Sessions {
		k.Sessions[i].Born, was.Sessions[i].Born = time.Time{}, time.Time{}
		for j := range k.Sessions[i].Conns {
			c := &k.Sessions[i].Conns[j]
			c.Opened, was.Sessions[i].Conns[j].Opened = time.Time{}, time.Time{}
			c.FD, was.Sessions[i].Conns[j].FD = fds[c.File], fds[c.File]
		}
	}
	if !reflect.DeepEqual(k, was) {
		t.Fatalf("the JSON of\n%+v\nis that of\n%+v", was, k)
	}
	return k, left
}

// TestCarry: a session goes on at another server with its numbers, what its units have to tell
// it and what has been changed of them; whatever waits in the socket is served there.
func TestCarry(t *testing.T) {
	for _, kv := range [][]string{nil, {"HeaderDigest=CRC32C", "DataDigest=CRC32C"}} {
		old, now := serve(t, nil), serve(t, nil)
		r := old.session(kv...)
		data := bytes.Repeat([]byte("sessions"), 64)
		r.write10(1, data)
		if err := old.SetAccessState(testIQN, 0, 1, scsi.ActiveNonOptimized); err != nil {
			t.Fatal(err)
		}
		k, left := old.carried(t)
		if len(k.Sessions) != 1 || len(left) != 0 {
			t.Fatalf("%+v, %v", k, left)
		}
		first := r.command(command{cdb: testUnitReady}) // nobody reads it before the next server does
		if err := now.Handover().Check(&k, 1); err != nil {
			t.Fatal(err)
		}
		if err := now.Handover().Adopt(&k); err != nil {
			t.Fatal(err)
		}
		if res := r.finish(first, nil); res.status != 2 || spc.ASC(uint16(res.sense[12])<<8|uint16(res.sense[13])) != spc.ASCALUAStateChanged {
			t.Fatalf("%+v", res)
		}
		r.ready()
		r.write10(7, data)
		if got := r.read10(7, 1); !bytes.Equal(got, data) {
			t.Fatal("not what was written")
		}
		st := now.Status()
		if len(st.Sessions) != 1 || st.Sessions[0].TSIH != r.tsih || st.Targets[0].LUNs[0].Access[1] != scsi.ActiveNonOptimized {
			t.Fatalf("%+v", st)
		}
		if n := old.Status().Sessions[0].Writes; n != 1 {
			t.Fatalf("the old server has served %d WRITEs", n)
		}
		again := Carried{Sessions: []CarriedSession{k.Sessions[0]}}
		if err := now.Handover().Adopt(&again); err == nil || !strings.Contains(err.Error(), "no descriptor") {
			t.Fatalf("a session of which the descriptor has been taken: %v", err)
		}
		r.logout()
	}
}

// TestCarryISER: a session of iSER goes on at another server, also one whose login was over the
// stream; reads and writes find their memory there, and the initiator notices nothing.
func TestCarryISER(t *testing.T) {
	for _, kind := range []portal.Transport{portal.RDMA, transportStream} {
		change := func(c *serverConfig, _ *Target) { c.Portals[0].StreamLogin = kind == transportStream }
		old := serve(t, change)
		m := old.connect(kind, iser.ConnConfig{})
		m.login()
		m.ready()
		data := pattern(1<<18, 3)
		for range 3 {
			m.good(cdbRW10(0x2a, 0, 512), nil, data)
			now := serve(t, change)
			k, left := old.carried(t)
			if len(k.Sessions) != 1 || len(left) != 0 || !k.Sessions[0].OverRDMA() {
				t.Fatalf("%+v, %v", k, left)
			}
			itt, _ := m.cmd(testUnitReady, nil, nil) // nobody reads it before the next server does
			if err := now.Handover().Check(&k, 1); err != nil {
				t.Fatal(err)
			}
			plain := k.Sessions[0]
			plain.Conns = append([]CarriedConnection(nil), plain.Conns...)
			plain.Conns[0].RDMA = nil
			if now.Handover().Check(&Carried{Sessions: []CarriedSession{plain}}, 1) == nil {
				t.Error("a session of iSER without its queue pair: taken")
			}
			if err := now.Handover().Adopt(&k); err != nil {
				t.Fatal(err)
			}
			if p := m.recv(); p.BHS.ITT() != itt {
				t.Fatalf("%v for %#x", p.BHS.Opcode(), p.BHS.ITT())
			}
			m.ready()
			m.good(cdbRW10(0x2a, 0, 512), nil, data)
			back := make([]byte, len(data))
			m.good(cdbRW10(0x28, 0, 512), back, nil)
			mustEqual(t, "read back", back, data)
			if st := now.Status().Sessions; len(st) != 1 || st[0].Transport != wireName(portal.RDMA) {
				t.Fatalf("%+v", st)
			}
			old = now
		}
	}
}

// TestCarryReserve: what a session has reserved by RESERVE of SPC-2 is its own at another server,
// from the first command of others on, and ends with it.
func TestCarryReserve(t *testing.T) {
	old, now := serve(t, nil), serve(t, nil)
	r := old.session()
	other := old.dial()
	other.isid[5] = 9
	other.mustLogin(testIQN)
	other.ready()
	if res := r.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 {
		t.Fatalf("RESERVE: %+v", res)
	}
	k, left := old.carried(t)
	if len(k.Sessions) != 2 || len(left) != 0 {
		t.Fatalf("%+v, %v", k, left)
	}
	if err := now.Handover().Adopt(&k); err != nil {
		t.Fatal(err)
	}
	const conflict = 0x18
	if res := other.do(command{cdb: testUnitReady}, nil); res.status != conflict {
		t.Fatalf("%+v", res)
	}
	r.write10(1, make([]byte, 512))
	r.logout()
	eventually(t, "the session has ended", func() bool { return len(now.Status().Sessions) == 1 })
	if res := other.do(command{cdb: testUnitReady}, nil); res.status != 0 {
		t.Fatalf("%+v", res)
	}
}

// TestCarryConnections: a session of several connections goes over whole, and serves commands that
// alternate between them; so does one that has proved who it is, under its name.
func TestCarryConnections(t *testing.T) {
	old, now := serve(t, several(2)), serve(t, several(2))
	r := old.session("MaxConnections=2")
	x := old.another(r, 1, "HeaderDigest=CRC32C", "DataDigest=CRC32C")
	k, left := old.carried(t)
	if len(k.Sessions) != 1 || len(k.Sessions[0].Conns) != 2 || len(left) != 0 {
		t.Fatalf("%+v, %v", k, left)
	}
	if err := now.Handover().Adopt(&k); err != nil {
		t.Fatal(err)
	}
	data := pattern(512, 7)
	for lba := range uint32(4) {
		r.write10(lba, data)
		x.cmdSN = r.cmdSN
		if got := x.read10(lba, 1); !bytes.Equal(got, data) {
			t.Fatal("not what was written")
		}
		r.cmdSN = x.cmdSN
	}
	if st := now.Status().Sessions; len(st) != 1 || len(st[0].Connections) != 2 {
		t.Fatalf("%+v", st)
	}

	secret := func(_ *serverConfig, tgt *Target) {
		tgt.Auth = Auth{Users: []Credential{{"alice", "initiator-secret"}}}
	}
	old, now = serve(t, secret), serve(t, secret)
	r = old.dial()
	if p, _, _ := r.chap(testIQN, "7", "alice", "initiator-secret", false); p.LoginResponse().Status() != iscsi.LoginSuccess {
		t.Fatalf("status %04x", uint16(p.LoginResponse().Status()))
	}
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature)
	r.loginResponse()
	r.ready()
	if k, left = old.carried(t); len(k.Sessions) != 1 || k.Sessions[0].User != "alice" {
		t.Fatalf("%+v, %v", k, left)
	}
	if err := now.Handover().Adopt(&k); err != nil {
		t.Fatal(err)
	}
	r.ready()
	if st := now.Status().Sessions; len(st) != 1 || st[0].User != "alice" {
		t.Fatalf("%+v", st)
	}
	r.logout()
}

// TestRestISERWaits: over iSER as well what has begun ends and is answered, and what comes
// behind it waits until the session goes on.
func TestRestISERWaits(t *testing.T) {
	s := serve(t, nil)
	m := s.connect(portal.RDMA, iser.ConnConfig{})
	m.login()
	m.ready()
	release := s.dev.hold()
	defer release()
	itt, _ := m.cmd(cdbRW10(0x28, 0, 8), make([]byte, 4096), nil)
	eventually(t, "the command waits", func() bool { return s.dev.held() == 1 })
	over := make(chan struct{})
	go func() { s.Handover().Rest(t.Context()); close(over) }()
	eventually(t, "the window is shut", func() bool {
		x := s.sessionList(nil)[0]
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.order.seq.win.shut
	})
	release()
	<-over
	if p := m.recv(); p.BHS.ITT() != itt {
		t.Fatalf("%v", p.BHS.Opcode())
	}
	k, left, err := s.Handover().Carry(never)
	k.Discard()
	if err != nil || len(k.Sessions) != 1 || len(left) != 0 {
		t.Fatalf("%v, %v", left, err)
	}
	later, _ := m.cmd(testUnitReady, nil, nil)
	s.Handover().Resume()
	if p := m.recv(); p.BHS.ITT() != later {
		t.Fatalf("%v", p.BHS.Opcode())
	}
	m.good(cdbRW10(0x2a, 0, 512), nil, pattern(1<<18, 4))
}

// TestRestWaits: the initiator may send the data that it owes; commands are not taken any more
// then, nor does the window open. Resumed, the session goes on.
func TestRestWaits(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	w := r.command(command{cdb: cdbRW10(0x2a, 0, 8), write: true, edtl: 4096})
	p := r.expect(iscsi.OpR2T)
	over := make(chan struct{})
	go func() { s.Handover().Rest(t.Context()); close(over) }()
	eventually(t, "the window is shut", func() bool {
		x := s.sessionList(nil)[0]
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.order.seq.win.shut
	})
	q := r.command(command{cdb: testUnitReady}) // in front of the data: served
	if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != q {
		t.Fatalf("%v", p.BHS)
	}
	most := r.maxSN
	r.dataOut(w, p.R2T().TTT(), 0, 0, make([]byte, 4096), true)
	if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != w || p.MaxCmdSN() != most {
		t.Fatalf("MaxCmdSN %d has become %d", most, p.MaxCmdSN())
	}
	<-over
	later := r.command(command{cdb: testUnitReady})
	s.Handover().Resume()
	if res := r.finish(later, nil); res.status != 0 || r.maxSN == most {
		t.Fatalf("%+v, MaxCmdSN %d", res, r.maxSN)
	}
	r.logout()
}

// TestRestWindow: an initiator that has used the whole window is told when it opens again.
func TestRestWindow(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 2 })
	r := s.session()
	s.Handover().Rest(t.Context())
	x := s.sessionList(nil)[0]
	x.mu.Lock()
	x.order.seq.win.MaxCmdSN = x.order.seq.win.ExpCmdSN - 1 // as if it had
	x.mu.Unlock()
	x.order.seq.win.told.Store(x.order.seq.win.ExpCmdSN - 1)
	s.Handover().Resume()
	if p := r.expect(iscsi.OpNopIn); p.MaxCmdSN() != r.cmdSN+1 {
		t.Fatalf("MaxCmdSN %d, CmdSN %d", p.MaxCmdSN(), r.cmdSN)
	}
}

// TestRestStays: what cannot be carried, or does not come to rest, is told and goes on.
func TestRestStays(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.ErrorRecoveryLevel = 2 })
	level := s.session("ErrorRecoveryLevel=1")
	busy := s.dial()
	busy.isid[5] = 9
	busy.mustLogin(testIQN, "ErrorRecoveryLevel=0")
	busy.ready()
	found := s.dial()
	found.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+found.name, "SessionType=Discovery")
	found.loginResponse()
	release := s.dev.hold()
	defer release()
	q := busy.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
	eventually(t, "the command waits", func() bool { return s.dev.held() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Handover().Rest(ctx)
	_, left, err := s.Handover().Carry(never)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{errStaysLevel, errStaysBusy, errStaysDiscovery} {
		if len(left) != 3 || !strings.Contains(left[i], want.Error()) {
			t.Fatalf("want %v: %q", want, left)
		}
	}
	release()
	if res := busy.finish(q, nil); res.status != 0 {
		t.Fatalf("%+v", res)
	}
	if res := level.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 { // RESERVE
		t.Fatalf("%+v", res)
	}
	tested := s.dev.hold()
	defer tested()
	if res := level.do(command{cdb: []byte{0x1D, 2 << 5, 0, 0, 0, 0}}, nil); res.status != 0 { // SEND DIAGNOSTIC, in the background
		t.Fatalf("%+v", res)
	}
	eventually(t, "the self-test waits", func() bool { return s.dev.held() == 1 })
	s.Handover().Rest(t.Context())
	_, left, err = s.Handover().Carry(func(v string) bool { return v == "disk0" })
	if err != nil || len(left) != 4 {
		t.Fatalf("%v, %q", err, left)
	}
	for i, want := range []string{"self-test of LUN 0 of " + testIQN, "; its reservation (RESERVE) of LUN 0 ends", "opened anew; its initiator logs in again", "logs in again"} {
		if !strings.Contains(left[i], want) || i > 1 && strings.Contains(left[i], "RESERVE") {
			t.Errorf("want %q: %q", want, left[i])
		}
	}
	tested()
	s.Handover().Resume()
	if res := level.do(command{cdb: []byte{0x17, 0, 0, 0, 0, 0}}, nil); res.status != 0 { // RELEASE
		t.Fatalf("%+v", res)
	}
	busy.ready()
	level.ready()
}

// TestCarryOfAnyInitiator: whatever an initiator has called itself, its session goes over, and those of
// others do. A login takes names that are of no form of RFC 7143.
func TestCarryOfAnyInitiator(t *testing.T) {
	s := serve(t, nil)
	r := s.dial()
	r.name = "Nobody's " + strings.Repeat("Ⱥ", 71) // in lower case these are longer
	r.mustLogin(testIQN)
	r.ready()
	k, _ := s.carried(t)
	if err := s.Handover().Check(&k, 1); err != nil || len(k.Sessions) != 1 {
		t.Errorf("%d sessions: %v", len(k.Sessions), err)
	}
	s.Handover().Resume()
	r.ready()
	long := s.dial()
	long.name = strings.Repeat("Ⱥ", 75)
	if got := long.login(testIQN).LoginResponse().Status(); got != iscsi.LoginInitiatorFailure {
		t.Errorf("a name that gets too long: status %v", got)
	}
}

// TestCheckCarried: what no process of ours hands over is refused before anything is touched.
func TestCheckCarried(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	k, _ := s.carried(t)
	for name, spoil := range map[string]func(*CarriedSession){
		"initiator": func(x *CarriedSession) { x.Initiator = "" },
		"target":    func(x *CarriedSession) { x.Target = "" },
		"TSIH":      func(x *CarriedSession) { x.TSIH = 0 },
		"window":    func(x *CarriedSession) { x.MaxCmdSN = x.ExpCmdSN + maxWindow },
		"none":      func(x *CarriedSession) { x.Conns = nil },
		"many":      func(x *CarriedSession) { x.Conns = make([]CarriedConnection, maxConnections+1) },
		"file":      func(x *CarriedSession) { x.Conns[0].File = 1 },
		"negative":  func(x *CarriedSession) { x.Conns[0].File = -1 },
		"portal":    func(x *CarriedSession) { x.Conns[0].Portal = "[::1]:1" },
		"length":    func(x *CarriedSession) { x.Conns[0].Params.MaxRecvDataSegmentLength = 1 << 24 },
		"burst":     func(x *CarriedSession) { x.Conns[0].Params.FirstBurstLength = x.Conns[0].Params.MaxBurstLength + 1 },
		"digest":    func(x *CarriedSession) { x.Conns[0].Params.DataDigest = 9 },
		"level":     func(x *CarriedSession) { x.Conns[0].Params.ErrorRecoveryLevel = 1 },
		"RDMA":      func(x *CarriedSession) { x.Conns[0].Params.RDMAExtensions = true },
		"discovery": func(x *CarriedSession) { x.Conns[0].Params.SessionType = iscsi.DiscoverySession },
		"kind": func(x *CarriedSession) {
			x.Conns = append(x.Conns, x.Conns[0])
			x.Conns[1].RDMA, x.Conns[1].Params.RDMAExtensions = new(iser.Carried), true
		},
		"unread": func(x *CarriedSession) { x.Conns[0].Stream.Unread = make([]byte, 1<<17) },
		"units":  func(x *CarriedSession) { x.Units = []scsi.CarriedUnit{{Attentions: make([]spc.ASC, 17)}} },
	} {
		x := k.Sessions[0]
		x.Conns = append([]CarriedConnection(nil), x.Conns...)
		if err := s.Handover().Check(&Carried{Sessions: []CarriedSession{x}}, 1); err != nil {
			t.Fatal(err)
		}
		spoil(&x)
		if s.Handover().Check(&Carried{Sessions: []CarriedSession{x}}, 1) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	s.Handover().Resume()
	r.ready()
}

func FuzzCarried(f *testing.F) {
	f.Add([]byte(`{"sessions":[{"initiator":"iqn.2026-11.a:b","target":"iqn.2026-11.a:c","tsih":1,"exp_cmdsn":1,"max_cmdsn":9,"connections":[{"file":0}]}]}`))
	s := &Frontend{}
	f.Fuzz(func(t *testing.T, b []byte) {
		var k Carried
		if json.Unmarshal(b, &k) == nil && s.Handover().Check(&k, 3) == nil && len(k.Sessions) > 0 {
			t.Error("there is no portal")
		}
	})
}

// TestParkWhileChanging: a login over a stream that turns into RDMA may end at the moment at which
// sessions are brought to rest.
func TestParkWhileChanging(t *testing.T) {
	nc, peer := loopback.Pair(t) // which never answers the MPA Request
	defer peer.Close()
	u, err := initiatorDevice().Upgrade(nc, iscsi.RoleInitiator, iscsitcp.Config{}, iser.ConnConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := &mover{t: t, in: make(chan *iscsi.PDU, 1), ended: make(chan error, 1)}
	u.Start(m)
	u.NoticeKeyValues(&iscsi.Params{RDMAExtensions: true})
	if err := u.Enable(); err != nil {
		t.Fatal(err)
	}
	c := &conn{dm: u}
	if c.park(func() bool { return true }, func() {}) {
		t.Error("it is parked")
	}
	u.Terminate(errors.New("the test is over"))
	<-m.ended
}
