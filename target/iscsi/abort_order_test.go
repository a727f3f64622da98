package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
)

// ABORT TASK of a command that is ahead of its turn, or has not come, makes its
// CmdSN count as received (RFC 7143 §11.5.1): what then comes with the number is
// dropped, and its place is free for the next one that falls on it.
func TestAbortAheadOfItsTurn(t *testing.T) {
	for _, arrives := range []string{"before", "after", "never"} {
		t.Run(arrives, func(t *testing.T) {
			s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 4 })
			r := s.session()
			sn := r.cmdSN
			tag := r.newTag()
			late := func() {
				r.itt = tag - 1
				if got := r.at(sn+1, command{cdb: testUnitReady}); got != tag {
					t.Fatalf("tag %#x, want %#x", got, tag)
				}
			}
			if arrives == "before" {
				late()
				r.expectSilence()
			}
			r.cmdSN = sn + 2
			if got := r.task(iscsi.AbortTask, 0, tag, sn+1); got != iscsi.TaskComplete {
				t.Fatalf("ABORT TASK: response %d", got)
			}
			if arrives == "after" {
				late()
			}
			r.itt = tag + 0x100
			first := r.at(sn, command{cdb: testUnitReady})
			if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != first {
				t.Errorf("response for %#x, want %#x", p.ITT(), first)
			}
			// The window has gone round: sn+5 has the place that sn+1 had.
			r.nop(nil)
			last := r.at(sn+5, command{cdb: testUnitReady})
			want := []uint32{r.at(sn+2, command{cdb: testUnitReady}), r.at(sn+3, command{cdb: testUnitReady}), r.at(sn+4, command{cdb: testUnitReady}), last}
			for _, tag := range want {
				if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != tag {
					t.Errorf("response for %#x, want %#x", p.ITT(), tag)
				}
			}
			r.cmdSN = sn + 6
			r.ready()
		})
	}
}

// A tag and a CmdSN that do not belong together abort nothing.
func TestAbortOfAnotherCommand(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	sn := r.cmdSN
	held := r.at(sn+1, command{cdb: testUnitReady})
	r.cmdSN = sn + 2
	if got := r.task(iscsi.AbortTask, 0, held+0x1000, sn+1); got != iscsi.TaskNotFound {
		t.Errorf("ABORT TASK: response %d", got)
	}
	first := r.at(sn, command{cdb: testUnitReady})
	for _, tag := range []uint32{first, held} {
		if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != tag {
			t.Errorf("response for %#x, want %#x", p.ITT(), tag)
		}
	}
	r.ready()
}

// ABORT TASK may come while another goroutine has taken the command out of the
// window and not given it to the device server yet; it must not be answered "no such
// task" then, with the task to follow.
func TestAbortMeetsDelivery(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	release := s.dev.hold()
	defer release()
	x := s.sessionList(nil)[0]
	x.mu.Lock()
	x.order.seq.delivering = true // as between Advance and deliver
	x.mu.Unlock()
	b.cmdSN = r.cmdSN
	tag := r.itt + 1
	q := b.sendTask(iscsi.AbortTask, 0, tag, r.cmdSN-1)
	b.nop(nil) // it has been taken, and is not answered
	if got := r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512, immediate: true}); got != tag {
		t.Fatalf("tag %#x, want %#x", got, tag)
	}
	eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
	x.order.drain(nil)
	b.expectSilence()
	release()
	if p := b.expect(iscsi.OpTaskResponse); p.ITT() != q || p.TaskResponse().Response() != iscsi.TaskComplete {
		t.Errorf("ABORT TASK: response %d for %#x", p.TaskResponse().Response(), p.ITT())
	}
	r.expectSilence()
	r.ready()
}

// A logical unit that has been removed is there for its tasks: they can be aborted,
// one by one and all together.
func TestTasksOfARemovedLUN(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTask, iscsi.AbortTaskSet, iscsi.LogicalUnitReset} {
		t.Run(f.String(), func(t *testing.T) {
			s := serve(t, nil)
			r := s.session()
			release := s.dev.hold()
			defer release()
			tag := r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
			removed := make(chan error, 1)
			go func() { removed <- s.RemoveLUN(t.Context(), testIQN, 0) }()
			n, err := s.node(testIQN)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the LUN goes", func() bool { return len(n.device.LUs()) == 0 })
			q := r.sendTask(f, 0, tag, r.cmdSN-1)
			s.aborted(r, 1)
			r.expectSilence() // storage still has it
			release()
			answered := false
			for told := false; !told || !answered; { // the inventory has changed as well
				switch p := r.read(); p.Opcode() {
				case iscsi.OpAsync:
					told = true
				case iscsi.OpTaskResponse:
					if answered = true; p.ITT() != q || p.TaskResponse().Response() != iscsi.TaskComplete {
						t.Errorf("response %d for %#x", p.TaskResponse().Response(), p.ITT())
					}
				default:
					t.Fatalf("%v came", p.Opcode())
				}
			}
			if err := <-removed; err != nil {
				t.Error(err)
			}
			if got := r.task(f, 0, tag, r.cmdSN-1); got != iscsi.TaskNoLUN && (f != iscsi.AbortTask || got != iscsi.TaskNotFound) {
				t.Errorf("once it is gone: response %d", got)
			}
		})
	}
}

