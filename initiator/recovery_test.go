package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/scsi"
)

// hold makes the target sit on commands of the given opcode and returns a
// function that tells how many it holds.
func hold(ft *fakeTarget, op scsi.Opcode) func() []*iscsi.PDU {
	var held []*iscsi.PDU
	ft.mu.Lock()
	ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
		if scsi.Opcode(p.BHS.SCSICommand().CDB()[0]) != op {
			return false
		}
		ft.mu.Lock()
		held = append(held, p)
		ft.mu.Unlock()
		return true
	}
	ft.mu.Unlock()
	return func() []*iscsi.PDU {
		ft.mu.Lock()
		defer ft.mu.Unlock()
		return slices.Clone(held)
	}
}

func letGo(ft *fakeTarget) {
	ft.mu.Lock()
	ft.hook = nil
	ft.mu.Unlock()
}

// Commands that can be repeated are, in the order in which they were sent,
// after the new login and after the LUN has been looked at; then what was
// submitted meanwhile.
func TestReplay(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		var ev events
		cfg := ft.config()
		cfg.OnEvent = ev.add
		l := dialLUN(t, cfg)
		held := hold(ft, scsi.OpWrite10)
		var order []uint64
		var errs []error
		submit := func(i int) {
			r := &Request{Op: OpWrite, Off: int64(i) * 512, Buf: bytes.Repeat([]byte{byte(i + 1)}, 512)}
			r.Done = func(r *Request) { errs = append(errs, r.Err) }
			l.Submit(r)
		}
		for i := range 5 {
			submit(i)
		}
		synctest.Wait()
		if n := len(held()); n != 5 {
			t.Fatalf("%d commands held", n)
		}
		isid := ft.last().isid
		ft.last().cut(errors.New("cable pulled"))
		synctest.Wait()
		if st, _ := l.Sessions()[0].State(); st != StateRecovering {
			t.Fatalf("state %v", st)
		}
		submit(5) // waits
		checked := 0
		ft.mu.Lock()
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			cdb := p.BHS.SCSICommand().CDB()
			switch scsi.Opcode(cdb[0]) {
			case scsi.OpWrite10:
				order = append(order, scsi.ParseIO(cdb[:10]).LBA)
			case scsi.OpInquiry:
				if len(order) > 0 {
					t.Error("the LUN was looked at after the replay had begun")
				}
				checked++
			}
			return false
		}
		ft.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !slices.Equal(order, []uint64{0, 1, 2, 3, 4, 5}) || checked == 0 {
			t.Fatalf("order %v after %d inquiries", order, checked)
		}
		if len(errs) != 6 || slices.IndexFunc(errs, func(e error) bool { return e != nil }) >= 0 {
			t.Fatalf("ended with %v", errs)
		}
		for i := range 6 {
			if ft.disk[i*512] != byte(i+1) {
				t.Fatalf("block %d was not written", i)
			}
		}
		if got := ft.last().isid; got != isid {
			t.Fatalf("ISID %v after the reconnect, %v before: that is not a reinstatement", got, isid)
		}
		st := l.Stats()
		if st.Losses != 1 || st.Logins != 2 || st.Replayed != 5 || ev.count(EventLost) != 1 || ev.count(EventRecovered) != 1 {
			t.Fatalf("stats %+v", st)
		}
		letGo(ft)
	})
}

// COMPARE AND WRITE and raw CDBs must not be repeated.
func TestOutcomeUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		for _, r := range []*Request{
			{Op: OpCompareAndWrite, Buf: make([]byte, 1024)},
			{Op: OpCDB, CDB: scsi.AppendTestUnitReady(nil)},
		} {
			op := scsi.OpTestUnitReady
			if r.Op == OpCompareAndWrite {
				op = scsi.OpCompareAndWrite
			}
			held := hold(ft, op)
			ended := make(chan struct{})
			r.Done = func(*Request) { close(ended) }
			l.Submit(r)
			synctest.Wait()
			ft.last().cut(errors.New("gone"))
			<-ended
			if !errors.Is(r.Err, ErrOutcomeUnknown) {
				t.Fatalf("%v", r.Err)
			}
			time.Sleep(3 * time.Second)
			if n := len(held()); n != 1 {
				t.Fatalf("%v reached the target %d times", op, n)
			}
			letGo(ft)
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
		}
		// One that had not been sent is sent.
		ft.last().cut(errors.New("gone"))
		synctest.Wait()
		if err := l.Do(context.Background(), &Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024)}); err != nil {
			t.Fatal(err)
		}
		if n := l.Stats().OutcomeUnknown; n != 2 {
			t.Fatalf("counted %d", n)
		}
	})
}

