package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
)

// An immediate function whose number lies far from the window waits for nobody.
func TestAfterCommandsFarAway(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	x := s.sessionByTSIH(r.tsih)
	for _, sn := range []uint32{r.cmdSN - 1, r.cmdSN + 1<<20} {
		ran := false
		if x.afterCommands(sn, func() { ran = true }); !ran {
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
	c.sess.deliver(c, p)
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
	s.lastTSIH = 0xffff
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
