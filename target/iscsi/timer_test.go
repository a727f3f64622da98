package iscsi

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"

	"softiser/target/portal"
)

// quietServer is a server that listens nowhere, for tests under a fake clock.
func quietServer(t *testing.T) *server {
	t.Helper()
	srv, err := newServer(serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0", NoISER: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(Target{Name: testIQN}); err != nil {
		t.Fatal(err)
	}
	return &server{testServer: srv, t: t}
}

// seen waits until everything has come to rest and returns what the initiator
// has got.
func (m *loopMover) seen(c *conn) (pings, responses int, last iscsi.BHS) {
	synctest.Wait()
	c.out.mu.Lock() // what SendControl is called under
	defer c.out.mu.Unlock()
	return m.pings, m.responses, m.last
}

// A silent session is pinged after NopInterval, and closed when it does not
// answer within NopReply. Anything it sends counts as an answer.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopConn(t)
		pings := func() int { n, _, _ := m.seen(c); return n }
		time.Sleep(14 * time.Second)
		if n := pings(); n != 0 {
			t.Fatalf("%d pings before the interval is over", n)
		}
		time.Sleep(2 * time.Second)
		if n := pings(); n != 1 {
			t.Fatalf("%d pings after the interval, want 1", n)
		}
		if _, _, p := m.seen(c); p.Opcode() != iscsi.OpNopIn || p.ITT() != iscsi.ReservedTag || p.TTT() == iscsi.ReservedTag {
			t.Fatalf("ping: % x", p[:])
		}
		// An answer, and then other traffic, keep it alive without pings.
		for i := range 5 {
			p := &iscsi.PDU{}
			n := p.BHS.NewNopOut()
			n.SetITT(iscsi.ReservedTag)
			_, _, last := m.seen(c)
			n.SetTTT(last.TTT())
			if i > 0 {
				n.SetITT(uint32(i))
				n.SetTTT(iscsi.ReservedTag)
			}
			n.SetImmediate(true)
			m.deliver(p)
			time.Sleep(14 * time.Second)
		}
		if n := pings(); n != 1 {
			t.Fatalf("%d pings though the session was never silent for long", n)
		}
		time.Sleep(10 * time.Second)
		if n := pings(); n != 2 || c.state.get() != connFull {
			t.Fatalf("%d pings, state %v", n, c.state.get())
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if c.state.get() != connClosed {
			t.Fatalf("a dead initiator is kept: state %v", c.state.get())
		}
		if n := len(s.Status().Sessions); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

// TestBacklogOfAMoment: an answer that happens to be on its way at one look of the
// heartbeat does not put off the next one by the time that a peer has for reading.
func TestBacklogOfAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		s.cfg.Timeouts.NopReply = 10 * time.Minute
		c, m := s.loopConn(t)
		set := func(b iscsi.Backlog) {
			m.list.Lock()
			defer m.list.Unlock()
			m.backlog = b
		}
		time.Sleep(14 * time.Second)
		set(iscsi.Backlog{Waiting: true})
		time.Sleep(2 * time.Second)
		set(iscsi.Backlog{Sent: 100})
		time.Sleep(15 * time.Second)
		if n, _, _ := m.seen(c); n != 1 {
			t.Errorf("%d pings two intervals after the last that came, want 1", n)
		}
	})
}

// Over iSER nothing may be sent before the first command, so an initiator that never
// sends one is given a time for it.
func TestFirstCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		silent, m := s.loopConn(t)
		silent.quiet.Store(true) // as over iSER
		active, m2 := s.loopStart(t)
		m2.name = "active"
		s.loopLogin(t, active, m2)
		active.quiet.Store(true)
		time.Sleep(50 * time.Second)
		if n, _, _ := m.seen(silent); n != 0 || silent.state.get() != connFull {
			t.Fatalf("%d pings, state %v before the time is over", n, silent.state.get())
		}
		p := &iscsi.PDU{}
		n := p.BHS.NewNopOut()
		n.SetITT(7)
		n.SetTTT(iscsi.ReservedTag)
		n.SetImmediate(true)
		m2.deliver(p)
		time.Sleep(26 * time.Second)
		synctest.Wait()
		if silent.state.get() != connClosed {
			t.Errorf("no command in 76 s: state %v", silent.state.get())
		}
		if active.state.get() != connFull {
			t.Errorf("one that has sent something: state %v", active.state.get())
		}
	})
}

// Over iSER Linux has no receive buffer for a ping in a discovery session, and ends the
// connection.
func TestDiscoveryIsNotPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopStart(t)
		p := &iscsi.PDU{Data: keys("InitiatorName=iqn.2026-11.test:loop", "SessionType=Discovery")}
		l := p.BHS.NewLoginRequest()
		l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
		l.SetDataLen(len(p.Data))
		m.deliver(p)
		time.Sleep(5 * time.Minute)
		if n, _, _ := m.seen(c); n != 0 || c.state.get() != connFull {
			t.Errorf("%d pings, state %v", n, c.state.get())
		}
	})
}