// The last unsolicited data of a WRITE comes on one connection, and what aborts it on another
// while the WRITE is on its way to the device server: the answer is behind all of it.
func TestAbortMeetsTheEndOfABurst(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTask, iscsi.AbortTaskSet, iscsi.LogicalUnitReset} {
		t.Run(f.String(), func(t *testing.T) {
			s := serve(t, func(c *serverConfig, _ *Target) { c.Session.AllowUnsolicited, c.Session.MaxConnections = true, 2 })
			c, m := s.loopConn(t, "MaxConnections=2", "InitialR2T=No", "FirstBurstLength=16384")
			sn := uint32(1)
			tur := scsiPDU(testUnitReady, false, 0, nil)
			tur.BHS.SCSICommand().SetRead(false)
			for m.run(tur, &sn) != 0 { // unit attentions
			}
			p := scsiPDU(cdbRW10(0x2a, 8, 1), true, 512, nil)
			p.BHS.SCSICommand().SetFinal(false)
			p.BHS.SetCmdSN(sn)
			p.BHS.SetITT(sn)
			m.deliver(p)
			c.sess.mu.Lock()
			k := c.sess.cmds.tags.find(sn)
			k.unsol.buf = append(k.unsol.buf, make([]byte, 512)...)
			k.collectedLocked(burstRuns) // as takeDataOut does
			c.sess.mu.Unlock()
			var a iscsi.PDU
			q := a.BHS.NewTaskRequest(f)
			q.SetImmediate(true)
			q.SetITT(0x1000)
			q.SetRefTask(sn)
			q.SetRefCmdSN(sn)
			q.SetCmdSN(sn + 1)
			before, _ := m.said()
			m.deliver(&a)
			if n, last := m.said(); n != before {
				t.Errorf("answered with a %v ahead of the WRITE", last.Opcode())
			}
			k.endBurst(nil, burstRuns, false)
			eventually(t, "the function is answered behind the WRITE", func() bool { // a worker may have that
				_, last := m.said()
				if last.Opcode() != iscsi.OpTaskResponse || last.TaskResponse().Response() != iscsi.TaskComplete {
					return false
				}
				c.sess.mu.Lock()
				defer c.sess.mu.Unlock()
				if c.sess.cmds.tags.find(sn) != nil {
					t.Error("it is answered, and the WRITE has not ended")
				}
				return true
			})
		})
	}
}

// One to another unit is left alone.
func TestResetLeavesACommandOnItsWay(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.AllowUnsolicited, c.Session.MaxConnections = true, 2 })
	c, m := s.loopConn(t, "MaxConnections=2", "InitialR2T=No", "FirstBurstLength=16384")
	sn := uint32(1)
	p := scsiPDU(cdbRW10(0x2a, 8, 1), true, 512, nil)
	p.BHS.SCSICommand().SetFinal(false)
	p.BHS.SetCmdSN(sn)
	p.BHS.SetITT(sn)
	p.BHS.SetLUN(iscsi.EncodeLUN(5)) // which is not there: the command is answered so
	m.deliver(p)
	c.sess.mu.Lock()
	k := c.sess.cmds.tags.find(sn)
	k.unsol.buf = append(k.unsol.buf, make([]byte, 512)...)
	stall := k.collectedLocked(burstRuns) // as takeDataOut does
	c.sess.mu.Unlock()
	var a iscsi.PDU
	q := a.BHS.NewTaskRequest(iscsi.LogicalUnitReset)
	q.SetImmediate(true)
	q.SetITT(0x1000)
	q.SetRefTask(iscsi.ReservedTag)
	q.SetCmdSN(sn + 1)
	m.deliver(&a)
	if _, last := m.said(); last.Opcode() != iscsi.OpTaskResponse || last.TaskResponse().Response() != iscsi.TaskComplete {
		t.Errorf("the reset is answered with a %v", last.Opcode())
	}
	before, _ := m.said()
	k.endBurst(nil, burstRuns, stall)
	if n, last := m.said(); n != before+1 || last.Opcode() != iscsi.OpSCSIResponse {
		t.Errorf("%d PDUs, the last a %v: the command is not answered", n-before, last.Opcode())
	}
}

// The same for an immediate command, which is in no order with the others: it comes on one
// connection while what aborts it comes on another.
func TestAbortMeetsAnImmediateCommand(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTask, iscsi.AbortTaskSet, iscsi.LogicalUnitReset} {
		t.Run(f.String(), func(t *testing.T) {
			s := serve(t, several(2))
			c, m := s.loopConn(t, "MaxConnections=2")
			sn := uint32(1)
			tur := scsiPDU(testUnitReady, false, 0, nil)
			tur.BHS.SCSICommand().SetRead(false)
			for m.run(tur, &sn) != 0 { // unit attentions
			}
			const tag = 0x2000
			p := scsiPDU(cdbRW10(0x2a, 8, 1), true, 512, make([]byte, 512))
			p.BHS.SetImmediate(true)
			p.BHS.SetCmdSN(sn)
			p.BHS.SetITT(tag)
			k := c.sess.cmds.admit(c, p, c.sess.overtakes())
			var a iscsi.PDU
			q := a.BHS.NewTaskRequest(f)
			q.SetImmediate(true)
			q.SetITT(0x1000)
			q.SetRefTask(tag)
			q.SetRefCmdSN(sn)
			q.SetCmdSN(sn)
			before, _ := m.said()
			m.deliver(&a)
			if n, last := m.said(); n != before {
				t.Errorf("answered with a %v ahead of the command", last.Opcode())
			}
			c.sess.cmds.execute(k, c.sess.overtakes())
			eventually(t, "the function is answered behind the command", func() bool { // a worker may have that
				_, last := m.said()
				if last.Opcode() != iscsi.OpTaskResponse || last.TaskResponse().Response() != iscsi.TaskComplete {
					return false
				}
				c.sess.mu.Lock()
				defer c.sess.mu.Unlock()
				if c.sess.cmds.tags.find(tag) != nil {
					t.Error("it is answered, and the command has not ended")
				}
				return true
			})
		})
	}
}
