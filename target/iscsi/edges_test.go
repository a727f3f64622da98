package iscsi

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
	"softiser/target/portal"
)

// An immediate function whose number lies far from the window waits for nobody.
func TestAfterCommandsFarAway(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	x := s.sessionByTSIH(r.tsih)
	for _, sn := range []uint32{r.cmdSN - 1, r.cmdSN + 1<<20} {
		ran := false
		if x.order.afterCommands(nil, sn, func() { ran = true }); !ran {
			t.Errorf("it waits for CmdSN %#x at %#x", sn, r.cmdSN)
		}
	}
}

// A numbered PDU that is no command takes a number and no place in the window.
func TestNumberedPing(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 4 })
	r := s.session()
	for range 6 { // more than the window has places
		var b iscsi.BHS
		n := b.NewNopOut()
		n.SetITT(r.newTag())
		n.SetTTT(iscsi.ReservedTag)
		n.SetFinal(true)
		n.SetImmediate(false)
		n.SetCmdSN(r.cmdSN)
		r.cmdSN++
		r.write(&b, nil)
		if p := r.expect(iscsi.OpNopIn); p.ExpCmdSN() != r.cmdSN || p.MaxCmdSN() != r.cmdSN+3 {
			t.Fatalf("window %d to %d, want %d to %d", p.ExpCmdSN(), p.MaxCmdSN(), r.cmdSN, r.cmdSN+3)
		}
	}
}

// A request whose data has been dropped for want of memory is rejected with that reason.
func TestNoRoomForARequest(t *testing.T) {
	s := quietServer(t)
	c, m := s.loopConn(t)
	p := &iscsi.PDU{NoRoom: true}
	n := p.BHS.NewNopOut()
	n.SetITT(5)
	n.SetImmediate(true)
	c.sess.order.deliver(c, p)
	if m.last.Opcode() != iscsi.OpReject || m.last.Reject().Reason() != iscsi.RejectNoResources {
		t.Errorf("answer % x", m.last[:])
	}
}

// A target that goes while a login is on its way refuses it.
func TestLoginToATargetThatGoes(t *testing.T) {
	s := serve(t, nil)
	n, err := s.node(testIQN)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	n.gone = true
	s.mu.Unlock()
	if st := s.dial().login(testIQN).LoginResponse().Status(); st != iscsi.LoginTargetRemoved {
		t.Errorf("status %04x (%v)", uint16(st), st)
	}
	s.mu.Lock()
	n.gone = false
	s.mu.Unlock()
}

// No session gets TSIH 0, which asks for a new one, or that of another one.
func TestTSIHsWrap(t *testing.T) {
	s := serve(t, nil)
	first := s.session() // TSIH 1
	s.mu.Lock()
	s.sessions.last = 0xffff
	s.mu.Unlock()
	r := s.second(9)
	if first.tsih != 1 || r.tsih != 2 {
		t.Errorf("TSIHs %d and %d, want 1 and 2", first.tsih, r.tsih)
	}
}

// A session that is about to end takes no further connection.
func TestJoiningTheEnd(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	x.doomed = true
	x.mu.Unlock()
	if _, st := s.tryAnother(r, 1); st != iscsi.LoginNoSession {
		t.Errorf("status %04x (%v)", uint16(st), st)
	}
	x.mu.Lock()
	x.doomed = false
	x.mu.Unlock()
}

// A connection joins a session with its own target, through its own portal group, over TCP.
func TestJoinsThatDoNotFit(t *testing.T) {
	const otherIQN = "iqn.2026-11.softiser:other"
	s := serve(t, func(c *serverConfig, tgt *Target) {
		c.Session.MaxConnections = 4
		c.Portals = append(c.Portals, portal.Config{Listen: "127.0.0.1:0", Group: 2})
	})
	if err := s.AddTarget(Target{Name: otherIQN}); err != nil {
		t.Fatal(err)
	}
	r := s.session("MaxConnections=4")
	join := func(addr, target string, want iscsi.LoginStatus) {
		t.Helper()
		x := dialRaw(t, addr)
		x.isid, x.tsih, x.cid, x.cmdSN = r.isid, r.tsih, 5, r.cmdSN
		if st := x.login(target).LoginResponse().Status(); st != want {
			t.Errorf("status %04x (%v), want %04x", uint16(st), st, uint16(want))
		}
	}
	join(s.addr, otherIQN, iscsi.LoginCannotInclude)
	join(s.Addrs()[1], testIQN, iscsi.LoginCannotInclude)
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	x.params.RDMAExtensions = true // as over iSER
	x.mu.Unlock()
	join(s.addr, testIQN, iscsi.LoginTooManyConnections)
}

// Peripheral and flat addressing of one number mean the same unit.
func TestSameLUN(t *testing.T) {
	for _, c := range []struct {
		a, b uint64
		want bool
	}{
		{0x0005000000000000, 0x0005000000000000, true},
		{0x0005000000000000, 0x4005000000000000, true},
		{0x0005000000000000, 0x4006000000000000, false},
		{0xffff000000000000, 0x0005000000000000, false},
	} {
		if got := sameLUN(c.a, c.b); got != c.want {
			t.Errorf("%#x and %#x: %v", c.a, c.b, got)
		}
	}
}

