package iscsi

import (
	"context"
	"fmt"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// level makes the target offer an error recovery level.
func level(n int) func(*serverConfig, *Target) {
	return func(c *serverConfig, _ *Target) {
		c.Session.ErrorRecoveryLevel, c.Session.MaxConnections, c.Session.AllowUnsolicited = n, 4, true
		c.Session.MaxRecvDataSegmentLength = 8192
		c.Timeouts.Sequence = 50 * time.Millisecond
	}
}

var withDigests = []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C"}

func atLevel(n int, kv ...string) []string {
	return append([]string{fmt.Sprintf("ErrorRecoveryLevel=%d", n), "MaxConnections=4", "MaxRecvDataSegmentLength=4096"}, kv...)
}

func TestLevelNegotiation(t *testing.T) {
	for _, c := range []struct{ target, asks, want int }{{0, 2, 0}, {1, 2, 1}, {2, 2, 2}, {2, 0, 0}, {2, 1, 1}} {
		s := serve(t, level(c.target))
		r := s.session(atLevel(c.asks)...)
		if got := r.params["ErrorRecoveryLevel"]; got != fmt.Sprint(c.want) {
			t.Errorf("target %d, initiator %d: ErrorRecoveryLevel=%s, want %d", c.target, c.asks, got, c.want)
		}
		want := uint8(iscsi.TaskNoReassign)
		if c.want == 2 {
			want = iscsi.TaskNotFound
		}
		if got := r.task(iscsi.TaskReassign, 0, 0x7777, 0); got != want {
			t.Errorf("TASK REASSIGN at level %d: response %d, want %d", c.want, got, want)
		}
	}
}

// At level 0 nothing is sent again: the number of a command that was damaged on its way is used up, and what
// follows does not wait for it.
func TestDamagedCommandAtLevel0(t *testing.T) {
	s := serve(t, nil)
	r := s.session(withDigests...)
	sn := r.cmdSN
	r.damage = 100
	r.command(command{cdb: cdbRW10(0x2a, 0, 8), write: true, edtl: 4096, imm: pattern(4096, 1)})
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectDataDigest {
		t.Fatalf("reason %v", p.Reject().Reason())
	}
	if p := r.nop(nil); p.ExpCmdSN() != sn+1 {
		t.Fatalf("ExpCmdSN %d behind command %d", p.ExpCmdSN(), sn)
	}
	mustEqual(t, "the blocks", r.read10(0, 8), make([]byte, 4096))
}

// A command whose immediate data is damaged is rejected and its number is not used
// up: the initiator fills the gap with the same command (RFC 7143 §7.3, §7.8).
func TestRetryAfterDigestError(t *testing.T) {
	s := serve(t, level(1))
	r := s.session(append(atLevel(1, withDigests...), "InitialR2T=Yes")...)
	w := command{cdb: cdbRW10(0x2a, 0, 8), write: true, edtl: 4096, imm: pattern(4096, 1)}
	sn := r.cmdSN
	r.damage = 100
	r.command(w)
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectDataDigest || p.ExpCmdSN() != sn {
		t.Fatalf("reason %v, ExpCmdSN %d", p.Reject().Reason(), p.ExpCmdSN())
	}
	later := r.command(command{cdb: testUnitReady})
	r.expectSilence()
	r.itt -= 2
	first := r.at(sn, w)
	r.itt++
	if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != first || p.SCSIResponse().Status() != 0 {
		t.Fatalf("the retried WRITE: %#x, status %#x", p.ITT(), p.SCSIResponse().Status())
	}
	if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != later {
		t.Fatalf("got a response for %#x", p.ITT())
	}
	// Once more: a duplicate, ignored.
	r.itt -= 2
	r.at(sn, w)
	r.itt++
	r.expectSilence()
	mustEqual(t, "the data", r.read10(0, 8), pattern(4096, 1))
	// A command that contradicts itself leaves a gap as well.
	sn = r.cmdSN
	r.command(command{cdb: testUnitReady, edtl: 512})
	if p := r.expect(iscsi.OpReject); p.ExpCmdSN() != sn {
		t.Errorf("ExpCmdSN %d after the Reject of %d", p.ExpCmdSN(), sn)
	}
	r.cmdSN = sn
	r.ready()
}

// Unsolicited data with a hole, a damaged or a missing end: the target asks for what
// it has not got, from the hole on.
func TestUnsolicitedRecovery(t *testing.T) {
	want := pattern(32768, 9)
	for _, c := range []struct {
		name string
		send []int // which of the three Data-Outs behind the immediate data
		bad  int   // of them, damaged; 0: none
		from uint32
		late bool // nothing but time tells
	}{
		{"damaged", []int{1, 2, 3}, 1, 8192, false},
		{"damaged in the middle", []int{1, 2, 3}, 2, 16384, false},
		{"damaged end", []int{1, 2, 3}, 3, 24576, true},
		{"lost", []int{2, 3}, 0, 8192, false},
		{"lost end", []int{1, 2}, 0, 24576, true},
		{"all lost", nil, 0, 8192, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits by the clock
			s := serve(t, func(cfg *serverConfig, tgt *Target) {
				level(1)(cfg, tgt)
				// All that is sent, and the answer to the R2T, has to come before the target
				// asks for it by the clock.
				cfg.Timeouts.Sequence = time.Hour
				if c.late {
					cfg.Timeouts.Sequence = 2 * time.Second
				}
			})
			r := s.session(append(atLevel(1, withDigests...), "InitialR2T=No")...)
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, 64), write: true, edtl: 32768, imm: want[:8192], more: true, attr: 2})
			behind := r.command(command{cdb: testUnitReady})
			for _, i := range c.send {
				if i == c.bad {
					r.damage = 1000
				}
				r.dataOut(tag, iscsi.ReservedTag, uint32(i-1), uint32(i)*8192, want[i*8192:(i+1)*8192], i == 3)
			}
			if c.bad > 0 {
				if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectDataDigest {
					t.Fatalf("reason %v", p.Reject().Reason())
				}
			}
			q := r.expect(iscsi.OpR2T).R2T()
			if q.Offset() != c.from || q.Desired() != 32768-c.from || q.R2TSN() != 0 {
				t.Fatalf("R2T %d for %d bytes at %d", q.R2TSN(), q.Desired(), q.Offset())
			}
			for sn, off := uint32(0), c.from; off < 32768; sn, off = sn+1, off+8192 {
				r.dataOut(tag, q.TTT(), sn, off, want[off:off+8192], off == 24576)
			}
			for range 2 { // the ORDERED write does not hold up what is behind it for ever
				if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != tag && p.ITT() != behind || p.SCSIResponse().Status() != 0 {
					t.Fatalf("%#x: status %#x", p.ITT(), p.SCSIResponse().Status())
				}
			}
			mustEqual(t, "the data", r.read10(0, 64), want)
		})
	}
}

