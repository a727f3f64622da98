package initiator

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// Commands that can be repeated are, in the order in which they were sent,
// after the new login and after the LUN has been looked at; then what was
// submitted meanwhile.
func TestReplay(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		var ev events
		cfg := ft.config()
		cfg.OnEvent = ev.add
		l := dialLUN(t, cfg)
		held := hold(ft, spc.OpWrite10)
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
			switch spc.Opcode(cdb[0]) {
			case spc.OpWrite10:
				order = append(order, spc.ParseIO(cdb[:10]).LBA)
			case spc.OpInquiry:
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
			{Op: OpCDB, CDB: spc.AppendTestUnitReady(nil)},
		} {
			op := spc.OpTestUnitReady
			if r.Op == OpCompareAndWrite {
				op = spc.OpCompareAndWrite
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
		hold(ft, spc.OpRead10)
		begin := time.Now()
		time.AfterFunc(time.Second, func() { ft.last().cut(errors.New("gone")) })
		_, err := l.ReadAt(make([]byte, 512), 0)
		if !errors.Is(err, ErrSessionLost) || time.Since(begin) > 2*time.Second {
			t.Fatalf("%v after %v", err, time.Since(begin))
		}
	})
}

// A LUN that is another volume after the reconnect gets nothing.
func TestLUNChanged(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpWrite10)
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

// The look at a LUN consists of several commands. When the connection is lost between two
// of them, the next one ends at once: recovery, which alone could send it, waits for it.
func TestLostBetweenLooks(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("away") }
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		synctest.Wait()
		s := l.Sessions()[0]
		if st, _ := s.State(); st != StateRecovering {
			t.Fatalf("the session is %v", st)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.recheck(ctx, s); !errors.Is(err, ErrSessionLost) {
			t.Errorf("a look without a connection: %v", err)
		}
	})
}

// A LUN whose blocks have another size after the reconnect gets nothing: what waits
// to be sent again counts in the old ones.
func TestReplayAfterAnotherBlockSize(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpWrite10)
		r := &Request{Op: OpWrite, Buf: bytes.Repeat([]byte{1}, 4096)}
		ended := make(chan struct{})
		r.Done = func(*Request) { close(ended) }
		l.Submit(r)
		synctest.Wait()
		ft.mu.Lock()
		ft.bs, ft.hook = 4096, nil
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		<-ended
		if !errors.Is(r.Err, ErrLUNChanged) || !strings.Contains(r.Err.Error(), "had blocks of 512 bytes, now they have 4096") {
			t.Fatal(r.Err)
		}
		for i, b := range ft.disk {
			if b != 0 {
				t.Fatalf("byte %d was written", i)
			}
		}
	})
}

// GOOD for another amount of data than was asked for is no success.
func TestOverflow(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.mu.Lock()
		ft.residual = iscsi.ResidualOverflow
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			switch spc.Opcode(p.BHS.SCSICommand().CDB()[0]) {
			case spc.OpRead10, spc.OpWrite10:
				c.status(p, spc.StatusGood, nil, 3584)
				return true
			}
			return false
		}
		ft.mu.Unlock()
		buf := make([]byte, 512)
		if _, err := l.WriteAt(buf, 0); !errors.Is(err, ErrOverflow) {
			t.Errorf("write: %v", err)
		}
		if _, err := l.ReadAt(buf, 0); !errors.Is(err, ErrOverflow) {
			t.Errorf("read: %v", err)
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
			if spc.Opcode(p.BHS.SCSICommand().CDB()[0]) == spc.OpRead10 {
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

// So does a write of several commands. It ends as what was lost with its session, which other paths may repeat.
func TestPoisonWriteOfSeveralCommands(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		answers(ft, spc.OpWrite10, func(n int, c *fakeDM, _ *iscsi.PDU) bool {
			if n%2 == 0 {
				c.cut(errors.New("crashed"))
			}
			return true
		})
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpWrite, Buf: make([]byte, 128<<10), Done: func(r *Request) { ended <- r.Err }})
		if err := <-ended; !errors.Is(err, ErrSessionLost) || errors.Is(err, ErrOutcomeUnknown) {
			t.Error(err)
		}
		letGo(ft)
	})
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