// Without pings, what an initiator owes is looked for all the same.
func TestTimeoutsWithoutPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		s.cfg.Timeouts.NopInterval = -1
		c, m := s.loopConn(t)
		time.Sleep(10 * time.Minute)
		if n, _, _ := m.seen(c); n != 0 || c.state.get() != connFull {
			t.Fatalf("%d pings, state %v; nothing is owed", n, c.state.get())
		}
		p := &iscsi.PDU{}
		q := p.BHS.NewSCSICommand()
		q.SetFinal(true)
		q.SetCmdSN(9) // and the ones before it never come
		q.SetITT(9)
		q.SetAttr(1)
		m.deliver(p)
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if c.state.get() != connClosed {
			t.Errorf("commands that wait for one that does not come: state %v", c.state.get())
		}
	})
}

func TestBeat(t *testing.T) {
	for _, c := range []struct{ nop, first, data, want time.Duration }{
		{15, 60, 30, 15}, {-1, 60, 30, 30}, {-1, -1, 30, 30}, {-1, 60, -1, 60}, {-1, -1, -1, 0},
	} {
		if got := (&Timeouts{NopInterval: c.nop, FirstCommand: c.first, DataOut: c.data}).beat(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// The login has a deadline, however slowly it goes on.
func TestLoginDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopStart(t)
		for range 3 {
			time.Sleep(4 * time.Second)
			p := &iscsi.PDU{Data: keys("InitiatorName=iqn.2026-11.test:loop", "TargetName="+testIQN)}
			if _, n, _ := m.seen(c); n > 0 {
				p.Data = nil
			}
			l := p.BHS.NewLoginRequest()
			l.SetStages(false, false, iscsi.StageOperational, 0)
			l.SetDataLen(len(p.Data))
			m.deliver(p)
		}
		if _, n, _ := m.seen(c); n != 3 || c.state.get() != connLogin {
			t.Fatalf("%d responses, state %v", n, c.state.get())
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if c.state.get() != connClosed {
			t.Errorf("state %v after the deadline", c.state.get())
		}
	})
}

// A WRITE whose data never comes costs the connection, not the slot forever.
func TestOwedData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		n, err := s.node(testIQN)
		if err != nil {
			t.Fatal(err)
		}
		params := *n.session()
		params.AllowUnsolicited = true
		n.cfg.Session = &params
		c, m := s.loopConn(t, "InitialR2T=No")
		p := scsiPDU(cdbRW10(0x2a, 0, 8), true, 4096, nil)
		p.BHS.SetFinal(false)
		p.BHS.SetCmdSN(1)
		p.BHS.SetITT(1)
		m.deliver(p)
		if got := s.bursts.outstanding(); got != 1 {
			t.Fatalf("%d bursts are being collected", got)
		}
		// Pings are answered all the time.
		for range 4 {
			time.Sleep(10 * time.Second)
			_, _, last := m.seen(c)
			q := &iscsi.PDU{}
			o := q.BHS.NewNopOut()
			o.SetITT(iscsi.ReservedTag)
			o.SetTTT(last.TTT())
			o.SetImmediate(true)
			m.deliver(q)
		}
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if c.state.get() != connClosed || s.bursts.outstanding() != 0 {
			t.Errorf("state %v, %d bursts out", c.state.get(), s.bursts.outstanding())
		}
	})
}

// A burst of which nothing comes is given one sequence time-out, though the slot of its command has had one that
// made progress.
func TestBurstOfAUsedSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		n, err := s.node(testIQN)
		if err != nil {
			t.Fatal(err)
		}
		params := *n.session()
		params.AllowUnsolicited = true
		n.cfg.Session = &params
		c, m := s.loopConn(t, "InitialR2T=No")
		c.sess.erl, c.sess.params.ErrorRecoveryLevel = 1, 1
		defer func() { c.sess.erl = 0 }() // a loopMover keeps nothing that could be forgotten
		find := func(itt uint32) *task {
			c.sess.mu.Lock()
			defer c.sess.mu.Unlock()
			return c.sess.cmds.tags.find(itt)
		}
		write := func(sn uint32) *task {
			p := scsiPDU(cdbRW10(0x2a, 0, 8), true, 4096, nil)
			p.BHS.SetFinal(false)
			p.BHS.SetCmdSN(sn)
			p.BHS.SetITT(sn)
			m.deliver(p)
			return find(sn)
		}
		write(1) // keeps the slots at this connection
		used := write(2)
		for i := range uint32(2) {
			p := &iscsi.PDU{Data: make([]byte, 2048)}
			d := p.BHS.NewDataOut()
			d.SetITT(2)
			d.SetTTT(iscsi.ReservedTag)
			d.SetDataSN(i)
			d.SetOffset(2048 * i)
			d.SetFinal(i == 1)
			d.SetDataLen(2048)
			m.deliver(p)
		}
		if write(3) != used {
			t.Fatal("another slot")
		}
		time.Sleep(s.cfg.Timeouts.Sequence + time.Millisecond)
		synctest.Wait()
		for itt := range uint32(4) {
			if find(itt) != nil {
				t.Errorf("WRITE %d still waits for its data", itt)
			}
		}
	})
}