func TestReplacementTimeout(t *testing.T) {
	for _, after := range []time.Duration{30 * time.Second, -1} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			cfg := ft.config()
			cfg.ReplacementTimeout = after
			l := dialLUN(t, cfg)
			ft.mu.Lock()
			ft.dialErr = func(int) error { return errors.New("connection refused") }
			ft.mu.Unlock()
			ft.last().cut(errors.New("target died"))
			begin := time.Now()
			if after < 0 {
				time.AfterFunc(time.Hour, func() {
					ft.mu.Lock()
					ft.dialErr = nil
					ft.mu.Unlock()
				})
			}
			_, err := l.ReadAt(make([]byte, 512), 0)
			took := time.Since(begin)
			if after < 0 {
				if err != nil || took < time.Hour {
					t.Fatalf("%v after %v", err, took)
				}
				if n := ft.dials; n < 500 || n > 2000 {
					t.Fatalf("%d attempts in an hour", n)
				}
				return
			}
			if !errors.Is(err, ErrSessionLost) || took < after || took > after+10*time.Second {
				t.Fatalf("%v after %v, want ErrSessionLost after %v", err, took, after)
			}
			if _, err := l.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrSessionLost) {
				t.Fatalf("afterwards: %v", err)
			}
			if st, why := l.Sessions()[0].State(); st != StateFailed || why == nil {
				t.Fatalf("%v %v", st, why)
			}
		})
	}
}

func TestFailNow(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.FailNow = true
		l := dialLUN(t, cfg)
		hold(ft, scsi.OpRead10)
		begin := time.Now()
		time.AfterFunc(time.Second, func() { ft.last().cut(errors.New("gone")) })
		_, err := l.ReadAt(make([]byte, 512), 0)
		if !errors.Is(err, ErrSessionLost) || time.Since(begin) > 2*time.Second {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
	})
}

// A login refused for a reason that stays ends the session with that reason; a
// target that is merely not ready is asked again.
func TestRefusedLogin(t *testing.T) {
	cases := []struct {
		status iscsi.LoginStatus
		stays  bool
	}{
		{iscsi.LoginAuthFailure, true}, {iscsi.LoginForbidden, true}, {iscsi.LoginNotFound, true}, {iscsi.LoginTargetRemoved, true},
		{iscsi.LoginUnavailable, false}, {iscsi.LoginOutOfResources, false}, {iscsi.LoginTooManyConnections, false}, {iscsi.LoginTargetFailure, false},
	}
	for _, c := range cases {
		t.Run(c.status.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				n := 0
				ft.mu.Lock()
				ft.loginErr = func(*iscsi.LoginIdentity) error {
					if n++; n > 3 && !c.stays {
						return nil
					}
					return iscsi.Refuse(c.status, "test")
				}
				ft.mu.Unlock()
				ft.last().cut(errors.New("gone"))
				begin := time.Now()
				_, err := l.ReadAt(make([]byte, 512), 0)
				var le *iscsi.LoginError
				if c.stays {
					if !errors.Is(err, ErrSessionLost) || !errors.As(err, &le) || le.Status != c.status {
						t.Fatalf("%v after %d logins", err, n)
					}
					if took := time.Since(begin); c.status == iscsi.LoginNotFound {
						// May be a target that is not quite up yet.
						if took < startGrace || took > startGrace+2*maxRetry {
							t.Fatalf("believed after %v and %d logins", took, n)
						}
					} else if n != 1 {
						t.Fatalf("%d logins", n)
					}
				} else if err != nil || n != 4 {
					t.Fatalf("%v after %d logins", err, n)
				}
			})
		})
	}
}

