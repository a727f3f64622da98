package initiator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

func TestCancelAborts(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, spc.OpRead10)
		var aborts []iscsi.BHS
		ft.tmf = func(c *fakeDM, p *iscsi.PDU) bool { aborts = append(aborts, p.BHS); return false }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r := &Request{Op: OpRead, Buf: make([]byte, 512)}
		if err := l.Do(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(aborts) != 1 {
			t.Fatalf("%d task management requests", len(aborts))
		}
		q := aborts[0].TaskRequest()
		p := held()[0]
		if q.Function() != iscsi.AbortTask || q.RefTask() != p.BHS.ITT() || q.RefCmdSN() != p.BHS.CmdSN() || !q.Immediate() {
			t.Fatalf("abort % x", aborts[0])
		}
		d := ft.last()
		d.mu.Lock()
		n := len(d.bufs)
		d.mu.Unlock()
		if n != 0 {
			t.Fatal("the buffers of the aborted command are still lent")
		}
		letGo(ft)
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
	})
}

// Many cancelled requests are aborted a few at a time.
func TestManyAborts(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpRead10)
		atOnce, most, total := 0, 0, 0
		ft.tmf = func(c *fakeDM, p *iscsi.PDU) bool {
			ft.mu.Lock()
			atOnce++
			total++
			most = max(most, atOnce)
			ft.mu.Unlock()
			go func() {
				time.Sleep(time.Millisecond)
				ft.mu.Lock()
				atOnce--
				ft.mu.Unlock()
				var r iscsi.PDU
				r.BHS.NewTaskResponse(iscsi.TaskComplete)
				r.BHS.SetITT(p.BHS.ITT())
				c.answer(&r)
			}()
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		errs := make(chan error, 40)
		for range 40 {
			go func() { errs <- l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}) }()
		}
		for range 40 {
			if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if most > maxTMFs || total != 40 {
			t.Fatalf("%d aborts, %d at once", total, most)
		}
		letGo(ft)
	})
}

// A target that answers commands but never task management: each abort ends
// with the command's own answer, and none is in the way of the next.
func TestAbortsNeverAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.tmf = func(*fakeDM, *iscsi.PDU) bool { return true }
		for range 5 {
			held := hold(ft, spc.OpRead10)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			time.AfterFunc(3*time.Second, func() {
				letGo(ft)
				for _, p := range held() {
					ft.last().execute(p)
				}
			})
			if err := l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(20 * time.Second) // the abort is overdue by now
		}
		s := l.Sessions()[0]
		s.mu.Lock()
		n := s.tm.outstanding
		s.mu.Unlock()
		if n != 0 {
			t.Fatalf("%d task management requests count as outstanding", n)
		}
		if st := l.Stats(); st.Losses != 0 || st.Aborts != 5 {
			t.Fatalf("%+v", st)
		}
	})
}

// The ladder: a command times out, the abort is refused, the LUN is reset, the
// commands of the others go on.
func TestCommandTimeout(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  uint8 // to the abort
		reset   uint8
		silent  bool
		losses  uint64
		timeout error
	}{
		{"abort works", iscsi.TaskComplete, 0, false, 0, ErrTimeout},
		{"no such task", iscsi.TaskNotFound, 0, false, 0, ErrTimeout},
		{"abort refused", iscsi.TaskUnsupported, iscsi.TaskComplete, false, 0, ErrTimeout},
		{"reset refused", iscsi.TaskUnsupported, iscsi.TaskRejected, false, 1, ErrTimeout},
		{"reset of nothing", iscsi.TaskUnsupported, iscsi.TaskNotFound, false, 1, ErrTimeout},
		{"no answer", 0, 0, true, 1, ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				cfg := ft.config()
				cfg.CommandTimeout = 10 * time.Second
				l := dialLUN(t, cfg)
				var fns []iscsi.TaskFunction
				ft.tmf = func(d *fakeDM, p *iscsi.PDU) bool {
					f := p.BHS.TaskRequest().Function()
					fns = append(fns, f)
					if c.silent {
						return true
					}
					var r iscsi.PDU
					code := c.answer
					if f == iscsi.LogicalUnitReset {
						code = c.reset
						letGo(ft)
					}
					r.BHS.NewTaskResponse(code)
					r.BHS.SetITT(p.BHS.ITT())
					d.answer(&r)
					return true
				}
				hold(ft, spc.OpRead10)
				begin := time.Now()
				_, err := l.ReadAt(make([]byte, 512), 0)
				if !errors.Is(err, c.timeout) || errors.Is(err, ErrOutcomeUnknown) != (c.losses > 0) {
					t.Fatal(err)
				}
				if took := time.Since(begin); took < cfg.CommandTimeout || took > cfg.CommandTimeout+50*time.Second {
					t.Fatalf("after %v", took)
				}
				letGo(ft)
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
				if n := l.Stats().Losses; n != c.losses {
					t.Fatalf("%d connections lost, want %d; task management %v", n, c.losses, fns)
				}
				if helped := c.answer == iscsi.TaskComplete || c.answer == iscsi.TaskNotFound; helped && !c.silent && len(fns) != 1 {
					t.Errorf("task management %v although the abort has helped", fns)
				}
			})
		})
	}
}

