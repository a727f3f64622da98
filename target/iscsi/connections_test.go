package iscsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/target/portal"
)

// several allows n connections per session.
func several(n int) func(*serverConfig, *Target) {
	return func(c *serverConfig, _ *Target) { c.Session.MaxConnections = n }
}

// another logs a further connection into the session of r. CmdSN is the
// session's: only r counts it.
func (s *server) another(r *rawInitiator, cid uint16, kv ...string) *rawInitiator {
	s.t.Helper()
	x, status := s.tryAnother(r, cid, kv...)
	if status != iscsi.LoginSuccess {
		s.t.Fatalf("connection %d: status %04x (%v)", cid, uint16(status), status)
	}
	return x
}

func (s *server) tryAnother(r *rawInitiator, cid uint16, kv ...string) (*rawInitiator, iscsi.LoginStatus) {
	s.t.Helper()
	x := s.dial()
	x.isid, x.tsih, x.cid, x.cmdSN, x.itt = r.isid, r.tsih, cid, r.cmdSN, 0x1000*uint32(cid+1)
	p := x.login(testIQN, kv...)
	if st := p.LoginResponse().Status(); st != iscsi.LoginSuccess {
		return x, st
	}
	if x.tsih != r.tsih {
		s.t.Fatalf("connection %d is in session %#x, want %#x", cid, x.tsih, r.tsih)
	}
	x.crc = x.params["DataDigest"] == "CRC32C"
	return x, iscsi.LoginSuccess
}

// Logins that name a session (RFC 7143 §6.3.1): who may join, and who is told why
// not.
func TestJoin(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=8")
	if got := r.params["MaxConnections"]; got != "2" {
		t.Fatalf("MaxConnections=%s, want 2", got)
	}
	for _, c := range []struct {
		name   string
		change func(*rawInitiator)
		target string
		status iscsi.LoginStatus
	}{
		{"no such session", func(x *rawInitiator) { x.tsih += 77 }, testIQN, iscsi.LoginNoSession},
		{"another ISID", func(x *rawInitiator) { x.isid[5]++ }, testIQN, iscsi.LoginNoSession},
		{"another initiator", func(x *rawInitiator) { x.name += "x" }, testIQN, iscsi.LoginNoSession},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := s.dial()
			x.t, x.isid, x.tsih, x.cid, x.cmdSN = t, r.isid, r.tsih, 5, r.cmdSN
			c.change(x)
			if st := x.login(c.target).LoginResponse().Status(); st != c.status {
				t.Errorf("status %04x, want %04x", uint16(st), uint16(c.status))
			}
			x.expectClosed()
		})
	}
	b := s.another(r, 7)
	// Both carry commands, numbered for the session, with StatSN of their own.
	b.cmdSN = r.cmdSN
	b.write10(8, pattern(4096, 1))
	r.cmdSN = b.cmdSN
	mustEqual(t, "data written on the other connection", r.read10(8, 8), pattern(4096, 1))
	if _, st := s.tryAnother(r, 9); st != iscsi.LoginTooManyConnections {
		t.Errorf("third connection: status %04x", uint16(st))
	}
	st := s.Status().Sessions[0]
	if len(st.Connections) != 2 || st.Connections[1].CID != 7 {
		t.Errorf("status shows %+v", st.Connections)
	}
	r.logout()
	b.expectClosed()
	eventually(t, "the session ends", func() bool { return len(s.Status().Sessions) == 0 })
}

// A session has one portal group (RFC 7143 §4.1.2).
func TestJoinThroughAnotherGroup(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Portals = []portal.Config{{Listen: "127.0.0.1:0", Group: 1}, {Listen: "127.0.0.1:0", Group: 2}}
		c.Session.MaxConnections = 2
	})
	r := s.session("MaxConnections=2")
	x := dialRaw(t, s.Addrs()[1])
	x.isid, x.tsih, x.cid, x.cmdSN = r.isid, r.tsih, 1, r.cmdSN
	if st := x.login(testIQN).LoginResponse().Status(); st != iscsi.LoginCannotInclude {
		t.Errorf("status %04x", uint16(st))
	}
	x.expectClosed()
	r.nop(nil)
}