func TestDialRefused(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Refuse(iscsi.LoginNotFound, "no such target") }
		_, err := Dial(context.Background(), ft.config())
		var le *iscsi.LoginError
		if !errors.As(err, &le) || le.Status != iscsi.LoginNotFound || !le.Remote {
			t.Fatal(err)
		}
	})
}

func TestDialTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		// The target takes the login and never answers.
		cfg.dial = func(ctx context.Context, c *Config, addr string) (iscsi.Datamover, error) {
			dm, err := ft.dial(ctx, c, addr)
			d := dm.(*fakeDM)
			d.login = nil
			d.mute = true
			return d, err
		}
		begin := time.Now()
		_, err := Dial(context.Background(), cfg)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 30*time.Second {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		if _, err := Dial(ctx, cfg); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

// Redirection is followed, but not for ever, and a reconnect starts at the
// address that was configured.
func TestRedirect(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		ft.loginErr = func(*iscsi.LoginIdentity) error {
			if ft.conns[len(ft.conns)-1].addr == cfg.Address {
				return iscsi.Redirect(false, "[2001:db8::5]:3261,1")
			}
			return nil
		}
		l := dialLUN(t, cfg)
		if p := l.Sessions()[0].Info().Portal; p != "[2001:db8::5]:3261" {
			t.Fatalf("portal %s", p)
		}
		ft.last().cut(errors.New("gone"))
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		var addrs []string
		for _, c := range ft.conns {
			addrs = append(addrs, c.addr)
		}
		if want := []string{cfg.Address, "[2001:db8::5]:3261", cfg.Address, "[2001:db8::5]:3261"}; !slices.Equal(addrs, want) {
			t.Fatalf("asked at %v", addrs)
		}
		ft.mu.Lock()
		ft.loginErr = func(*iscsi.LoginIdentity) error { return iscsi.Redirect(false, "192.0.2.9:3260,1") }
		ft.mu.Unlock()
		if _, err := Dial(context.Background(), cfg); err == nil {
			t.Fatal("an endless redirection was followed")
		}
	})
}

// A LUN that is another volume after the reconnect gets nothing.
func TestLUNChanged(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, scsi.OpWrite10)
		r := &Request{Op: OpWrite, Buf: bytes.Repeat([]byte{1}, 512)}
		ended := make(chan struct{})
		r.Done = func(*Request) { close(ended) }
		l.Submit(r)
		synctest.Wait()
		ft.mu.Lock()
		ft.naa, ft.hook = 99, nil
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		<-ended
		if !errors.Is(r.Err, ErrLUNChanged) || !errors.Is(r.Err, ErrSessionLost) {
			t.Fatal(r.Err)
		}
		if ft.disk[0] != 0 {
			t.Fatal("it was written to another volume")
		}
	})
}

// A target that lets us in and dies of the same command again and again does
// not get it for ever.
func TestPoisonCommand(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := 0
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			if scsi.Opcode(p.BHS.SCSICommand().CDB()[0]) == scsi.OpRead10 {
				n++
				c.cut(errors.New("crashed"))
				return true
			}
			return false
		}
		begin := time.Now()
		_, err := l.ReadAt(make([]byte, 512), 0)
		if !errors.Is(err, ErrSessionLost) {
			t.Fatal(err)
		}
		limit := l.Sessions()[0].cfg.ReplacementTimeout
		if took := time.Since(begin); took < limit || took > limit+2*maxRetry || n > 100 {
			t.Fatalf("sent %d times in %v", n, took)
		}
		letGo(ft)
		if _, err := l.ReadAt(make([]byte, 512), 512); err != nil {
			t.Fatalf("the session is not usable any more: %v", err)
		}
	})
}

func TestCancelAborts(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, scsi.OpRead10)
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
		hold(ft, scsi.OpRead10)
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
			held := hold(ft, scsi.OpRead10)
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
		n := s.tmfs
		s.mu.Unlock()
		if n != 0 {
			t.Fatalf("%d task management requests count as outstanding", n)
		}
		if st := l.Stats(); st.Losses != 0 || st.Aborts != 5 {
			t.Fatalf("%+v", st)
		}
	})
}