// A LUN reset ends what must not be repeated and repeats the rest.
func TestLUNResetSparesOthers(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, spc.OpRead10)
		read := &Request{Op: OpRead, Buf: make([]byte, 512)}
		ended := make(chan error, 1)
		read.Done = func(r *Request) { ended <- r.Err }
		l.Submit(read)
		synctest.Wait()
		if len(held()) != 1 {
			t.Fatal("not held")
		}
		letGo(ft)
		if err := l.Sessions()[0].ResetLUN(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

// TestNothingIsSentDuringReset: what is submitted while a LUN is reset is sent when the target has
// answered, and once; the target might drop it with the rest, or carry it out beside the second.
func TestNothingIsSentDuringReset(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		came := hold(ft, spc.OpRead10)
		var reset *iscsi.PDU
		ft.tmf = func(_ *fakeDM, p *iscsi.PDU) bool { reset = p; return true }
		ended := make(chan error, 2)
		read := func() {
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			synctest.Wait()
		}
		read()
		before := len(ft.logged())
		answered := make(chan error, 1)
		go func() { answered <- l.Sessions()[0].ResetLUN(context.Background(), 0) }()
		synctest.Wait()
		read()
		if n := len(came()); n != 1 {
			t.Errorf("%d reads came before the answer to the reset", n)
		}
		letGo(ft)
		complete(ft, reset)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if log := ft.logged()[before:]; len(log) != 2 {
			t.Errorf("%v were carried out", log)
		}
		s := l.Sessions()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stats.Losses != 0 || s.units.held != 0 || s.tm.outstanding != 0 {
			t.Errorf("%d losses, %d LUNs wait, %d requests are outstanding", s.stats.Losses, s.units.held, s.tm.outstanding)
		}
	})
}

// TestLateReset: a reset that is answered when it is not waited for any longer does not concern
// what has been sent since.
func TestLateReset(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.CommandTimeout = 10 * time.Second
		l := dialLUN(t, cfg)
		held := hold(ft, spc.OpRead10)
		var reset *iscsi.PDU
		ft.tmf = func(d *fakeDM, p *iscsi.PDU) bool {
			if p.BHS.TaskRequest().Function() == iscsi.LogicalUnitReset {
				reset = p
				return true
			}
			var r iscsi.PDU
			r.BHS.NewTaskResponse(iscsi.TaskUnsupported)
			r.BHS.SetITT(p.BHS.ITT())
			d.answer(&r)
			return true
		}
		// The command is answered after all, while its LUN is being reset.
		time.AfterFunc(20*time.Second, func() { ft.last().execute(held()[0]) })
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil || reset == nil {
			t.Fatal(err, reset)
		}
		time.Sleep(cfg.withDefaults().ResetTimeout) // the reset is overdue by then
		synctest.Wait()
		came := hold(ft, spc.OpRead10)
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
		synctest.Wait()
		complete(ft, reset)
		if n := len(came()); n != 1 {
			t.Fatalf("the read came %d times", n)
		}
		letGo(ft)
		ft.last().execute(came()[0])
		if err := <-ended; err != nil || l.Stats().Losses != 0 {
			t.Errorf("%v, %d connections were lost", err, l.Stats().Losses)
		}
	})
}

// complete answers a task management request.
func complete(ft *fakeTarget, p *iscsi.PDU) {
	var r iscsi.PDU
	r.BHS.NewTaskResponse(iscsi.TaskComplete)
	r.BHS.SetITT(p.BHS.ITT())
	ft.last().answer(&r)
	synctest.Wait()
}

