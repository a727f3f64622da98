package iscsi

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"softiser/internal/iscsi"
)

func heldRead(r *rawInitiator) uint32 {
	return r.command(command{cdb: cdbRW10(0x28, 0, 8), read: true, edtl: 4096})
}

// second logs in as another initiator port.
func (s *server) second(last byte) *rawInitiator {
	s.t.Helper()
	r := s.dial()
	r.isid[5] = last
	r.mustLogin(testIQN)
	r.ready()
	return r
}

// aborted waits until n commands of r have been told to end.
func (s *server) aborted(r *rawInitiator, n int) {
	s.t.Helper()
	x := s.sessionByTSIH(r.tsih)
	eventually(s.t, "the commands are being aborted", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		got := 0
		x.cmds.tags.each(func(k *task) {
			if k.state == taskAborting || k.scsi.Aborted() {
				got++
			}
		})
		return got == n
	})
}

// The response waits until the task has ended, and nothing of the task follows.
func TestAbortTask(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	release := s.dev.hold()
	defer release()
	tag := heldRead(r)
	keep := heldRead(r)
	eventually(t, "the reads are at the volume", func() bool { return s.dev.held() == 2 })
	tmf := r.sendTask(iscsi.AbortTask, 0, tag, r.cmdSN-2)
	s.aborted(r, 1)
	r.expectSilence() // storage still has it
	release()
	var seen []uint32
	for len(seen) < 2 {
		p := r.read()
		switch {
		case p.Opcode() == iscsi.OpTaskResponse:
			if code := p.TaskResponse().Response(); code != iscsi.TaskComplete || p.ITT() != tmf {
				t.Fatalf("ABORT TASK: response %d for %#x", code, p.ITT())
			}
			seen = append(seen, tmf)
		case p.ITT() == tag:
			t.Fatalf("%v of the aborted task", p.Opcode())
		case p.Opcode() == iscsi.OpSCSIResponse || p.Opcode() == iscsi.OpDataIn && p.DataIn().HasStatus():
			seen = append(seen, keep)
		}
	}
	if code := r.task(iscsi.AbortTask, 0, tag, r.cmdSN-2); code != iscsi.TaskNotFound {
		t.Errorf("ABORT TASK again: %d", code)
	}
	if got := s.Status().Sessions[0].Aborted; got != 1 {
		t.Errorf("%d aborted commands counted, want 1", got)
	}
	r.ready()
}

// A command that has not arrived counts as received, and is dropped if it comes.
func TestAbortTaskThatNeverArrived(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	sn := r.cmdSN
	r.cmdSN++ // lost
	if code := r.task(iscsi.AbortTask, 0, 0x9999, sn); code != iscsi.TaskComplete {
		t.Errorf("ABORT TASK of a command that never came: %d", code)
	}
	r.at(sn, command{cdb: testUnitReady}) // late: outside the window now
	r.ready()
}

func TestTaskSetFunctions(t *testing.T) {
	for _, c := range []struct {
		f      iscsi.TaskFunction
		others bool   // other initiators' tasks end too
		asc    uint16 // what they are told
	}{
		{iscsi.AbortTaskSet, false, 0},
		{iscsi.ClearTaskSet, true, 0x2f00},
		{iscsi.LogicalUnitReset, true, 0x2903},
		{iscsi.TargetWarmReset, true, 0x2902},
	} {
		t.Run(c.f.String(), func(t *testing.T) {
			s := serve(t, nil)
			r, other := s.session(), s.second(50)
			release := s.dev.hold()
			defer release()
			heldRead(r)
			heldRead(r)
			theirs := heldRead(other)
			eventually(t, "the reads are at the volume", func() bool { return s.dev.held() == 3 })
			tmf := r.sendTask(c.f, 0, iscsi.ReservedTag, 0)
			s.aborted(r, 2)
			r.expectSilence()
			release()
			if c.others {
				other.answerPing() // the response waits until it has acknowledged what it got
			}
			p := r.expect(iscsi.OpTaskResponse) // and nothing of the two reads before it
			if p.ITT() != tmf || p.TaskResponse().Response() != iscsi.TaskComplete {
				t.Errorf("response %d for %#x", p.TaskResponse().Response(), p.ITT())
			}
			r.nop(nil)
			if !c.others {
				if res := other.finish(theirs, nil); res.status != 0 {
					t.Errorf("the other initiator's read: status %#x", res.status)
				}
				return
			}
			// Their task has gone without a word (TAS is 0); the next command tells.
			res := other.do(command{cdb: testUnitReady}, nil)
			if res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != c.asc {
				t.Errorf("the other initiator hears status %#x sense % x, want unit attention %04x", res.status, res.sense, c.asc)
			}
		})
	}
}