// GOOD without the data is not believed where arriving data is counted.
func TestGoodWithoutData(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			c.status(p, scsi.StatusGood, nil, 0)
			return true
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrShort) {
			t.Fatal(err)
		}
		letGo(ft)
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
				hold(ft, scsi.OpRead10)
				begin := time.Now()
				_, err := l.ReadAt(make([]byte, 512), 0)
				if !errors.Is(err, c.timeout) {
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
			})
		})
	}
}

// A LUN reset ends what must not be repeated and repeats the rest.
func TestLUNResetSparesOthers(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, scsi.OpRead10)
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

func TestClose(t *testing.T) {
	t.Run("outstanding commands end first", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			held := hold(ft, scsi.OpRead10)
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			synctest.Wait()
			d := ft.last()
			time.AfterFunc(time.Second, func() {
				letGo(ft)
				d.execute(held()[0])
			})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if _, err := l.ReadAt(make([]byte, 512), 0); err == nil {
				t.Fatal("a closed LUN reads")
			}
		})
	})
	// LIO over siw fails the Send of its Logout Response when a FIN comes right
	// after it, and its kernel log shows a warning.
	t.Run("the target closes first", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			closed := errors.New("closed by the target")
			ft.onLogout = func(d *fakeDM) { time.AfterFunc(closeGrace/2, func() { d.cut(closed) }) }
			d := ft.last()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if d.endErr != closed {
				t.Fatalf("the connection ended with %v, not by the target", d.endErr)
			}
		})
	})
	t.Run("a target that does not close", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			begin := time.Now()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 2*closeGrace {
				t.Fatalf("waited %v", took)
			}
		})
	})
	t.Run("a target that does not answer", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			cfg := ft.config()
			cfg.NopInterval = -1
			l := dialLUN(t, cfg)
			hold(ft, scsi.OpRead10)
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			begin := time.Now()
			l.Close()
			if err := <-ended; !errors.Is(err, ErrClosed) || time.Since(begin) != 15*time.Second {
				t.Fatalf("%v after %v", err, time.Since(begin))
			}
		})
	})
	t.Run("while recovering", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			ft.mu.Lock()
			ft.dialErr = func(int) error { return errors.New("refused") }
			ft.mu.Unlock()
			ft.last().cut(errors.New("gone"))
			synctest.Wait()
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			begin := time.Now()
			l.Close()
			if err := <-ended; !errors.Is(err, ErrClosed) || time.Since(begin) > time.Second {
				t.Fatalf("%v after %v", err, time.Since(begin))
			}
		})
	})
}

// The target asks for a logout: what is outstanding ends, then the session
// logs out, comes back and goes on.
func TestAsyncLogout(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		d := ft.last()
		var p iscsi.PDU
		a := p.BHS.NewAsync(iscsi.AsyncLogout)
		a.SetParams(0, 0, 3)
		d.answer(&p)
		synctest.Wait()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if st := l.Stats(); st.Logins != 2 {
			t.Fatalf("%+v", st)
		}
		if !slices.Contains(d.logouts, iscsi.LogoutSession) {
			t.Fatal("no logout although the target asked for it")
		}
	})
}

// The target announces that it drops the connection and when it may be tried
// again (Time2Wait).
func TestAsyncDrop(t *testing.T) {
	for _, e := range []iscsi.AsyncEvent{iscsi.AsyncConnectionDrop, iscsi.AsyncSessionDrop} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			var p iscsi.PDU
			a := p.BHS.NewAsync(e)
			a.SetParams(0, 7, 0)
			ft.last().answer(&p)
			synctest.Wait()
			begin := time.Now()
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took < 7*time.Second || took > 10*time.Second {
				t.Fatalf("event %d: back after %v, the target said 7 s", e, took)
			}
		})
	}
}

// A lost session is not reinstated before the negotiated DefaultTime2Wait (RFC
// 7143 §13.15); LIO hangs when it is.
func TestTime2Wait(t *testing.T) {
	for _, wait := range []time.Duration{0, 2 * time.Second, 30 * time.Second} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			ft.settings.DefaultTime2Wait = uint32(wait / time.Second)
			l := dialLUN(t, ft.config())
			ft.last().cut(errors.New("gone"))
			begin := time.Now()
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took < wait || took > wait+time.Second {
				t.Errorf("back after %v, negotiated were %v", took, wait)
			}
		})
	}
}