// cut breaks the connection off.
func (r *rawInitiator) cut() { r.nc.Close() }

// connections waits until the target has noticed that n connections are left.
func (s *server) connections(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the session has %d connections", n), func() bool {
		st := s.Status().Sessions
		return len(st) == 1 && len(st[0].Connections) == n
	})
}

// takeOver opens a connection, logs the lost one out for recovery and goes on with
// the session's numbers.
func (s *server) takeOver(r *rawInitiator, cid uint16) *rawInitiator {
	s.t.Helper()
	x := s.another(r, cid)
	x.itt = r.itt + 0x100
	if code := x.logoutReason(iscsi.LogoutRecovery, r.cid); code != iscsi.LogoutClosed {
		s.t.Fatalf("logout for recovery: response %d", code)
	}
	return x
}

// reassign asks for a task; exp is ExpDataSN.
func (r *rawInitiator) reassign(ref, exp uint32) uint8 {
	r.t.Helper()
	var b iscsi.BHS
	q := b.NewTaskRequest(iscsi.TaskReassign)
	q.SetImmediate(true)
	tag := r.newTag()
	q.SetITT(tag)
	q.SetRefTask(ref)
	q.SetExpDataSN(exp)
	q.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
	p := r.expect(iscsi.OpTaskResponse)
	if p.ITT() != tag {
		r.t.Fatalf("response for %#x", p.ITT())
	}
	return p.TaskResponse().Response()
}