// The functions of RFC 7144 are there once iSCSIProtocolLevel 2 has been agreed on.
func TestTaskFunctionsOfLevel2(t *testing.T) {
	s := serve(t, nil)
	old := s.session()
	for _, f := range []iscsi.TaskFunction{iscsi.QueryTask, iscsi.QueryTaskSet, iscsi.ITNexusReset, iscsi.QueryAsyncEvent} {
		if got := old.task(f, 0, iscsi.ReservedTag, 0); got != iscsi.TaskUnsupported {
			t.Errorf("%v at level 1: response %d", f, got)
		}
	}
	supported := command{cdb: []byte{0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0}, read: true, edtl: 4}
	if res := old.do(supported, nil); !bytes.Equal(res.data, []byte{0xDA, 0, 0, 0}) {
		t.Errorf("functions at level 1: % x", res.data)
	}
	r := s.dial()
	r.isid[5] = 60
	r.mustLogin(testIQN, "iSCSIProtocolLevel=2")
	if r.params["iSCSIProtocolLevel"] != "2" {
		t.Fatalf("iSCSIProtocolLevel=%s", r.params["iSCSIProtocolLevel"])
	}
	event := func(lun int) (uint8, uint32) {
		t.Helper()
		itt := r.sendTask(iscsi.QueryAsyncEvent, lun, iscsi.ReservedTag, 0)
		p := r.expect(iscsi.OpTaskResponse)
		x := p.TaskResponse()
		if x.ITT() != itt {
			t.Fatalf("answer to %#x, want %#x", x.ITT(), itt)
		}
		return x.Response(), x.Additional()
	}
	// The attention of the new nexus waits for the first command; asking does not
	// take it away.
	for range 2 {
		if x, info := event(0); x != iscsi.TaskFunctionSucceeded || info != 0x16<<16|0x2900 {
			t.Errorf("QUERY ASYNCHRONOUS EVENT: response %d, %06x", x, info)
		}
	}
	if x, _ := event(5); x != iscsi.TaskNoLUN {
		t.Errorf("QUERY ASYNCHRONOUS EVENT of no LUN: response %d", x)
	}
	r.ready()
	if x, info := event(0); x != iscsi.TaskComplete || info != 0 {
		t.Errorf("QUERY ASYNCHRONOUS EVENT with nothing pending: response %d, %06x", x, info)
	}
	if res := r.do(supported, nil); !bytes.Equal(res.data, []byte{0xDE, 0x07, 0, 0}) {
		t.Errorf("functions at level 2: % x", res.data)
	}
	release := s.dev.hold()
	defer release()
	tag := heldRead(r)
	if got := r.task(iscsi.QueryTask, 0, tag, r.cmdSN-1); got != iscsi.TaskFunctionSucceeded {
		t.Errorf("QUERY TASK of a running task: %d", got)
	}
	if got := r.task(iscsi.QueryTaskSet, 0, iscsi.ReservedTag, 0); got != iscsi.TaskFunctionSucceeded {
		t.Errorf("QUERY TASK SET: %d", got)
	}
	for _, c := range []struct {
		f    iscsi.TaskFunction
		lun  int
		want uint8
	}{
		{iscsi.QueryTask, 0, iscsi.TaskComplete},
		{iscsi.QueryTaskSet, 5, iscsi.TaskNoLUN},
	} {
		if got := r.task(c.f, c.lun, 0x4242, r.cmdSN); got != c.want {
			t.Errorf("%v on LUN %d: response %d, want %d", c.f, c.lun, got, c.want)
		}
	}
	// I_T NEXUS RESET ends the task of this session and of no other.
	theirs := heldRead(old)
	eventually(t, "the reads are at the volume", func() bool { return s.dev.held() == 2 })
	itt := r.sendTask(iscsi.ITNexusReset, 0, iscsi.ReservedTag, 0)
	s.aborted(r, 1)
	release()
	if p := r.expect(iscsi.OpTaskResponse); p.TaskResponse().ITT() != itt || p.TaskResponse().Response() != iscsi.TaskComplete {
		t.Errorf("I_T NEXUS RESET: %+v", p.BHS)
	}
	if res := old.finish(theirs, nil); res.status != 0 {
		t.Errorf("the other session's READ: status %#x", res.status)
	}
	if res := r.do(command{cdb: testUnitReady}, nil); res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2907 {
		t.Errorf("after I_T NEXUS RESET: status %#x sense % x", res.status, res.sense)
	}
	if res := old.do(command{cdb: testUnitReady}, nil); res.status != 0 {
		t.Errorf("the other session hears status %#x sense % x", res.status, res.sense)
	}
}