// The connections of a session are all over TLS, or none.
func TestJoinBesideTLS(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	id := &iscsi.LoginIdentity{SessionType: iscsi.NormalSession, InitiatorName: r.name, ISID: r.isid, TSIH: r.tsih, TargetName: testIQN}
	for kind, want := range map[portal.Transport]iscsi.LoginStatus{portal.TCP: iscsi.LoginSuccess, portal.TLS: iscsi.LoginCannotInclude} {
		l := &loginPhase{c: &conn{srv: s.Frontend, kind: kind, portal: s.listening.Portals()[0]}}
		var refused iscsi.LoginError
		if e, ok := errors.AsType[*iscsi.LoginError](l.admitMember(id, "")); ok {
			refused = *e
		}
		if refused.Status != want {
			t.Errorf("%v beside TCP: status %04x, want %04x", kind, uint16(refused.Status), uint16(want))
		}
	}
}

// A session limited to one connection takes no other.
func TestOneConnection(t *testing.T) {
	s := serve(t, nil)
	r := s.session("MaxConnections=8")
	if got := r.params["MaxConnections"]; got != "1" {
		t.Errorf("MaxConnections=%s", got)
	}
	if _, st := s.tryAnother(r, 1); st != iscsi.LoginTooManyConnections {
		t.Errorf("status %04x", uint16(st))
	}
	r.ready()
}

// The number of a further login's responses is the session's, from the first one
// on: the initiator must not take the window for wider than it is.
func TestJoinShowsTheWindow(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.MaxConnections, c.Limits.Commands = 2, 4 })
	r := s.session("MaxConnections=2")
	release := s.dev.hold()
	defer release()
	for range 4 {
		r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
	}
	eventually(t, "four reads wait", func() bool { return s.dev.held() == 4 })
	x := s.dial()
	x.isid, x.tsih, x.cid, x.cmdSN = r.isid, r.tsih, 1, r.cmdSN
	x.loginRequest(false, iscsi.StageOperational, 0, "InitiatorName="+x.name, "TargetName="+testIQN)
	p, _ := x.loginResponse()
	if p.ExpCmdSN() != r.cmdSN || p.MaxCmdSN() != r.cmdSN-1 {
		t.Errorf("the first response shows the window %d..%d, want it closed at %d", p.ExpCmdSN(), p.MaxCmdSN(), r.cmdSN)
	}
}

// Commands that travel on several connections are delivered in CmdSN order, and
// answered where they came from.
func TestOrderAcrossConnections(t *testing.T) {
	s := serve(t, several(3))
	r := s.session("MaxConnections=3")
	cs := []*rawInitiator{r, s.another(r, 1), s.another(r, 2)}
	sn := r.cmdSN
	// Writes to one block: the last one in CmdSN order must win. They are sent last
	// one first.
	const n = 9
	for i := n - 1; i >= 0; i-- {
		cs[i%3].at(sn+uint32(i), command{cdb: cdbRW10(0x2a, 0, 1), write: true, edtl: 512, imm: pattern(512, byte(i)), attr: 2})
		if i > 0 {
			cs[i%3].nop(nil) // it has arrived
		}
	}
	for i := range n {
		if p := cs[i%3].expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 0 {
			t.Fatalf("write %d: status %#x", i, p.SCSIResponse().Status())
		}
	}
	r.cmdSN = sn + n
	mustEqual(t, "the block", r.read10(0, 1), pattern(512, n-1))
}

// A model of the command window with commands on several connections at random,
// duplicates and late ones included: every number is executed exactly once.
func TestWindowOverConnections(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Session.MaxConnections, c.Limits.Commands = 4, 16 })
	r := s.session("MaxConnections=4")
	cs := []*rawInitiator{r, s.another(r, 1), s.another(r, 2), s.another(r, 3)}
	rnd := rand.New(rand.NewPCG(7, 11))
	before := s.Status().Sessions[0]
	first, total := r.cmdSN, 0
	for round := range 40 {
		sn := r.cmdSN
		n := 1 + rnd.IntN(16)
		wait := make([]int, len(cs)) // answers due on each connection
		at := make([]int, n)
		for _, i := range rnd.Perm(n) {
			at[i] = rnd.IntN(len(cs))
			cs[at[i]].at(sn+uint32(i), command{cdb: testUnitReady})
			wait[at[i]]++
			if rnd.IntN(4) == 0 { // again on the same connection: dropped, seen or not
				c := cs[at[i]]
				c.itt--
				c.at(sn+uint32(i), command{cdb: testUnitReady})
			}
		}
		for i, c := range cs {
			for range wait[i] {
				c.expect(iscsi.OpSCSIResponse)
			}
			if p := c.nop(nil); p.ExpCmdSN() != sn+uint32(n) {
				// The last command may be on its way through another connection.
				eventually(t, fmt.Sprintf("round %d: ExpCmdSN is %d", round, sn+uint32(n)), func() bool { return c.nop(nil).ExpCmdSN() == sn+uint32(n) })
			}
		}
		r.cmdSN += uint32(n)
		total += n
	}
	after := s.Status().Sessions[0]
	if got := int(after.Others - before.Others); got != total || r.cmdSN != first+uint32(total) {
		t.Errorf("%d commands were executed, %d were sent", got, total)
	}
}