// Of two sessions, a write that has timed out with one ends when that is back, or given up: what is written
// over the other one once the first write has failed must not be undone by it.
func TestTimedOutWriteOfTwoSessions(t *testing.T) {
	for name, over := range map[string]func(ft *fakeTarget, l *LUN, r *Request){
		"back": func(ft *fakeTarget, _ *LUN, _ *Request) {
			ft.mu.Lock()
			ft.dialErr = nil
			ft.mu.Unlock()
		},
		"cancelled": func(_ *fakeTarget, l *LUN, r *Request) { l.Cancel(r, context.Canceled) },
		"given up": func(*fakeTarget, *LUN, *Request) {
			time.Sleep(2 * time.Minute) // the replacement time-out, in virtual time
		},
		"closed": func(_ *fakeTarget, l *LUN, _ *Request) { l.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				cfg := ft.config()
				cfg.Sessions, cfg.CommandTimeout = 2, 10*time.Second
				l := dialLUN(t, cfg)
				ft.tmf = func(*fakeDM, *iscsi.PDU) bool { return true } // is not answered
				ft.mu.Lock()
				ft.dialErr = func(int) error { return errors.New("refused") }
				ft.mu.Unlock()
				hold(ft, spc.OpWrite10)
				ended := make(chan error, 1)
				w := &Request{Op: OpWrite, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }}
				l.Submit(w)
				synctest.Wait()
				letGo(ft)
				for l.Stats().Losses == 0 {
					time.Sleep(time.Second)
				}
				time.Sleep(10 * time.Second)
				select {
				case err := <-ended:
					t.Fatalf("its session is not back: %v", err)
				default:
				}
				if err := <-write(l, 0); err != nil {
					t.Errorf("over the other session: %v", err)
				}
				over(ft, l, w)
				if err := <-ended; !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// Commands are sent again in their order, also where their numbers begin anew behind 2^32 - 1.
func TestReplayOfWrappedNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		s, d := l.Sessions()[0], ft.last()
		const last = 1<<32 - 2
		s.mu.Lock()
		d.mu.Lock()
		s.win = iscsi.SenderWindow{CmdSN: last, ExpCmdSN: last, MaxCmdSN: 61}
		d.win = iscsi.NewCommandWindow(last, ft.window)
		d.mu.Unlock()
		s.mu.Unlock()
		held := hold(ft, spc.OpWrite10)
		var ended []<-chan error
		for i := range int64(5) {
			ended = append(ended, write(l, i*4096))
			if synctest.Wait(); i == 1 {
				d.execute(held()[0]) // the next one has its slot, and is in front of the second one there
				synctest.Wait()
			}
		}
		lt := newLookTarget(ft) // notes what comes
		if n := len(held()); n != 5 {
			t.Fatalf("%d WRITEs came", n)
		}
		d.cut(errors.New("gone"))
		for _, ch := range ended {
			if err := <-ch; err != nil {
				t.Error(err)
			}
		}
		if got := lt.arrived(); !slices.Equal(got, []uint64{8, 16, 24, 32}) {
			t.Errorf("blocks %v were written", got)
		}
	})
}

// An abort that was not answered does not count on the next connection.
func TestAbortOfALostConnection(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpRead10)
		ft.tmf = func(*fakeDM, *iscsi.PDU) bool { return true }
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		time.AfterFunc(2*time.Second, func() { ft.last().cut(errors.New("gone")) })
		if err := l.Do(ctx, &Request{Op: OpRead, Buf: make([]byte, 512)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		s := l.Sessions()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.tm.outstanding; n != 0 {
			t.Errorf("%d requests count as outstanding", n)
		}
	})
}

// Who cancels a change is told when its connection is lost before it has been aborted: it may yet be carried out. So it
// may when it waits to be sent again.
func TestCancelOfALostConnection(t *testing.T) {
	for _, c := range []struct {
		r     *Request
		after time.Duration // that the connection is lost: the context ends after a second
		want  bool
	}{
		{&Request{Op: OpWrite, Buf: make([]byte, 512)}, 2 * time.Second, true},
		{&Request{Op: OpWrite, Buf: make([]byte, 512)}, time.Second / 2, true},
		{&Request{Op: OpRead, Buf: make([]byte, 512)}, 2 * time.Second, false},
		{&Request{Op: OpRead, Buf: make([]byte, 512)}, time.Second / 2, false},
	} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			if c.r.Op == OpRead {
				hold(ft, spc.OpRead10)
			} else {
				hold(ft, spc.OpWrite10)
			}
			ft.tmf = func(*fakeDM, *iscsi.PDU) bool { return true }
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			time.AfterFunc(c.after, func() {
				ft.mu.Lock()
				ft.dialErr = func(int) error { return errors.New("away") }
				ft.mu.Unlock()
				ft.last().cut(errors.New("gone"))
			})
			if err := l.Do(ctx, c.r); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOutcomeUnknown) != c.want {
				t.Errorf("%v, the connection lost after %v: %v", c.r.Op, c.after, err)
			}
			if n := l.Stats().OutcomeUnknown; (n == 1) != c.want {
				t.Errorf("%d with an unknown outcome", n)
			}
		})
	}
}

