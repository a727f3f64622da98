package iscsi

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev/mem"
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// loopTarget is a quietServer with a volume whose reads can be held.
func loopTarget(t *testing.T) (*server, *slowDevice) {
	t.Helper()
	s := quietServer(t)
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	dev := &slowDevice{Device: vol}
	if err := s.AddLUN(testIQN, LUN{LUConfig: scsi.LUConfig{Volume: dev}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		shutdown(s.testServer)
		vol.Close()
	})
	return s, dev
}

// loopInitiator is one connection over a loopMover.
type loopInitiator struct {
	c  *conn
	m  *loopMover
	sn uint32
}

func (s *server) loopInitiator(t *testing.T, name string, kv ...string) *loopInitiator {
	t.Helper()
	c, m := s.loopStart(t)
	m.name = name
	s.loopLogin(t, c, m, kv...)
	i := &loopInitiator{c, m, 1}
	for range 4 { // the unit attentions of a new nexus
		tur := scsiPDU(testUnitReady, false, 0, nil)
		tur.BHS.SCSICommand().SetRead(false)
		if m.run(tur, &i.sn) == 0 {
			return i
		}
	}
	t.Fatal("TEST UNIT READY never got GOOD")
	return nil
}

func (i *loopInitiator) read() {
	p := scsiPDU(cdbRW10(0x28, 0, 8), false, 4096, nil)
	p.BHS.SetCmdSN(i.sn)
	p.BHS.SetITT(i.sn)
	i.sn++
	i.m.deliver(p)
}

func (i *loopInitiator) task(f iscsi.TaskFunction) {
	p := &iscsi.PDU{}
	q := p.BHS.NewTaskRequest(f)
	q.SetImmediate(true)
	q.SetITT(0x7000)
	q.SetRefTask(iscsi.ReservedTag)
	q.SetCmdSN(i.sn)
	i.m.deliver(p)
}

// acknowledge answers a ping; exp is ExpStatSN.
func (i *loopInitiator) acknowledge(exp uint32) {
	p := &iscsi.PDU{}
	n := p.BHS.NewNopOut()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(i.c.beat.ping.tag)
	n.SetImmediate(true)
	n.SetExpStatSN(exp)
	i.m.deliver(p)
}

// answered reports whether the task management function has been answered.
func (i *loopInitiator) answered() bool {
	_, _, last := i.m.seen(i.c)
	return last.Opcode() == iscsi.OpTaskResponse && last.ITT() == 0x7000
}

func (i *loopInitiator) pings() int { n, _, _ := i.m.seen(i.c); return n }

// The response to a function that ends tasks of another session waits until its
// initiator has acknowledged what it was sent (RFC 7143 §4.2.3.3), and no longer than
// that is reasonable.
func TestAbortSetsWaitForOtherSessions(t *testing.T) {
	for _, c := range []struct {
		name   string
		f      iscsi.TaskFunction
		shares bool // the other session has a task on the logical unit
		how    string
		wait   time.Duration // until the answer
	}{
		{"its own tasks only", iscsi.AbortTaskSet, true, "", 0},
		{"no task of the other's", iscsi.LogicalUnitReset, false, "", 0},
		{"CLEAR TASK SET", iscsi.ClearTaskSet, true, "acknowledges", 3 * time.Second},
		{"LUN RESET", iscsi.LogicalUnitReset, true, "acknowledges", 3 * time.Second},
		{"TARGET WARM RESET", iscsi.TargetWarmReset, true, "acknowledges", 3 * time.Second},
		{"the other ends", iscsi.LogicalUnitReset, true, "ends", 3 * time.Second},
		{"the other is silent", iscsi.LogicalUnitReset, true, "silent", ackTime},
		{"the other acknowledges nothing", iscsi.LogicalUnitReset, true, "lies", ackTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dev := loopTarget(t)
				a, b := s.loopInitiator(t, "a"), s.loopInitiator(t, "b")
				release := dev.hold()
				a.read()
				want := 1
				if c.shares {
					b.read()
					want++
				}
				synctest.Wait()
				if dev.held() != want {
					t.Fatalf("%d reads are at the volume", dev.held())
				}
				a.task(c.f)
				synctest.Wait()
				if a.answered() || b.pings() != 0 {
					t.Fatal("the tasks still run")
				}
				release()
				began := time.Now()
				synctest.Wait()
				if c.wait == 0 {
					if !a.answered() || b.pings() != 0 {
						t.Errorf("answered %v, %d pings for the other", a.answered(), b.pings())
					}
					return
				}
				if b.pings() != 1 {
					t.Errorf("%d pings for the other", b.pings())
				}
				for time.Since(began) < c.wait-time.Second {
					if c.how == "lies" {
						b.acknowledge(b.c.out.statSN.Load() - 1)
					}
					time.Sleep(time.Second)
					if a.answered() {
						t.Fatalf("answered after %v", time.Since(began))
					}
				}
				time.Sleep(time.Second)
				switch c.how {
				case "acknowledges":
					b.acknowledge(b.c.out.statSN.Load())
				case "ends":
					b.c.close(errKilled)
				}
				if !a.answered() {
					t.Errorf("no answer after %v", time.Since(began))
				}
				if b.c.out.mu.Lock(); len(b.c.acks.waits) != 0 {
					t.Errorf("%d waits are left", len(b.c.acks.waits))
				}
				b.c.out.mu.Unlock()
			})
		})
	}
}