func TestTaskFunctionsRefused(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	for _, c := range []struct {
		f    iscsi.TaskFunction
		lun  int
		want uint8
	}{
		{iscsi.TaskReassign, 0, iscsi.TaskNoReassign},
		{iscsi.LogicalUnitReset, 5, iscsi.TaskNoLUN},
		{99, 0, iscsi.TaskUnsupported},
		{iscsi.ClearACA, 0, iscsi.TaskUnsupported}, // NormACA is 0
	} {
		if got := r.task(c.f, c.lun, 0x4242, r.cmdSN); got != c.want {
			t.Errorf("%v on LUN %d: response %d, want %d", c.f, c.lun, got, c.want)
		}
	}
}

func TestColdResetClosesEverySession(t *testing.T) {
	s := serve(t, nil)
	r, other := s.session(), s.second(50)
	if got := r.task(iscsi.TargetColdReset, 0, iscsi.ReservedTag, 0); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
	r.expectClosed()
	other.expectClosed()
	s.session().logout()
}

// A reset of the logical unit also ends WRITEs that wait for unsolicited or
// solicited data.
func TestResetWhileDataIsOwed(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r := s.session("InitialR2T=No", "FirstBurstLength=16384")
	r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
	solicited := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384})
	q := r.expect(iscsi.OpR2T)
	if q.ITT() != solicited {
		t.Fatalf("R2T for %#x", q.ITT())
	}
	if got := r.task(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
	// The data that was asked for still comes, and is dropped.
	r.dataOut(solicited, q.R2T().TTT(), 0, 0, make([]byte, 16384), true)
	r.nop(nil)
	eventually(t, "no slot is in use", func() bool { return s.Status().Sessions[0].Slots == 0 })
	r.ready()
}

// A reset by one initiator also ends the WRITE of another one that owes its data
// and is otherwise silent.
func TestResetWhileAnotherOwesData(t *testing.T) {
	s := serve(t, nil)
	r, other := s.session(), s.second(50)
	tag := other.command(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 65536})
	q := other.expect(iscsi.OpR2T)
	r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
	other.answerPing()
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
	other.dataOut(tag, q.R2T().TTT(), 0, 0, make([]byte, 65536), true) // too late, and dropped
	other.ready()
}

// CLEAR TASK SET ends the WRITE of another initiator that owes unsolicited data, which hears of it.
func TestClearTaskSetWhileAnotherOwesData(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r, third := s.session(), s.second(51)
	other := s.dial()
	other.isid[5] = 50
	other.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
	other.ready()
	tag := other.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
	other.nop(nil) // it has arrived
	r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384})
	r.expect(iscsi.OpR2T)
	r.sendTask(iscsi.ClearTaskSet, 0, iscsi.ReservedTag, 0)
	other.answerPing()
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
	other.dataOut(tag, iscsi.ReservedTag, 0, 0, make([]byte, 16384), true) // too late, and dropped
	if res := other.do(command{cdb: testUnitReady}, nil); res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2f00 {
		t.Errorf("the other initiator hears status %#x sense % x", res.status, res.sense)
	}
	for _, x := range []*rawInitiator{r, other, third} {
		if res := x.do(command{cdb: testUnitReady}, nil); res.status != 0 {
			t.Errorf("status %#x sense % x of who has lost nothing, or knows", res.status, res.sense)
		}
	}
}

