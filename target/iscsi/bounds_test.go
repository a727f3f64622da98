package iscsi

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// Task management takes no place in the command window. What waits for commands that
// do not come is bounded all the same; the rest is rejected, and when the session ends
// nothing is left of either.
func TestTaskManagementIsBounded(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	const more = 40
	ahead := r.cmdSN + 3
	for range maxManaging + more {
		r.sendTaskAt(iscsi.LogicalUnitReset, ahead)
	}
	for range more {
		if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectImmediate {
			t.Fatalf("rejected with reason %v", p.Reject().Reason())
		}
	}
	x := s.sessionList(nil)[0]
	x.mu.Lock()
	n := len(x.order.seq.waits)
	x.mu.Unlock()
	if n != maxManaging {
		t.Errorf("%d functions wait, want %d", n, maxManaging)
	}
	for range 3 { // what they have waited for
		r.command(command{cdb: testUnitReady})
	}
	answered, commands := 0, 0
	for answered < maxManaging {
		switch p := r.read(); p.Opcode() {
		case iscsi.OpTaskResponse:
			answered++
		case iscsi.OpSCSIResponse:
			commands++
		case iscsi.OpNopIn:
		default:
			t.Fatalf("got %v", p.Opcode())
		}
	}
	if got := r.task(iscsi.LogicalUnitReset, 0, 0, 0); got != iscsi.TaskComplete {
		t.Errorf("a reset after all that: response %d", got)
	}
}

// sendTaskAt sends an immediate task management request that belongs before the
// command sn.
func (r *rawInitiator) sendTaskAt(f iscsi.TaskFunction, sn uint32) {
	r.t.Helper()
	keep := r.cmdSN
	r.cmdSN = sn
	r.sendTask(f, 0, iscsi.ReservedTag, 0)
	r.cmdSN = keep
}

// What is kept of READs until they are acknowledged has one bound for all. Without
// room a READ is answered as ever; only a SNACK for it cannot be served.
func TestRecoveryIsBounded(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint("level ", n), func(t *testing.T) {
			s := serve(t, func(c *serverConfig, tgt *Target) {
				level(n)(c, tgt)
				c.Staging = pool(t, 2<<20)
			})
			r := s.session(atLevel(n)...)
			acknowledged := r.expSN
			const each, reads = 256 << 10, 8
			var tags []uint32
			for range reads {
				r.expSN = acknowledged
				tags = append(tags, r.command(command{cdb: cdbRW10(0x28, 0, each/512), read: true, edtl: each}))
				for {
					p, err := r.tryRead(ioTime)
					if err != nil {
						t.Fatal(err)
					}
					if p.Opcode() == iscsi.OpSCSIResponse {
						break
					}
				}
			}
			if n := s.cfg.Staging.Reserved(); n == 0 || n > 1<<20 {
				t.Errorf("%d bytes are kept", n)
			}
			r.expSN = acknowledged
			for i, want := range map[int]iscsi.Opcode{0: iscsi.OpDataIn, reads - 1: iscsi.OpReject} {
				r.snack(iscsi.SNACKData, tags[i], 0, 1)
				if p, err := r.tryRead(ioTime); err != nil || p.Opcode() != want {
					t.Fatalf("SNACK for READ %d: %v, %v; want %v", i, p, err, want)
				}
			}
		})
	}
}

// snack asks for PDUs of a task again.
func (r *rawInitiator) snack(kind iscsi.SNACKType, itt, from, n uint32) {
	r.t.Helper()
	var b iscsi.BHS
	q := b.NewSNACK(kind)
	q.SetITT(itt)
	q.SetTTT(iscsi.ReservedTag)
	q.SetBegRun(from)
	q.SetRunLength(n)
	r.write(&b, nil)
}