// A gap in the numbering that nobody fills ends the session.
func TestStuckGap(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Session.MaxConnections = 2
		c.Timeouts.DataOut, c.Timeouts.NopInterval = 50*time.Millisecond, -1 // no ping ends them first
	})
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	b.at(r.cmdSN+1, command{cdb: testUnitReady})
	r.expectClosed()
	b.expectClosed()
}

// Closing one connection takes its tasks along and leaves the others alone
// (RFC 7143 §11.14.1).
func TestLogoutConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		from int // which connection asks: 0 the leading one, 1 the one that is closed
	}{{"from another", 0}, {"its own", 1}} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, several(2))
			r := s.session("MaxConnections=2")
			b := s.another(r, 1)
			release := s.dev.hold()
			defer release()
			b.at(r.cmdSN, command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			r.cmdSN++
			mine := r.command(command{cdb: cdbRW10(0x28, 8, 1), read: true, edtl: 512})
			eventually(t, "two reads wait", func() bool { return s.dev.held() == 2 })
			asks := []*rawInitiator{r, b}[c.from]
			asks.cmdSN = r.cmdSN
			var q iscsi.BHS
			l := q.NewLogoutRequest(iscsi.LogoutConnection)
			l.SetITT(asks.newTag())
			l.SetCID(1)
			l.SetCmdSN(r.cmdSN)
			asks.write(&q, nil)
			asks.expectSilence() // its task still runs
			release()
			// The logout and the task of the connection that stays are answered in any
			// order, the task with its status in the Data-In or behind it.
			loggedOut, finished := false, c.from == 1
			for !loggedOut || !finished {
				p := asks.read()
				switch {
				case p.Opcode() == iscsi.OpLogoutResp:
					if got := p.LogoutResponse().Response(); got != iscsi.LogoutClosed {
						t.Fatalf("response %d", got)
					}
					loggedOut = true
				case p.ITT() != mine || finished:
					t.Fatalf("%v for %#x: a task of the closed connection was answered", p.Opcode(), p.ITT())
				case p.Opcode() == iscsi.OpSCSIResponse, p.Opcode() == iscsi.OpDataIn && p.DataIn().HasStatus():
					finished = true
				}
			}
			b.expectClosed()
			if c.from == 1 {
				r.finish(mine, nil)
			}
			r.ready()
			if got := r.logoutReason(iscsi.LogoutConnection, 1); got != iscsi.LogoutCIDNotFound {
				t.Errorf("logout of a connection that is gone: response %d", got)
			}
			// The place is free again.
			s.another(r, 4).expectSilence()
			r.logout()
		})
	}
}

// Below error recovery level 2 the loss of one connection is the loss of the
// session.
func TestConnectionLostEndsSession(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	b.nc.Close()
	r.expectClosed()
	eventually(t, "the session ends", func() bool { return len(s.Status().Sessions) == 0 })
}