// With TAS such a WRITE is answered instead, also when an ORDERED one has held up what came behind it; the one
// who has ended it gets no answer to his own.
func TestOwedDataAndTaskAborted(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset} {
		s := serve(t, unsolicitedAllowed)
		r := s.dial()
		r.isid[5] = 50
		r.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
		r.ready()
		other := s.dial()
		other.isid[5] = 51
		other.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
		other.ready()
		control := other.do(command{cdb: []byte{0x1a, 0x08, 0x0a, 0, 24, 0}, read: true, edtl: 24}, nil).data // MODE SENSE(6)
		control[0], control[9] = 0, control[9]|0x40                                                           // TAS
		if res := other.do(command{cdb: []byte{0x15, 0x10, 0, 0, byte(len(control)), 0}, write: true, edtl: uint32(len(control)), imm: control}, nil); res.status != 0 {
			t.Fatalf("MODE SELECT: status %#x sense % x", res.status, res.sense)
		}
		r.ready()
		write := command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true, attr: 2}
		tag := other.command(write)
		behind := other.command(command{cdb: testUnitReady})
		other.nop(nil) // they have arrived
		r.command(write)
		r.sendTask(f, 0, iscsi.ReservedTag, 0)
		if res := other.finish(tag, nil); res.status != 0x40 {
			t.Errorf("%v: the other initiator's WRITE: status %#x", f, res.status)
		}
		other.finish(behind, nil)
		other.answerPing()
		if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
			t.Errorf("%v: response %d", f, got)
		}
		other.dataOut(tag, iscsi.ReservedTag, 0, 0, make([]byte, 16384), true) // too late, and dropped
		res := other.do(command{cdb: testUnitReady}, nil)
		if f == iscsi.ClearTaskSet && res.status != 0 {
			t.Errorf("%v: the next command: status %#x sense % x", f, res.status, res.sense)
		}
	}
}

// What an ORDERED WRITE has held up goes on when another initiator's reset ends
// that WRITE.
func TestResetReleasesHeldCommands(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r, other := s.session(), s.dial()
	other.isid[5] = 50
	other.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
	other.ready()
	other.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true, attr: 2})
	tag := other.command(command{cdb: testUnitReady})
	other.nop(nil) // both have arrived
	r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
	if p := other.expect(iscsi.OpSCSIResponse); p.ITT() != tag {
		t.Errorf("response for %#x, want %#x", p.ITT(), tag)
	}
	other.answerPing() // the reset waits for what it had before
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
}

// Aborts, resets and I/O of several initiators at once end in order.
func TestAbortStorm(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Limits.Commands = 16 })
	var rs []*rawInitiator
	for i := range 4 { // all of them first: a reset would end their first commands without a word
		rs = append(rs, s.second(byte(60+i)))
	}
	var wg sync.WaitGroup
	for i, r := range rs {
		wg.Go(func() { r.storm(t, i) })
	}
	wg.Wait()
	eventually(t, "no slot is in use", func() bool {
		for _, x := range s.Status().Sessions {
			if x.Slots != 0 {
				return false
			}
		}
		return true
	})
}

// storm sends commands and task management at random and reads whatever comes.
func (r *rawInitiator) storm(t *testing.T, seed int) {
	data := pattern(8192, byte(seed))
	pending := map[uint32]bool{} // tags of task management
	for round := range 60 {
		last := uint32(0)
		for j := range 6 {
			if (round+j)%2 == 0 {
				last = r.command(command{cdb: cdbRW10(0x28, uint32(seed*64), 16), read: true, edtl: 8192})
			} else {
				last = r.command(command{cdb: cdbRW10(0x2a, uint32(seed*64), 16), write: true, edtl: 8192, imm: data})
			}
		}
		switch (round + seed) % 5 {
		case 0:
			pending[r.sendTask(iscsi.AbortTask, 0, last, r.cmdSN-1)] = true
		case 1:
			pending[r.sendTask(iscsi.AbortTaskSet, 0, iscsi.ReservedTag, 0)] = true
		case 2:
			pending[r.sendTask(iscsi.ClearTaskSet, 0, iscsi.ReservedTag, 0)] = true
		case 3:
			pending[r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)] = true
		}
		// The ping comes back behind everything that was answered at once.
		r.sendNop(nil)
		ping := r.itt
		for {
			p, err := r.tryRead(ioTime)
			if err != nil {
				t.Errorf("initiator %d round %d: %v", seed, round, err)
				return
			}
			r.status(p)
			switch p.Opcode() {
			case iscsi.OpTaskResponse:
				if !pending[p.ITT()] {
					t.Errorf("task management response for %#x, which was not asked", p.ITT())
				}
				delete(pending, p.ITT())
			case iscsi.OpReject:
				t.Errorf("reject: %v", p.Reject().Reason())
			}
			if p.Opcode() == iscsi.OpNopIn && p.ITT() == ping && len(pending) == 0 {
				break
			}
			if p.Opcode() == iscsi.OpNopIn && p.ITT() == ping {
				r.sendNop(nil)
				ping = r.itt
			}
		}
	}
	r.logout()
}