// QUERY TASK is about a task of one logical unit.
func TestQueryTaskOfAnotherUnit(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	release := s.dev.hold()
	defer release()
	tag := heldRead(r)
	eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
	x := s.sessionByTSIH(r.tsih)
	for lun, want := range []uint8{iscsi.TaskFunctionSucceeded, iscsi.TaskComplete} {
		var b iscsi.BHS
		q := b.NewTaskRequest(iscsi.QueryTask)
		q.SetLUN(iscsi.EncodeLUN(lun))
		q.SetRefTask(tag)
		if got := x.manager.queryTask(q); got != want {
			t.Errorf("LUN %d: response %d, want %d", lun, got, want)
		}
	}
}

// Immediate commands take slots, of which there are so many, though no place in the window.
func TestImmediateCommandsAreBounded(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	x.order.seq.win.used += x.order.seq.win.slots
	x.mu.Unlock()
	r.command(command{cdb: testUnitReady, immediate: true})
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectImmediate {
		t.Errorf("reason %v", p.Reject().Reason())
	}
	x.mu.Lock()
	x.order.seq.win.used -= x.order.seq.win.slots
	x.mu.Unlock()
	r.ready()
}

// What begins with something else than a Login Request is not answered.
func TestFirstPDUIsNoLogin(t *testing.T) {
	s := quietServer(t)
	c, m := s.loopStart(t)
	p := &iscsi.PDU{}
	p.BHS.NewNopOut()
	c.ControlNotify(p)
	if st := c.state.get(); st == connLogin || m.responses != 0 {
		t.Errorf("%v after %d answers", st, m.responses)
	}
}

// What the target's settings say is what a login ends with.
func TestSettingsOfALogin(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.NoImmediateData = true })
	if got := s.session("ImmediateData=Yes").params["ImmediateData"]; got != "No" {
		t.Errorf("ImmediateData=%s, want No", got)
	}
}

// TASK REASSIGN must be immediate (RFC 7143 §11.5.1).
func TestReassignIsImmediate(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	var b iscsi.BHS
	q := b.NewTaskRequest(iscsi.TaskReassign)
	q.SetImmediate(false)
	q.SetITT(r.newTag())
	q.SetRefTask(0x7777)
	q.SetCmdSN(r.cmdSN)
	r.cmdSN++
	r.write(&b, nil)
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskRejected {
		t.Errorf("response %d", got)
	}
}

// A connection that has been logged out does not stand in the way of another with its CID, also
// while it is closed and has not left.
func TestCIDOfALoggedOutConnection(t *testing.T) {
	c := &conn{cid: 3}
	m := members{conns: []*conn{c}}
	if m.byCID(3) != c || m.count() != 1 {
		t.Error("it is not found while it is there")
	}
	c.hungUp.Store(true)
	for _, s := range []connState{connLogin, connLoggedOut, connClosed} {
		if c.state.advance(s); m.byCID(3) != nil || m.count() != 0 {
			t.Errorf("it is found when it has been logged out, in state %q", c.state.get())
		}
	}
}

// The tasks of a lost connection get their time from its logout on, and once.
func TestLogoutOfALostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keep = 10 * time.Second
		var fired atomic.Bool
		l := &lostConn{timer: time.AfterFunc(keep, func() { fired.Store(true) })}
		time.Sleep(keep - 1)
		l.loggedOut(keep)
		time.Sleep(keep - 1)
		l.loggedOut(keep)
		synctest.Wait()
		if fired.Load() || l.state != recoverable {
			t.Errorf("%v, its time is over: %v", l.state, fired.Load())
		}
		time.Sleep(1)
		synctest.Wait()
		if !fired.Load() {
			t.Error("a second logout has given it more time")
		}
	})
}

// Commands that wait for their turn count as received when their connection goes: those of
// other connections must not wait for them.
func TestHeldCommandsOfAConnectionThatGoes(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	b.at(r.cmdSN+1, command{cdb: testUnitReady})
	b.expectSilence()
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	calls := x.cmds.abandonLocked(x.conns.members.conns[1], nil)
	_, skipped := x.order.seq.skip[r.cmdSN+1]
	held := x.order.seq.n
	x.mu.Unlock()
	calls.run()
	if !skipped || held != 0 {
		t.Errorf("counts as received: %v; %d are held", skipped, held)
	}
	r.ready()
	r.cmdSN++
	r.ready()
}

// Who joins after a connection was lost is not told of the loss.
func TestLossIsToldToThoseWhoWereThere(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	s.another(r, 1)
	x := s.sessionByTSIH(r.tsih)
	x.mu.Lock()
	gone, stays := x.conns.members.conns[0], x.conns.members.conns[1]
	x.mu.Unlock()
	for _, want := range []*conn{stays, nil} {
		if p, other := x.conns.part(gone, connFull); p != tasksWait || other != want {
			t.Errorf("parting %d, %p is told, want %p", p, other, want)
		}
		gone = stays
	}
}