// A rejected command ends with the reason, and nothing else suffers.
func TestReject(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			var r iscsi.PDU
			r.BHS.NewReject(iscsi.RejectInvalidField)
			r.Data = p.BHS[:]
			c.answer(&r)
			return true
		}
		err := l.Do(context.Background(), &Request{Op: OpRead, Buf: make([]byte, 512)})
		if err == nil || !strings.Contains(err.Error(), "invalid PDU field") {
			t.Fatal(err)
		}
		letGo(ft)
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if st := l.Stats(); st.Losses != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// Two sessions: while one has lost its connection the other one serves.
func TestSessions(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.Sessions = 2
		l := dialLUN(t, cfg)
		if l.QueueDepth() != 256 || ft.conns[0].isid == ft.conns[1].isid {
			t.Fatalf("depth %d, ISIDs %v %v", l.QueueDepth(), ft.conns[0].isid, ft.conns[1].isid)
		}
		buf := make([]byte, 512)
		for range 10 {
			if _, err := l.ReadAt(buf, 0); err != nil {
				t.Fatal(err)
			}
		}
		for i, s := range l.Sessions() {
			if n := s.Stats().ReadBytes; n < 5*512 {
				t.Fatalf("session %d read %d bytes", i, n)
			}
		}
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("refused") }
		ft.mu.Unlock()
		ft.conns[0].cut(errors.New("gone"))
		synctest.Wait()
		begin := time.Now()
		for range 10 {
			if _, err := l.ReadAt(buf, 0); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(begin) > 0 {
			t.Fatal("requests waited although one session works")
		}
	})
}

// What no target may send ends the connection, not the process, and the
// session recovers.
func TestHostile(t *testing.T) {
	scsiResp := func(itt uint32, f func(r iscsi.SCSIResponse)) *iscsi.PDU {
		var p iscsi.PDU
		r := p.BHS.NewSCSIResponse()
		p.BHS.SetITT(itt)
		if f != nil {
			f(r)
		}
		return &p
	}
	for name, make := range map[string]func(itt uint32) *iscsi.PDU{
		"unknown tag":    func(itt uint32) *iscsi.PDU { return scsiResp(0x12340099, nil) },
		"old generation": func(itt uint32) *iscsi.PDU { return scsiResp(itt-1<<16, nil) },
		"reserved tag":   func(itt uint32) *iscsi.PDU { return scsiResp(iscsi.ReservedTag, nil) },
		"huge residual": func(itt uint32) *iscsi.PDU {
			return scsiResp(itt, func(r iscsi.SCSIResponse) { r.SetResidual(513, iscsi.ResidualUnderflow) })
		},
		"both residuals":  func(itt uint32) *iscsi.PDU { return scsiResp(itt, func(r iscsi.SCSIResponse) { r.SetResidual(1, 6) }) },
		"login response":  func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewLoginResponse(); return &p },
		"request opcode":  func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewSCSICommand(); return &p },
		"task response":   func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewTaskResponse(0); p.BHS.SetITT(itt); return &p },
		"logout response": func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewLogoutResponse(0); p.BHS.SetITT(itt); return &p },
		"NOP-In":          func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewNopIn(); p.BHS.SetITT(itt); return &p },
		"short reject": func(itt uint32) *iscsi.PDU {
			var p iscsi.PDU
			p.BHS.NewReject(iscsi.RejectProtocol)
			p.Data = []byte{1}
			return &p
		},
		"text response": func(itt uint32) *iscsi.PDU { var p iscsi.PDU; p.BHS.NewTextResponse(); p.BHS.SetITT(itt); return &p },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				done := false
				ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
					if done || scsi.Opcode(p.BHS.SCSICommand().CDB()[0]) != scsi.OpRead10 {
						return false
					}
					done = true
					c.answer(make(p.BHS.ITT()))
					return true
				}
				if _, err := l.ReadAt([]byte(fmt.Sprintf("%512d", 0)), 0); err != nil {
					t.Fatal(err)
				}
				if st := l.Stats(); st.Losses != 1 || st.Replayed != 1 {
					t.Fatalf("%+v", st)
				}
			})
		})
	}
}