// TestAbortTaskOfAnotherUnit: a task is named by its tag and its logical unit, also where the
// device server does not know it yet: its data is on its way, or a command before it.
func TestAbortTaskOfAnotherUnit(t *testing.T) {
	t.Run("data on its way", func(t *testing.T) {
		s := serve(t, unsolicitedAllowed)
		r := s.session("InitialR2T=No", "FirstBurstLength=16384")
		tag := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
		if code := r.task(iscsi.AbortTask, 1, tag, r.cmdSN-1); code != iscsi.TaskNotFound {
			t.Errorf("ABORT TASK with another LUN: response %d", code)
		}
		r.dataOut(tag, iscsi.ReservedTag, 0, 0, pattern(8192, 1), false)
		r.dataOut(tag, iscsi.ReservedTag, 1, 8192, pattern(8192, 2), true)
		if res := r.finish(tag, nil); res.status != 0 {
			t.Errorf("the WRITE: status %#x", res.status)
		}
	})
	t.Run("ahead of its turn", func(t *testing.T) {
		s := serve(t, nil)
		r := s.session()
		gap := r.cmdSN
		r.cmdSN++
		tag := r.command(command{cdb: testUnitReady})
		eventually(t, "it is held", func() bool { return s.heldCommands() == 1 })
		if code := r.task(iscsi.AbortTask, 1, tag, r.cmdSN-1); code != iscsi.TaskNotFound {
			t.Errorf("ABORT TASK with another LUN: response %d", code)
		}
		r.at(gap, command{cdb: testUnitReady})
		if res := r.finish(r.itt, nil); res.status != 0 {
			t.Errorf("the command before it: status %#x", res.status)
		}
		if res := r.finish(tag, nil); res.status != 0 {
			t.Errorf("the command: status %#x", res.status)
		}
	})
}

// TestNothingBeforeTheLoginResponse: a connection that joins a session is in full feature phase a
// moment before its final Login Response is queued. Nothing is said on it in between, nor is its
// acknowledgement waited for.
func TestNothingBeforeTheLoginResponse(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	x := s.sessionByTSIH(r.tsih)
	conns := x.conns.list()
	conns[1].quiet.Store(true) // as in that moment
	if code := r.task(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0); code != iscsi.TaskComplete {
		t.Errorf("LUN RESET: response %d", code)
	}
	b.expectSilence()
	for _, c := range conns {
		c.quiet.Store(true)
	}
	if c := x.conns.speaker(); c != nil {
		t.Errorf("connection %d is to speak", c.cid)
	}
}

// An immediate command takes no place in the window (RFC 7143 §4.2.2.1).
func TestImmediateIsOutsideTheWindow(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	release := s.dev.hold()
	defer release()
	for i, immediate := range []bool{false, true} {
		r.command(command{cdb: cdbRW10(0x28, 0, 8), read: true, edtl: 4096, immediate: immediate})
		eventually(t, "the read is at the volume", func() bool { return s.dev.held() == i+1 })
		if x := s.Status().Sessions[0]; x.Outstanding != 1 || x.Slots != i+1 {
			t.Errorf("%d commands in the window, %d slots in use", x.Outstanding, x.Slots)
		}
	}
	release()
}