// A task set is aborted when the commands that were sent before the function are
// there; those that do not come count as aborted.
func TestAbortSetsWaitForCommands(t *testing.T) {
	for _, late := range []bool{false, true} {
		name := "they come"
		if late {
			name = "one does not"
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dev := loopTarget(t)
				n, err := s.node(testIQN)
				if err != nil {
					t.Fatal(err)
				}
				params := *n.session()
				params.MaxConnections = 2
				n.cfg.Session = &params
				a := s.loopInitiator(t, "a", "MaxConnections=2")
				release := dev.hold()
				defer release()
				first := a.sn
				a.sn++ // on its way on another connection
				a.read()
				a.task(iscsi.LogicalUnitReset)
				time.Sleep(4 * time.Second)
				if a.answered() {
					t.Fatal("answered although a command sent before has not arrived")
				}
				if dev.held() != 0 {
					t.Fatal("a command was executed out of order")
				}
				if !late {
					next := a.sn
					a.sn = first
					a.read()
					a.sn = next
				} else {
					time.Sleep(2 * time.Second)
				}
				synctest.Wait()
				release() // one of them may have come as far as the volume
				if !a.answered() {
					t.Error("no answer")
				}
				x := a.c.sess
				x.mu.Lock()
				defer x.mu.Unlock()
				if x.order.seq.win.ExpCmdSN != a.sn || x.order.seq.n != 0 || len(x.order.seq.waits) != 0 || len(x.order.seq.skip) != 0 {
					t.Errorf("ExpCmdSN %d, want %d; %d held, %d waits, %d skipped", x.order.seq.win.ExpCmdSN, a.sn, x.order.seq.n, len(x.order.seq.waits), len(x.order.seq.skip))
				}
				if got := x.counters.aborted.Load(); got != map[bool]uint64{false: 2, true: 1}[late] {
					t.Errorf("%d commands were aborted", got)
				}
			})
		})
	}
}

// ready runs TEST UNIT READY until it is GOOD; each must be answered at once.
func (i *loopInitiator) ready(t *testing.T, who string) {
	t.Helper()
	for range 4 { // unit attentions
		tur := scsiPDU(testUnitReady, false, 0, nil)
		tur.BHS.SCSICommand().SetRead(false)
		tur.BHS.SetCmdSN(i.sn)
		tur.BHS.SetITT(i.sn)
		i.sn++
		_, before, _ := i.m.seen(i.c)
		i.m.deliver(tur)
		_, after, last := i.m.seen(i.c)
		if after != before+1 || last.Opcode() != iscsi.OpSCSIResponse {
			t.Errorf("a command of %s is not answered", who)
			return
		}
		if last.SCSIResponse().Status() == 0 {
			return
		}
	}
	t.Errorf("TEST UNIT READY of %s never got GOOD", who)
}

// While a reset waits for a dead initiator, nobody else does: neither one that has
// nothing to do with it, nor the one that asked for it, whose window goes on.
func TestResetStallsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dev := loopTarget(t)
		a, b, c := s.loopInitiator(t, "a"), s.loopInitiator(t, "b"), s.loopInitiator(t, "c")
		release := dev.hold()
		b.read()
		synctest.Wait()
		a.task(iscsi.LogicalUnitReset)
		c.ready(t, "a third initiator, before the task has ended")
		release()
		synctest.Wait()
		began := time.Now()
		if a.answered() {
			t.Fatal("the other initiator has not acknowledged anything")
		}
		c.ready(t, "a third initiator")
		a.ready(t, "the one that resets")
		if d := time.Since(began); d != 0 {
			t.Errorf("that took %v", d)
		}
		time.Sleep(ackTime)
		synctest.Wait()
		if !a.answered() {
			t.Error("no answer to the reset")
		}
	})
}

// Who is alone waits for nobody.
func TestResetByTheOnlyInitiator(t *testing.T) {
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, dev := loopTarget(t)
			a := s.loopInitiator(t, "a")
			release := dev.hold()
			defer release()
			if busy {
				a.read()
			}
			synctest.Wait()
			began := time.Now()
			a.task(iscsi.LogicalUnitReset)
			if busy {
				release()
			}
			synctest.Wait()
			if d := time.Since(began); d != 0 || !a.answered() || a.pings() != 0 {
				t.Errorf("busy %v: answered %v after %v, %d pings", busy, a.answered(), d, a.pings())
			}
		})
	}
}