// Who merely stops waiting does not reset a LUN that others use, even when the abort is
// refused.
func TestCancelDoesNotReset(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpRead10)
		var fns []iscsi.TaskFunction
		ft.tmf = func(d *fakeDM, p *iscsi.PDU) bool {
			fns = append(fns, p.BHS.TaskRequest().Function())
			var r iscsi.PDU
			r.BHS.NewTaskResponse(iscsi.TaskRejected)
			r.BHS.SetITT(p.BHS.ITT())
			d.answer(&r)
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		letGo(ft)
		if err := l.Flush(); err != nil {
			t.Error(err)
		}
		if n := l.Stats().Losses; n != 1 || len(fns) != 1 || fns[0] != iscsi.AbortTask {
			t.Errorf("task management %v, %d connections were lost", fns, n)
		}
	})
}

// The answer to an abort that has been given up counts for nothing.
func TestLateAbort(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, spc.OpRead10)
		var abort *iscsi.PDU
		ft.tmf = func(_ *fakeDM, p *iscsi.PDU) bool { abort = p; return true }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		time.AfterFunc(2*time.Second, func() { ft.last().execute(held()[0]) })
		if err := l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		letGo(ft)
		time.Sleep(20 * time.Second)
		var r iscsi.PDU
		r.BHS.NewTaskResponse(iscsi.TaskNotFound)
		r.BHS.SetITT(abort.BHS.ITT())
		ft.last().answer(&r)
		synctest.Wait()
		s := l.Sessions()[0]
		s.mu.Lock()
		n, losses := s.tm.outstanding, s.stats.Losses
		s.mu.Unlock()
		if n != 0 || losses != 0 {
			t.Errorf("%d requests count as outstanding, %d connections were lost", n, losses)
		}
	})
}

// The target has ended the tasks of one LUN: there, what may be repeated is, and the rest
// ends; other LUNs are not concerned.
func TestTasksTerminated(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		other, err := l.Sessions()[0].LUN(context.Background(), 3)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		came := map[string]int{}
		var theirs *iscsi.PDU
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			cmd := p.BHS.SCSICommand()
			op := spc.Opcode(cmd.CDB()[0])
			if op != spc.OpRead10 && op != spc.OpCompareAndWrite {
				return false
			}
			name := iscsi.FormatLUN(cmd.LUN()) + " " + op.String()
			if came[name]++; cmd.LUN() != 0 {
				theirs = p
				return true
			}
			return op == spc.OpCompareAndWrite || came[name] == 1
		}
		ended := make(chan *Request, 3)
		done := func(r *Request) { ended <- r }
		l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: done})
		l.Submit(&Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024), Done: done})
		other.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), User: "other", Done: done})
		synctest.Wait()
		var p iscsi.PDU
		p.BHS.NewAsync(iscsi.AsyncTasksTerminated)
		ft.last().answer(&p)
		for range 2 {
			r := <-ended
			if r.User != nil || r.Op == OpRead && r.Err != nil || r.Op != OpRead && !errors.Is(r.Err, ErrOutcomeUnknown) {
				t.Errorf("operation %d of %v: %v", r.Op, r.User, r.Err)
			}
		}
		synctest.Wait()
		for name, n := range came {
			if want := map[string]int{"0 READ(10)": 2}[name]; n != max(want, 1) {
				t.Errorf("%s came %d times", name, n)
			}
		}
		ft.last().execute(theirs)
		if r := <-ended; r.Err != nil {
			t.Error(r.Err)
		}
		letGo(ft)
	})
}

// TestOwnCancelIsNoTrouble: what a caller has cancelled is aborted without an event; what has taken too
// long for him is told.
func TestOwnCancelIsNoTrouble(t *testing.T) {
	for name, want := range map[string]int{"cancelled": 0, "too late": 1} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				var ev events
				cfg := ft.config()
				cfg.OnEvent = ev.add
				l := dialLUN(t, cfg)
				hold(ft, spc.OpRead10)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if name == "cancelled" {
					time.AfterFunc(time.Second/2, cancel)
				}
				if err := l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}); !errors.Is(err, ctx.Err()) {
					t.Fatal(err)
				}
				if st := l.Stats(); st.Aborts != 1 || ev.count(EventAborted) != want {
					t.Errorf("%d aborts, %d events, want %d", st.Aborts, ev.count(EventAborted), want)
				}
				letGo(ft)
			})
		})
	}
}
