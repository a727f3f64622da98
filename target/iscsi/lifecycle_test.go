package iscsi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/iscsi"
	"softiser/target/portal"
	"softiser/target/scsi"
)

func TestLogout(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	if code := r.logoutReason(iscsi.LogoutRecovery, 0); code != iscsi.LogoutNoRecovery {
		t.Errorf("logout for recovery: response %d", code)
	}
	if code := r.logoutReason(iscsi.LogoutConnection, 17); code != iscsi.LogoutCIDNotFound {
		t.Errorf("logout of an unknown connection: response %d", code)
	}
	r.nop(nil)
	if code := r.logoutReason(iscsi.LogoutConnection, 0); code != iscsi.LogoutClosed {
		t.Errorf("logout of the connection: response %d", code)
	}
	r.expectClosed()
	eventually(t, "the session goes", func() bool { return len(s.Status().Sessions) == 0 })
}

// Commands that still run are aborted, and only then the logout is answered.
func TestLogoutWithTasks(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	release := s.dev.hold()
	defer release()
	heldRead(r)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
	var b iscsi.BHS
	l := b.NewLogoutRequest(iscsi.LogoutSession)
	l.SetImmediate(true)
	l.SetITT(r.newTag())
	l.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
	s.aborted(r, 1)
	r.expectSilence()
	release()
	if code := r.expect(iscsi.OpLogoutResp).LogoutResponse().Response(); code != iscsi.LogoutClosed {
		t.Errorf("response %d", code)
	}
	r.expectClosed()
}

// A new login of the same initiator port waits for the old session's tasks.
func TestReinstatement(t *testing.T) {
	s := serve(t, nil)
	old := s.session()
	release := s.dev.hold()
	defer release()
	heldRead(old)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })

	r := s.dial()
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "TargetName="+testIQN)
	old.expectClosed()
	r.silentFor(50 * time.Millisecond) // the old read is still with the volume
	release()
	p, _ := r.loginResponse()
	if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess {
		t.Fatalf("status %04x", uint16(st))
	}
	if p.LoginResponse().TSIH() == old.tsih {
		t.Error("the new session has the old TSIH")
	}
	// I_T nexus loss is told once.
	res := r.do(command{cdb: testUnitReady}, nil)
	if res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2907 {
		t.Errorf("after reinstatement: status %#x sense % x", res.status, res.sense)
	}
	r.ready()
	if n := len(s.Status().Sessions); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// An initiator that closes its connection without logout and logs in again, under
// another ISID, does not meet what the old nexus had.
func TestNextSessionWaitsForTheEnd(t *testing.T) {
	s := serve(t, nil)
	old := s.session()
	if res := old.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 {
		t.Fatalf("RESERVE: status %#x", res.status)
	}
	release := s.dev.hold()
	defer release()
	heldRead(old)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
	old.nc.Close()

	r := s.dial()
	r.isid[5]++
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "TargetName="+testIQN)
	other := s.dial()
	other.name = "iqn.2026-11.test:other"
	other.mustLogin(testIQN)           // another initiator need not wait
	r.silentFor(50 * time.Millisecond) // the old read is still with the volume
	release()
	if p, _ := r.loginResponse(); p.LoginResponse().Status() != iscsi.LoginSuccess {
		t.Fatalf("status %04x", uint16(p.LoginResponse().Status()))
	}
	r.ready()
	if res := r.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 {
		t.Errorf("RESERVE after the nexus of the first one is lost: status %#x", res.status)
	}
	if n := len(s.Status().Sessions); n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// The same when the end has not even been noticed: the login looks at the socket.
func TestNextSessionSeesTheEndOfTheLast(t *testing.T) {
	s := serve(t, nil)
	for i := range 200 {
		old := s.dial()
		old.isid[4] = byte(i)
		old.mustLogin(testIQN)
		old.ready()
		if res := old.do(command{cdb: []byte{0x16, 0, 0, 0, 0, 0}}, nil); res.status != 0 {
			t.Fatalf("RESERVE of session %d: status %#x", i, res.status)
		}
		old.nc.Close()
	}
}