// A login with the CID of a connection that is there replaces it: its tasks end
// without a word, the session goes on (RFC 7143 §6.3.4).
func TestConnectionReinstatement(t *testing.T) {
	for _, most := range []int{1, 2} {
		t.Run(fmt.Sprintf("MaxConnections=%d", most), func(t *testing.T) {
			s := serve(t, several(most))
			r := s.session(fmt.Sprintf("MaxConnections=%d", most))
			var a *rawInitiator
			if most > 1 {
				a = s.another(r, 1)
			}
			release := s.dev.hold()
			r.command(command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			eventually(t, "the read waits", func() bool { return s.dev.held() == 1 })
			// The login waits for the read, which goes on until it has been aborted.
			began := make(chan *rawInitiator)
			go func() { defer close(began); began <- s.another(r, 0) }()
			s.aborted(r, 1)
			release()
			b := <-began
			if b == nil {
				t.FailNow()
			}
			r.expectClosed()
			b.ready() // the same session: no unit attention of a new nexus is due
			if a != nil {
				a.cmdSN = b.cmdSN
				a.ready()
			}
			st := s.Status()
			if len(st.Sessions) != 1 || len(st.Sessions[0].Connections) != most || st.Sessions[0].Aborted != 1 || st.Logins != 1 {
				t.Errorf("after reinstatement: %+v", st.Sessions)
			}
		})
	}
}

// A task management function that waits for commands on their way is over with the connection
// that it came on: it does not abort what is sent once that has been replaced, or was lost.
func TestTaskManagementEndsWithItsConnection(t *testing.T) {
	for _, erl := range []int{0, 2} {
		t.Run(fmt.Sprintf("level %d", erl), func(t *testing.T) {
			s := serve(t, level(erl))
			r := s.session(atLevel(erl)...)
			b := s.another(r, 1)
			x := s.sessionByTSIH(r.tsih)
			waits := func() int {
				x.mu.Lock()
				defer x.mu.Unlock()
				return len(x.order.seq.waits)
			}
			b.cmdSN = r.cmdSN + 1
			b.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
			eventually(t, "it waits for the command before it", func() bool { return waits() == 1 })
			c := r
			if erl == 0 {
				c = s.another(r, 1)
				b.expectClosed()
			} else {
				b.cut()
				s.connections(t, 1)
				r.expect(iscsi.OpAsync) // the connection was dropped
			}
			if n := waits(); n != 0 || x.manager.open.Load() != 0 {
				t.Errorf("%d functions wait, %d are not answered", n, x.manager.open.Load())
			}
			c.write10(0, pattern(512, 1))
			r.cmdSN = c.cmdSN
			r.ready()
		})
	}
}

// Task management reaches tasks on every connection of the session.
func TestAbortAcrossConnections(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	release := s.dev.hold()
	defer release()
	tag := b.at(r.cmdSN, command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
	r.cmdSN++
	// And nobody is delivering it any more, or the abort would wait for that.
	eventually(t, "the read waits", func() bool { return s.dev.held() == 1 && !s.delivering() })
	q := r.sendTask(iscsi.AbortTask, 0, tag, r.cmdSN-1)
	r.expectSilence()
	release()
	if p := r.expect(iscsi.OpTaskResponse); p.ITT() != q || p.TaskResponse().Response() != iscsi.TaskComplete {
		t.Errorf("ABORT TASK: response %d", p.TaskResponse().Response())
	}
	b.expectSilence()
	b.cmdSN = r.cmdSN
	b.ready()
}

// A reset is answered when nothing that was sent on the other connections can still
// arrive behind the answer (RFC 7143 §4.2.3.3).
func TestResetWaitsForAcks(t *testing.T) {
	for _, how := range []string{"acknowledged", "closed"} {
		t.Run(how, func(t *testing.T) {
			s := serve(t, several(3))
			r := s.session("MaxConnections=3")
			b := s.another(r, 1)
			b.at(r.cmdSN, command{cdb: testUnitReady})
			r.cmdSN++
			before := b.expSN
			b.expect(iscsi.OpSCSIResponse)
			tag := r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
			ping := b.expect(iscsi.OpNopIn)
			if ping.ITT() != iscsi.ReservedTag || ping.TTT() == iscsi.ReservedTag {
				t.Fatalf("NOP-In: ITT %#x, TTT %#x", ping.ITT(), ping.TTT())
			}
			r.expectSilence()
			if how == "closed" {
				s.another(r, 1) // takes its place
			} else {
				var q iscsi.BHS
				n := q.NewNopOut()
				n.SetTTT(ping.TTT())
				n.SetCmdSN(r.cmdSN)
				now := b.expSN
				b.expSN = before // does not acknowledge the response
				b.write(&q, nil)
				r.expectSilence()
				b.expSN = now
				b.write(&q, nil)
			}
			if p := r.expect(iscsi.OpTaskResponse); p.ITT() != tag || p.TaskResponse().Response() != iscsi.TaskComplete {
				t.Errorf("response %d for %#x", p.TaskResponse().Response(), p.ITT())
			}
		})
	}
}

// Asynchronous messages about the session come once, on one of its connections.
func TestAsyncOnOneConnection(t *testing.T) {
	s := serve(t, several(2))
	r := s.session("MaxConnections=2")
	b := s.another(r, 1)
	b.nop(nil)
	l := s.memory(t, "disk1", 1<<20)
	l.LUN = 1
	if err := s.AddLUN(testIQN, l); err != nil {
		t.Fatal(err)
	}
	p := r.expect(iscsi.OpAsync)
	if p.Async().Event() != iscsi.AsyncSCSI || len(p.data) < 16 || binary.BigEndian.Uint16(p.data[14:]) != 0x3f0e {
		t.Errorf("event %d, % x", p.Async().Event(), p.data)
	}
	b.nop(nil)
}