func (r *rawInitiator) mustReassign(ref, exp uint32) {
	r.t.Helper()
	if code := r.reassign(ref, exp); code != iscsi.TaskComplete {
		r.t.Fatalf("TASK REASSIGN: response %d", code)
	}
}

// A READ that runs when its connection is lost is answered on another one, after the
// logout and not before.
func TestReassignRunningRead(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	r.write10(0, pattern(16384, 3))
	release := s.dev.hold()
	defer release()
	tag := r.command(command{cdb: cdbRW10(0x28, 0, 32), read: true, edtl: 16384})
	eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
	b := s.another(r, 1)
	if code := b.reassign(tag, 0); code != iscsi.TaskStillAllegiant {
		t.Errorf("its connection is there: response %d", code)
	}
	b.nop(nil)
	r.cut()
	a := b.expect(iscsi.OpAsync).Async()
	if cid, _, _ := a.Params(); a.Event() != iscsi.AsyncConnectionDrop || cid != 0 {
		t.Errorf("event %d", a.Event())
	}
	if code := b.reassign(tag, 0); code != iscsi.TaskStillAllegiant {
		t.Errorf("its connection is not logged out: response %d", code)
	}
	if code := b.logoutReason(iscsi.LogoutRecovery, 9); code != iscsi.LogoutCIDNotFound {
		t.Errorf("logout of connection 9: response %d", code)
	}
	if code := b.logoutReason(iscsi.LogoutRecovery, 0); code != iscsi.LogoutClosed {
		t.Errorf("logout for recovery: response %d", code)
	}
	b.mustReassign(tag, 0)
	b.expectSilence()
	release()
	if res := b.finish(tag, nil); res.status != 0 {
		t.Errorf("status %#x", res.status)
	} else {
		mustEqual(t, "the data", res.data, pattern(16384, 3))
	}
	if code := b.reassign(tag, 0); code != iscsi.TaskNotFound {
		t.Errorf("an acknowledged task: response %d", code)
	}
	b.ready()
}

// The read ends while nobody is there to take its data.
func TestReassignAfterTheEnd(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	r.write10(0, pattern(16384, 3))
	release := s.dev.hold()
	tag := r.command(command{cdb: cdbRW10(0x28, 0, 32), read: true, edtl: 16384})
	eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
	r.cut()
	s.connections(t, 0)
	if st := s.Status().Sessions[0].State; st != "without connection" {
		t.Errorf("state %s", st)
	}
	release()
	eventually(t, "the read has ended", func() bool { return s.dev.held() == 0 })
	b := s.takeOver(r, 1)
	b.mustReassign(tag, 0)
	res := b.finish(tag, nil)
	mustEqual(t, "the data", res.data, pattern(16384, 3))
	b.ready()
}