// From the moment in which a session loses its last connection it counts as ending:
// a login that looks just then waits for it.
func TestSessionWithoutConnectionIsEnding(t *testing.T) {
	s := serve(t, nil)
	s.session()
	x := s.sessionList(nil)[0]
	if x.ending() {
		t.Fatal("a session in use counts as ending")
	}
	c := x.conns.list()[0]
	if p, _ := x.conns.part(c, connFull); p != sessionEnds || !x.ending() {
		t.Errorf("without its connection: parting %d, ending %v", p, x.ending())
	}
	x.shut(errKilled)
	c.close(errKilled)
	<-c.ended
}

// Many logins of one initiator port at once: in the end exactly one is left.
func TestReinstatementRace(t *testing.T) {
	s := serve(t, nil)
	const n = 16
	var wg sync.WaitGroup
	var over atomic.Int32
	var rs []*rawInitiator
	for range n {
		r := s.dial()
		rs = append(rs, r)
		wg.Go(func() {
			// It may be ended by a later one at any moment, even during login.
			r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, "InitiatorName="+r.name, "TargetName="+testIQN)
			for {
				if _, err := r.tryRead(ioTime); err != nil {
					over.Add(1)
					return
				}
			}
		})
	}
	eventually(t, "all but one are ended", func() bool { return over.Load() >= n-1 })
	if n := len(s.Status().Sessions); n != 1 {
		t.Errorf("%d sessions are left, want 1", n)
	}
	for _, r := range rs {
		r.nc.Close()
	}
	wg.Wait()
}

// A connection that is cut in the middle of everything leaves nothing behind.
func TestCutDuringIO(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	for i := range 20 {
		r := s.second(byte(100 + i))
		release := s.dev.hold()
		heldRead(r)
		r.command(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 65536})
		r.at(r.cmdSN+3, command{cdb: testUnitReady})
		switch i % 3 {
		case 0:
			eventually(t, "the read is at the volume", func() bool { return s.dev.held() >= 1 })
			r.nc.Close()
		case 1:
			if err := s.KillSession(r.tsih); err != nil {
				t.Fatal(err)
			}
		case 2:
			r.nc.Write([]byte{0x01, 0x80, 0}) // half a header
			r.nc.Close()
		}
		release()
		eventually(t, "the session goes", func() bool { return len(s.Status().Sessions) == 0 })
	}
	if err := s.KillSession(9999); err == nil {
		t.Error("a session that does not exist was killed")
	}
}

func TestTargetPings(t *testing.T) {
	t.Parallel() // it waits by the clock
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.NopInterval, c.Timeouts.NopReply = 80*time.Millisecond, 2*time.Second
	})
	r := s.session()
	for range 2 {
		r.answerPing()
	}
	r.ready()
	r.expectClosed() // it no longer answers
	eventually(t, "the dead session goes", func() bool { return len(s.Status().Sessions) == 0 })
}

func TestDataTimeout(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Timeouts.NopInterval, c.Timeouts.DataOut = 50*time.Millisecond, 100*time.Millisecond
	})
	r := s.session()
	r.command(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 65536})
	r.expectClosed()
}

func TestManySessions(t *testing.T) {
	s := serve(t, nil)
	const n = 64
	var wg sync.WaitGroup
	rs := make([]*rawInitiator, n)
	for i := range rs {
		rs[i] = s.dial()
		rs[i].isid[4], rs[i].isid[5] = 1, byte(i)
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rs[i]
			r.mustLogin(testIQN)
			r.ready()
			data := pattern(32<<10, byte(i))
			for j := range 8 {
				lba := uint32(i*1024 + j*64)
				r.write10(lba, data)
				mustEqual(t, fmt.Sprintf("session %d", i), r.read10(lba, 64), data)
			}
		}()
	}
	wg.Wait()
	if got := len(s.Status().Sessions); got != n {
		t.Errorf("%d sessions, want %d", got, n)
	}
	for _, r := range rs {
		r.logout()
	}
}