// The time of a command that is sent again begins anew: it was not the target that kept it
// waiting.
func TestTimeOfAReplay(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		held := hold(ft, spc.OpRead10)
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
		synctest.Wait()
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("away") }
		ft.mu.Unlock()
		ft.last().cut(errors.New("gone"))
		time.Sleep(90 * time.Second) // CommandTimeout is 60 s, ReplacementTimeout 120 s
		ft.mu.Lock()
		ft.dialErr = nil
		ft.mu.Unlock()
		time.Sleep(20 * time.Second)
		if n := len(held()); n != 2 {
			t.Fatalf("it came %d times", n)
		}
		ft.last().execute(held()[1])
		if err := <-ended; err != nil {
			t.Error(err)
		}
		letGo(ft)
	})
}

// Of a request that has failed in one part nothing is sent after the connection was lost.
func TestFailedRequestIsNotReplayed(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpWrite10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 1 {
				c.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCWriteError})
			}
			return true // the second part is not answered
		})
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpWrite, Buf: make([]byte, 128<<10), Done: func(r *Request) { ended <- r.Err }})
		synctest.Wait()
		ft.last().cut(errors.New("gone"))
		if err := <-ended; !errors.Is(err, blockdev.ErrMedium) {
			t.Error(err)
		}
		if err := l.Flush(); err != nil || n() != 2 {
			t.Errorf("%v, %d WRITEs", err, n())
		}
		letGo(ft)
	})
}

// Of a change that has failed in one part another part may yet be carried out when its connection has been lost,
// which whoever knows of other ways to the LUN has to be told.
func TestFailedRequestWithALostPart(t *testing.T) {
	for op, code := range map[Op]spc.Opcode{OpRead: spc.OpRead10, OpWrite: spc.OpWrite10} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			answers(ft, code, func(n int, c *fakeDM, p *iscsi.PDU) bool {
				if n == 1 {
					c.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCWriteError})
				}
				return true
			})
			ended := make(chan error, 1)
			l.Submit(&Request{Op: op, Buf: make([]byte, 128<<10), Done: func(r *Request) { ended <- r.Err }})
			synctest.Wait()
			ft.last().cut(errors.New("gone"))
			if err := <-ended; !errors.Is(err, blockdev.ErrMedium) || errors.Is(err, ErrOutcomeUnknown) != (op == OpWrite) {
				t.Errorf("%v: %v", op, err)
			}
			letGo(ft)
		})
	}
}

// Of two sessions, a write that has failed in one part while another one was lost with its session ends when that is
// back: what is written over the other one must not be undone by it.
func TestFailedWriteOfTwoSessions(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.Sessions = 2
		l := dialLUN(t, cfg)
		var session *fakeDM
		answers(ft, spc.OpWrite10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if session = c; n == 1 {
				c.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCWriteError})
			}
			return true
		})
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpWrite, Buf: make([]byte, 128<<10), Done: func(r *Request) { ended <- r.Err }})
		synctest.Wait()
		letGo(ft)
		ft.mu.Lock()
		ft.dialErr = func(int) error { return errors.New("refused") }
		ft.mu.Unlock()
		session.cut(errors.New("gone"))
		time.Sleep(10 * time.Second) // in virtual time
		select {
		case err := <-ended:
			t.Fatalf("its session is not back: %v", err)
		default:
		}
		if err := <-write(l, 0); err != nil {
			t.Errorf("over the other session: %v", err)
		}
		ft.mu.Lock()
		ft.dialErr = nil
		ft.mu.Unlock()
		if err := <-ended; !errors.Is(err, blockdev.ErrMedium) {
			t.Error(err)
		}
	})
}

// Between a write that must be durable and its flush the connection is lost: the target may
// have been restarted, so the data are sent again, also when it does not say so.
func TestForceUnitAccessAfterALoss(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.noFUA, ft.attention = true, false
		l := dialLUN(t, ft.config())
		answers(ft, spc.OpSyncCache10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 1 {
				c.cut(errors.New("gone"))
			}
			return n == 1
		})
		before := len(ft.logged())
		if err := l.Do(context.Background(), &Request{Op: OpWrite, FUA: true, Buf: make([]byte, 512)}); err != nil {
			t.Fatal(err)
		}
		writes := 0
		for _, op := range ft.logged()[before:] {
			if op == "WRITE(10)" {
				writes++
			}
		}
		if writes != 2 {
			t.Errorf("%d WRITEs, want 2: %v", writes, ft.logged()[before:])
		}
		letGo(ft)
	})
}