// A task that has been answered is answered again; of its data comes what the
// initiator says it has not got, cut for the new connection.
func TestReassignAnswered(t *testing.T) {
	for _, c := range []struct {
		name string
		exp  uint32
		mrds string
		off  uint32 // where the data begins
		sns  []uint32
	}{
		{"all", 0, "4096", 0, []uint32{0, 1, 2, 3}},
		{"the rest", 3, "4096", 12288, []uint32{3}},
		{"no data", 4, "4096", 16384, nil},
		{"too much: ignored", 5, "4096", 0, []uint32{0, 1, 2, 3}},
		{"other length", 2, "1024", 8192, []uint32{2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, level(2))
			r := s.session(atLevel(2)...)
			r.write10(0, pattern(16384, 3))
			tag := r.command(command{cdb: cdbRW10(0x28, 0, 32), read: true, edtl: 16384})
			for range 4 {
				r.expect(iscsi.OpDataIn)
			}
			r.expect(iscsi.OpSCSIResponse) // and not acknowledged
			// It is overwritten by another initiator: what comes must be what was read.
			o := s.dial()
			o.isid[5] = 77
			o.mustLogin(testIQN)
			o.ready()
			o.write10(0, make([]byte, 16384))
			o.logout()
			r.cut()
			s.connections(t, 0)
			b := s.another(r, 1, "MaxRecvDataSegmentLength="+c.mrds)
			b.itt = r.itt + 0x100
			b.logoutReason(iscsi.LogoutRecovery, 0)
			b.mustReassign(tag, c.exp)
			off := c.off
			for _, sn := range c.sns {
				p := b.expect(iscsi.OpDataIn)
				d := p.DataIn()
				if d.DataSN() != sn || d.Offset() != off {
					t.Fatalf("Data-In %d at %d, want %d at %d", d.DataSN(), d.Offset(), sn, off)
				}
				mustEqual(t, "the data", p.data, pattern(16384, 3)[off:off+uint32(len(p.data))])
				off += uint32(len(p.data))
			}
			p := b.expect(iscsi.OpSCSIResponse)
			want := uint32(4)
			if len(c.sns) > 0 {
				want = c.sns[len(c.sns)-1] + 1
			}
			if sr := p.SCSIResponse(); sr.ITT() != tag || sr.Status() != 0 || sr.ExpDataSN() != want || off != 16384 {
				t.Errorf("response for %#x: status %#x, ExpDataSN %d after %d bytes", sr.ITT(), sr.Status(), sr.ExpDataSN(), off)
			}
			b.ready()
		})
	}
}

// A WRITE goes on with an R2T on the new connection.
func TestReassignWrite(t *testing.T) {
	want := pattern(32768, 5)
	for _, c := range []struct {
		name string
		do   func(r *rawInitiator) (tag uint32)
		exp  uint32
		off  uint32
	}{
		{"R2T not seen", func(r *rawInitiator) uint32 {
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, 64), write: true, edtl: 32768})
			r.expect(iscsi.OpR2T)
			return tag
		}, 0, 0},
		{"R2T seen, some data sent", func(r *rawInitiator) uint32 {
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, 64), write: true, edtl: 32768})
			q := r.expect(iscsi.OpR2T).R2T()
			r.dataOut(tag, q.TTT(), 0, 0, want[:8192], false)
			return tag
		}, 1, 0},
		{"unsolicited data missing", func(r *rawInitiator) uint32 {
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, 64), write: true, edtl: 32768, imm: want[:8192], more: true})
			r.dataOut(tag, iscsi.ReservedTag, 0, 8192, want[8192:16384], false)
			return tag
		}, 0, 16384},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(cfg *serverConfig, tgt *Target) {
				level(2)(cfg, tgt)
				cfg.Timeouts.Sequence = time.Hour
			})
			r := s.session(append(atLevel(2), "InitialR2T=No")...)
			tag := c.do(r)
			r.nop(nil)
			r.cut()
			s.connections(t, 0)
			b := s.takeOver(r, 1)
			b.mustReassign(tag, c.exp)
			q := b.expect(iscsi.OpR2T).R2T()
			if q.R2TSN() != c.exp || q.Offset() != c.off || q.Desired() != 32768-c.off {
				t.Fatalf("R2T %d for %d bytes at %d", q.R2TSN(), q.Desired(), q.Offset())
			}
			for sn, off := uint32(0), c.off; off < 32768; sn, off = sn+1, off+8192 {
				b.dataOut(tag, q.TTT(), sn, off, want[off:off+8192], off == 24576)
			}
			if p := b.expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 0 {
				t.Fatalf("status %#x", p.SCSIResponse().Status())
			}
			mustEqual(t, "the data", b.read10(0, 64), want)
		})
	}
}