// Connections that are lost one after the other, with a task each, are kept in the
// number that the session may have; the oldest make room.
func TestLostConnectionsAreBounded(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	release := s.dev.hold()
	defer release()
	const lost = 9
	for i := range lost {
		x := s.another(r, uint16(i+1), atLevel(2)...)
		x.command(command{cdb: cdbRW10(0x28, 0, 8), read: true, edtl: 4096})
		r.cmdSN = x.cmdSN
		eventually(t, "the command is under way", func() bool { return s.Status().Sessions[0].Outstanding > 0 })
		eventually(t, "it has arrived", func() bool {
			x := s.sessionList(nil)[0]
			return uint32(x.order.seq.win.shown.Load()>>32) == r.cmdSN
		})
		x.cut()
		s.connections(t, 1)
	}
	x := s.sessionList(nil)[0]
	x.mu.Lock()
	n := len(x.conns.members.lost)
	x.mu.Unlock()
	if n != 4 {
		t.Errorf("%d lost connections are kept, MaxConnections is 4", n)
	}
	release()
	eventually(t, "the tasks of the others are over", func() bool {
		held := 0
		x.mu.Lock()
		defer x.mu.Unlock()
		x.cmds.tags.each(func(k *task) { held++ })
		return held <= 4
	})
}

// An initiator cannot have its tasks kept for longer than the target would by itself,
// whatever Time2Wait it insists on.
func TestTime2WaitOfTheInitiator(t *testing.T) {
	s := serve(t, func(c *serverConfig, tgt *Target) {
		level(2)(c, tgt)
		c.Session.DefaultTime2Retain = 30
	})
	s.session(atLevel(2, "DefaultTime2Wait=3600", "DefaultTime2Retain=3600")...)
	if d := s.sessionList(nil)[0].retain(); d > time.Minute {
		t.Errorf("tasks are kept for %v, and Time2Retain of the target is 30 s", d)
	}
}

// A target may keep no task without its connection, RFC 7143 §13.16; that is not the default.
func TestNoTime2Retain(t *testing.T) {
	for own, want := range map[int]time.Duration{0: 20 * time.Second, -1: 0} {
		s := serve(t, func(c *serverConfig, tgt *Target) {
			level(2)(c, tgt)
			c.Session.DefaultTime2Retain = own
		})
		s.session(atLevel(2, "DefaultTime2Wait=0", "DefaultTime2Retain=3600")...)
		x := s.sessionList(nil)[0]
		if n, d := x.params.DefaultTime2Retain, x.retain(); time.Duration(n)*time.Second != want || d != want {
			t.Errorf("configured as %d: %d s are negotiated, tasks are kept for %v; want %v", own, n, d, want)
		}
	}
}

// A logout for recovery gives the tasks of a lost connection time once. Repeating it
// does not keep them for ever.
func TestRepeatedLogoutForRecovery(t *testing.T) {
	t.Parallel() // it waits by the clock
	s := serve(t, func(c *serverConfig, tgt *Target) {
		level(2)(c, tgt)
		c.Session.DefaultTime2Retain = 1
	})
	r := s.session(atLevel(2)...)
	x := s.another(r, 1, atLevel(2)...)
	x.cut()
	s.connections(t, 1)
	eventually(t, "the target gives the connection up", func() bool {
		return r.logoutReason(iscsi.LogoutRecovery, 1) == iscsi.LogoutCIDNotFound
	})
}

// A logout for recovery of a connection that is still on its way out is answered at
// once the second time: no number of them waits.
func TestLogoutOfALeavingConnection(t *testing.T) {
	s := quietServer(t)
	c, m := s.loopConn(t)
	x := &session{srv: s.Frontend, erl: 2}
	x.assemble()
	x.conns.members.conns = []*conn{c}
	other := &conn{srv: s.Frontend, sess: x, dm: m}
	other.assemble()
	c.recovering = true
	before := m.responses
	x.conns.logoutRecovery(other, 7, c.cid)
	if m.responses != before+1 || m.last.LogoutResponse().Response() != iscsi.LogoutCleanupFailed {
		t.Errorf("response % x", m.last[:])
	}
	c.close(errors.New("end of the test"))
}