func TestShutdownDrains(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	a := r.expect(iscsi.OpAsync)
	if _, _, p3 := a.Async().Params(); a.Async().Event() != iscsi.AsyncLogout || p3 == 0 {
		t.Errorf("async event %d, parameter 3 %d", a.Async().Event(), p3)
	}
	// Commands still work until the initiator logs out.
	r.write10(0, pattern(4096, 1))
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned early: %v", err)
	default:
	}
	r.logout()
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if st := s.Status(); st.State != "stopped" || st.Portals[0].Bound != "" {
		t.Errorf("after Shutdown: %s, bound %q", st.State, st.Portals[0].Bound)
	}
	if err := s.Serve(context.Background()); !errors.Is(err, portal.ErrServerClosed) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

func TestShutdownCutsOff(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	r.expectClosed()
}

// LUNs come, grow and go while initiators are logged in.
func TestLUNsUnderLoad(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	vol, err := mem.Open(mem.Config{Name: "second", Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddLUN(testIQN, LUN{Name: "second", LUConfig: scsi.LUConfig{LUN: 1, Volume: vol}}); err != nil {
		t.Fatal(err)
	}
	a := r.expect(iscsi.OpAsync)
	sense, _, ok := iscsi.ParseSense(a.data)
	if a.Async().Event() != iscsi.AsyncSCSI || !ok || binary.BigEndian.Uint16(sense[12:]) != 0x3f0e {
		t.Errorf("async event %d, sense % x", a.Async().Event(), sense)
	}
	if err := s.AddLUN(testIQN, LUN{LUConfig: scsi.LUConfig{LUN: 1, Volume: vol}}); err == nil {
		t.Error("LUN 1 was added twice")
	}
	tur := func(lun int) result { return r.do(command{cdb: testUnitReady, lun: lun}, nil) }
	if res := tur(0); res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x3f0e {
		t.Errorf("LUN 0 after LUN 1 came: status %#x sense % x", res.status, res.sense)
	}
	for range 4 {
		if tur(1).status == 0 {
			break
		}
	}
	if err := vol.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	if res := tur(1); res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2a09 {
		t.Errorf("after a resize: status %#x sense % x", res.status, res.sense)
	}
	// Remove it while writes are running.
	for i := range 32 {
		r.command(command{cdb: cdbRW10(0x2a, uint32(i), 1), lun: 1, write: true, edtl: 512, imm: make([]byte, 512)})
	}
	if err := s.RemoveLUN(t.Context(), testIQN, 1); err != nil {
		t.Fatal(err)
	}
	if err := vol.Close(); err != nil {
		t.Errorf("the volume is still in use after RemoveLUN: %v", err)
	}
	answered := 0
	for answered < 32 {
		if p := r.read(); p.Opcode() == iscsi.OpSCSIResponse {
			answered++
		}
	}
	r.drainAsync(t)
	if res := tur(1); res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2500 {
		t.Errorf("LUN 1 after its removal: status %#x sense % x", res.status, res.sense)
	}
	if err := s.RemoveLUN(t.Context(), testIQN, 1); err == nil {
		t.Error("LUN 1 was removed twice")
	}
}

// drainAsync reads pending Asynchronous Messages: a ping comes back behind them.
func (r *rawInitiator) drainAsync(t *testing.T) {
	t.Helper()
	r.sendNop(nil)
	for {
		p := r.read()
		if p.Opcode() == iscsi.OpNopIn {
			return
		}
		if p.Opcode() != iscsi.OpAsync {
			t.Fatalf("got %v", p.Opcode())
		}
	}
}

func TestRemoveTarget(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	if err := s.AddTarget(Target{Name: testIQN}); err == nil {
		t.Error("a second target of the same name was added")
	}
	if err := s.AddTarget(Target{Name: "not an iqn"}); err == nil {
		t.Error("a target with a bad name was added")
	}
	if err := s.AddTarget(Target{Name: "iqn.2026-11.softiser:x", Portals: []uint16{9}}); err == nil {
		t.Error("a target on a portal group that does not exist was added")
	}
	if err := s.RemoveTarget(t.Context(), testIQN); err != nil {
		t.Fatal(err)
	}
	r.expectClosed()
	if err := s.RemoveTarget(t.Context(), testIQN); err == nil {
		t.Error("the target was removed twice")
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]serverConfig{
		"no portal":       {},
		"bad address":     {Portals: []portal.Config{{Listen: "1.2.3.4:5:6"}}},
		"no transport":    {Portals: []portal.Config{{Listen: ":0", NoTCP: true, NoISER: true, NoNVMeTCP: true, NoNVMeRDMA: true}}},
		"window":          {Portals: []portal.Config{{Listen: ":0"}}, Limits: serverLimits{Commands: 100000}},
		"burst":           {Portals: []portal.Config{{Listen: ":0"}}, Session: SessionParams{FirstBurstLength: 1 << 20, MaxBurstLength: 1 << 16}},
		"segment":         {Portals: []portal.Config{{Listen: ":0"}}, Session: SessionParams{MaxRecvDataSegmentLength: 100}},
		"digest":          {Portals: []portal.Config{{Listen: ":0"}}, Session: SessionParams{HeaderDigest: []string{"MD5"}}},
		"bad advertising": {Portals: []portal.Config{{Listen: ":0", Advertise: "here"}}},
	} {
		if _, err := newServer(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// An address that is taken.
	s := serve(t, nil)
	other, err := newServer(serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0"}, {Listen: s.addr}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Listen(); err == nil {
		t.Error("listening on a taken address succeeded")
	}
	if as := other.Addrs(); len(as) != 0 {
		t.Errorf("after a failed Listen it listens on %v", as)
	}
}

// A removal that ran out of time can be asked for again, and then ends: otherwise
// the volume could never be closed.
func TestRemoveLUNAgain(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	release := s.dev.hold()
	defer release()
	heldRead(r)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := s.RemoveLUN(ctx, testIQN, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("RemoveLUN while a command runs: %v", err)
		}
	}
	release()
	if err := s.RemoveLUN(t.Context(), testIQN, 0); err != nil {
		t.Errorf("RemoveLUN again: %v", err)
	}
	if n := len(s.Status().Targets[0].LUNs); n != 0 {
		t.Errorf("%d LUNs are left", n)
	}
}

// slowStart is a volume that does not tell its size until it is let go.
type slowStart struct {
	*mem.Device
	asked, goOn chan struct{}
	once        sync.Once
}

func (d *slowStart) OnResize(f func(blockdev.Info)) (cancel func()) {
	d.once.Do(func() { close(d.asked) })
	<-d.goOn
	return d.Device.OnResize(f)
}

// A LUN that is being added while its target is removed leaves nothing of itself: another target
// may have the volume.
func TestAddLUNWhileTargetGoes(t *testing.T) {
	s := serve(t, nil)
	m, err := mem.Open(mem.Config{Name: "late", Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dev := &slowStart{Device: m, asked: make(chan struct{}), goOn: make(chan struct{})}
	l := LUN{Name: "late", LUConfig: scsi.LUConfig{LUN: 7, Volume: dev}}
	added := make(chan error, 1)
	go func() { added <- s.AddLUN(testIQN, l) }()
	<-dev.asked
	if err := s.RemoveTarget(t.Context(), testIQN); err != nil {
		t.Fatal(err)
	}
	close(dev.goOn)
	if err := <-added; !errors.Is(err, errRemoved) {
		t.Errorf("AddLUN = %v", err)
	}
	if s.volumes.Volume(dev) != nil {
		t.Error("the volume is served")
	}
}