// A login with the CID of the lost connection is its logout; the same with a
// connection that is still there.
func TestReinstatementForRecovery(t *testing.T) {
	for _, lost := range []bool{true, false} {
		t.Run(fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			s := serve(t, func(cfg *serverConfig, tgt *Target) {
				level(2)(cfg, tgt)
				cfg.Session.MaxConnections = 1
			})
			r := s.session(atLevel(2)...)
			release := s.dev.hold()
			defer release()
			tag := r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
			if lost {
				r.cut()
				s.connections(t, 0)
			}
			b := s.another(r, 0)
			b.itt = r.itt + 0x100
			b.mustReassign(tag, 0)
			release()
			if res := b.finish(tag, nil); res.status != 0 || len(res.data) != 512 {
				t.Errorf("status %#x, %d bytes", res.status, len(res.data))
			}
			b.ready()
		})
	}
}

// Commands that the target has not taken yet when their connection is lost are sent
// again with their numbers; a gap they left is filled.
func TestRetryOnAnotherConnection(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	sn := r.cmdSN
	tag := r.at(sn+1, command{cdb: testUnitReady}) // held: its predecessor is lost
	r.nop(nil)
	r.cut()
	s.connections(t, 0)
	b := s.takeOver(r, 1)
	if code := b.reassign(tag, 0); code != iscsi.TaskNotFound {
		t.Fatalf("TASK REASSIGN: response %d", code)
	}
	b.at(sn, command{cdb: testUnitReady})
	b.at(sn+1, command{cdb: testUnitReady})
	b.expect(iscsi.OpSCSIResponse)
	b.expect(iscsi.OpSCSIResponse)
	b.cmdSN = sn + 2
	b.ready()
}

// Tasks that nobody asks for in time are aborted, and the session ends if it has no
// connection.
func TestRetainTimeout(t *testing.T) {
	t.Parallel() // it waits by the clock
	for _, other := range []bool{true, false} {
		t.Run(fmt.Sprintf("other connection=%v", other), func(t *testing.T) {
			s := serve(t, level(2))
			r := s.session(atLevel(2, "DefaultTime2Wait=1", "DefaultTime2Retain=0")...)
			release := s.dev.hold()
			defer release()
			tag := r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
			var b *rawInitiator
			if other {
				b = s.another(r, 1)
			}
			r.cut()
			if other {
				b.expect(iscsi.OpAsync)
			}
			s.aborted(r, 1)
			release()
			if !other {
				eventually(t, "the session ends", func() bool { return len(s.Status().Sessions) == 0 })
				return
			}
			if code := b.reassign(tag, 0); code != iscsi.TaskNotFound {
				t.Errorf("TASK REASSIGN: response %d", code)
			}
			b.ready()
		})
	}
}

// Task management and logout reach the tasks of a lost connection.
func TestEndTasksWithoutConnection(t *testing.T) {
	for _, how := range []string{"ABORT TASK", "logout of the connection", "logout of the session", "shutdown"} {
		t.Run(how, func(t *testing.T) {
			s := serve(t, level(2))
			r := s.session(atLevel(2)...)
			// A WRITE whose data will never come, and a READ in the volume.
			tag := r.command(command{cdb: cdbRW10(0x2a, 8, 8), write: true, edtl: 4096})
			r.expect(iscsi.OpR2T)
			if how == "shutdown" {
				r.cut()
				s.connections(t, 0)
				ctx, cancel := context.WithTimeout(context.Background(), ioTime)
				defer cancel()
				if err := s.Shutdown(ctx); err != nil {
					t.Error(err)
				}
				return
			}
			b := s.another(r, 1)
			r.cut()
			b.expect(iscsi.OpAsync)
			b.cmdSN = r.cmdSN
			switch how {
			case "ABORT TASK":
				if code := b.task(iscsi.AbortTask, 0, tag, r.cmdSN-1); code != iscsi.TaskComplete {
					t.Errorf("response %d", code)
				}
			case "logout of the connection":
				if code := b.logoutReason(iscsi.LogoutConnection, 0); code != iscsi.LogoutClosed {
					t.Errorf("response %d", code)
				}
			case "logout of the session":
				b.logout()
				eventually(t, "the session ends", func() bool { return len(s.Status().Sessions) == 0 })
				return
			}
			if got := s.Status().Sessions[0].Aborted; got != 1 {
				t.Errorf("%d tasks were aborted", got)
			}
			b.ready()
		})
	}
}
