package initiator

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// answers gives commands of one kind the answers that a test thinks of.
func answers(ft *fakeTarget, op spc.Opcode, f func(n int, c *fakeDM, p *iscsi.PDU) bool) (count func() int) {
	n := 0
	ft.mu.Lock()
	ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
		if spc.Opcode(p.BHS.SCSICommand().CDB()[0]) != op {
			return false
		}
		ft.mu.Lock()
		n++
		now := n
		ft.mu.Unlock()
		return f(now, c, p)
	}
	ft.mu.Unlock()
	return func() int {
		ft.mu.Lock()
		defer ft.mu.Unlock()
		return n
	}
}

// A residual that the target reports counts although the data have been seen to come: the
// greater one is right.
func TestReportedResidual(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		var came uint32
		answers(ft, spc.OpRead10, func(_ int, c *fakeDM, p *iscsi.PDU) bool {
			c.mu.Lock()
			c.bufs[p.BHS.ITT()].InLen = came
			c.mu.Unlock()
			c.status(p, spc.StatusGood, nil, 100)
			return true
		})
		r := &Request{Op: OpRead, Buf: make([]byte, 512)}
		for _, c := range []struct{ came, residual uint32 }{{512, 100}, {500, 100}, {400, 112}} {
			came = c.came
			if err := l.Do(context.Background(), r); !errors.Is(err, ErrShort) || r.Residual != int64(c.residual) {
				t.Errorf("%d bytes came: %v, residual %d", came, err, r.Residual)
			}
		}
		letGo(ft)
	})
}

// An iSCSI response that is not "completed at target" is no success, whatever status stands
// beside it (RFC 7143 §11.4.3).
func TestTargetFailure(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpWrite10, func(_ int, c *fakeDM, p *iscsi.PDU) bool {
			var r iscsi.PDU
			r.BHS.NewSCSIResponse().SetResponse(1)
			r.BHS.SetITT(p.BHS.ITT())
			c.answer(&r)
			return true
		})
		if _, err := l.WriteAt(make([]byte, 512), 0); err == nil || n() != 1 {
			t.Errorf("%v after %d WRITEs", err, n())
		}
		letGo(ft)
	})
}

// What the target has aborted may have been carried out in part: a command that must not be
// carried out twice is not sent again.
func TestAbortedIsNotRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(c *fakeDM, p *iscsi.PDU)
		want   error
	}{
		"task aborted": {func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusTaskAborted, nil, 0) }, ErrOutcomeUnknown},
		"aborted command": {func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyAborted, ASC: 0x4705})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				n := answers(ft, spc.OpCompareAndWrite, func(_ int, d *fakeDM, p *iscsi.PDU) bool {
					c.answer(d, p)
					return true
				})
				err := l.Do(context.Background(), &Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024)})
				if err == nil || c.want != nil && !errors.Is(err, c.want) || n() != 1 {
					t.Errorf("%v after %d commands", err, n())
				}
				letGo(ft)
			})
		})
	}
}

// Of a request that has failed in one part the others are not sent again, neither at once
// nor later, and no flush follows it.
func TestFailedRequestIsNotRepeated(t *testing.T) {
	for name, answer := range map[string]func(c *fakeDM, p *iscsi.PDU){
		"unit attention": func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCNexusLoss})
		},
		"busy": func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusBusy, nil, 0) },
		"good": func(c *fakeDM, p *iscsi.PDU) { c.execute(p) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				ft.noFUA = true
				l := dialLUN(t, ft.config())
				n := answers(ft, spc.OpWrite10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
					if n == 1 {
						c.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCWriteError})
					} else {
						answer(c, p)
					}
					return true
				})
				before := len(ft.logged())
				err := l.Do(context.Background(), &Request{Op: OpWrite, FUA: true, Buf: make([]byte, 128<<10)})
				time.Sleep(time.Minute)
				if !errors.Is(err, blockdev.ErrMedium) || n() != 2 {
					t.Errorf("%v after %d WRITEs", err, n())
				}
				for _, op := range ft.logged()[before:] {
					if op != "WRITE(10)" {
						t.Errorf("%s after a WRITE that has failed", op)
					}
				}
				letGo(ft)
			})
		})
	}
}

// A command that is sent again has another task tag: an answer to the time before is not
// one to this time.
func TestAnotherTagForEachTime(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		tags := map[uint32]bool{}
		n := answers(ft, spc.OpRead10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			tags[p.BHS.ITT()] = true
			if n <= 3 {
				c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCNexusLoss})
			}
			return n <= 3
		})
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil || n() != 4 || len(tags) != 4 {
			t.Errorf("%v, %d commands with %d tags", err, n(), len(tags))
		}
		letGo(ft)
	})
}

// A second answer to a command that is not at the target any more breaks the protocol.
func TestAnsweredTwice(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		answers(ft, spc.OpRead10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 1 {
				c.status(p, spc.StatusBusy, nil, 0)
				c.status(p, spc.StatusGood, nil, 512)
			}
			return n == 1
		})
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		if n := l.Stats().Losses; n != 1 {
			t.Errorf("%d connections were lost, want 1", n)
		}
		letGo(ft)
	})
}

// The window that the login has given holds for the first commands.
func TestWindowOfTheLogin(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.window, ft.attention = 1, false
		s, err := Dial(context.Background(), ft.config())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		held := hold(ft, spc.OpReportLUNs)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := s.ReportLUNs(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := len(held()); n != 1 {
			t.Errorf("%d commands came, the window is 1", n)
		}
		letGo(ft)
		for _, p := range held() {
			ft.last().execute(p)
		}
		wg.Wait()
	})
}

// Each PDU acknowledges what the target has numbered, and no more.
func TestExpStatSN(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.attention = false
		var wrong []uint32
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			if got := p.BHS.ExpStatSN(); got != c.statSN {
				wrong = append(wrong, got-c.statSN)
			}
			return false
		}
		l := dialLUN(t, ft.config())
		var rejected bool
		for range 3 {
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			if !rejected { // of something that nobody remembers
				rejected = true
				var p iscsi.PDU
				p.BHS.NewReject(iscsi.RejectInvalidField)
				var bhs iscsi.BHS
				bhs.NewNopOut().SetITT(iscsi.ReservedTag)
				p.Data = bhs[:]
				ft.last().answer(&p)
				synctest.Wait()
			}
		}
		if len(wrong) > 0 {
			t.Errorf("off by %d", wrong)
		}
		letGo(ft)
	})
}

// Where the initiator may not send unasked for, what travels with the command is all, even
// where the transport carries less than was negotiated.
func TestNothingUnsolicited(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		cfg.InitialR2T = true
		ft.settings.InitialR2T = true
		ft.settings.MaxRecvDataSegmentLength = 64 << 10
		l := dialLUN(t, cfg)
		answers(ft, spc.OpWrite10, func(_ int, c *fakeDM, p *iscsi.PDU) bool {
			if p.Bufs.Immediate != 8192 || p.Bufs.Unsolicited != 8192 || !p.BHS.Final() {
				t.Errorf("%d bytes with the command, %d unasked for, F %v", p.Bufs.Immediate, p.Bufs.Unsolicited, p.BHS.Final())
			}
			return false
		})
		if _, err := l.WriteAt(make([]byte, 64<<10), 0); err != nil {
			t.Error(err)
		}
		letGo(ft)
	})
}

// Numbers of answers begin anew behind 2^32 - 1.
func TestExpStatSNWraps(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		d := ft.last()
		for range 6 {
			d.mu.Lock()
			d.statSN += 0x60000000
			d.mu.Unlock()
			var got, want uint32
			for range 2 { // the second acknowledges the answer to the first
				answers(ft, spc.OpRead10, func(_ int, c *fakeDM, p *iscsi.PDU) bool {
					got, want = p.BHS.ExpStatSN(), c.statSN
					return false
				})
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
			}
			if got != want {
				t.Errorf("ExpStatSN %#x, want %#x", got, want)
			}
		}
		letGo(ft)
	})
}

// What has been acknowledged stays so, whatever number a later answer has.
func TestExpStatSNDoesNotGoBack(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		d := ft.last()
		var before, behind uint32
		answers(ft, spc.OpRead10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 2 {
				before = p.BHS.ExpStatSN()
				c.mu.Lock()
				c.statSN -= 2
				c.mu.Unlock()
			}
			behind = p.BHS.ExpStatSN()
			return false
		})
		for range 3 {
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
		}
		if l.Stats().Losses == 0 && ft.last() == d && iscsi.SerialLess(behind, before) {
			t.Errorf("ExpStatSN went from %d back to %d", before, behind)
		}
		letGo(ft)
	})
}

// What comes behind a PDU that breaks the protocol is not believed, though it has been
// received with it.
func TestNothingIsBelievedAfterAViolation(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpWrite10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n > 1 {
				return false
			}
			var wrong, good iscsi.PDU
			wrong.BHS.NewSCSICommand()
			good.BHS.NewSCSIResponse()
			good.BHS.SetITT(p.BHS.ITT())
			c.mu.Lock()
			c.outbox = append(c.outbox, &wrong, &good)
			c.cond.Broadcast()
			c.mu.Unlock()
			return true
		})
		if _, err := l.WriteAt([]byte{511: 7}, 0); err != nil || n() != 2 || ft.disk[511] != 7 {
			t.Errorf("%v after %d WRITEs", err, n())
		}
		letGo(ft)
	})
}

// A Data-Out that the target rejects does not end its command, which has an answer of its
// own; a ping that it rejects has shown that the connection works.
func TestRejectOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		reject := func(c *fakeDM, bhs iscsi.BHS) {
			var r iscsi.PDU
			r.BHS.NewReject(iscsi.RejectInvalidField)
			r.Data = bhs[:]
			c.answer(&r)
		}
		answers(ft, spc.OpWrite10, func(_ int, c *fakeDM, p *iscsi.PDU) bool {
			var out iscsi.BHS
			out.NewDataOut().SetITT(p.BHS.ITT())
			reject(c, out)
			return false
		})
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Errorf("a WRITE, a Data-Out of which was rejected: %v", err)
		}
		letGo(ft)
		ft.mu.Lock()
		ft.onPing = func(c *fakeDM, p *iscsi.PDU) { reject(c, p.BHS) }
		ft.mu.Unlock()
		time.Sleep(time.Minute)
		if n := l.Stats().Losses; n != 0 {
			t.Errorf("%d connections were lost for want of pings", n)
		}
	})
}

// Nor does it end a command that is not at the target any more, because it is to be sent again.
func TestRejectOfDelayed(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpRead10, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 1 {
				c.status(p, spc.StatusBusy, nil, 0)
				var r iscsi.PDU
				r.BHS.NewReject(iscsi.RejectInvalidField)
				r.Data = p.BHS[:]
				c.answer(&r)
			}
			return n == 1
		})
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil || n() != 2 {
			t.Errorf("%v after %d READs", err, n())
		}
		letGo(ft)
	})
}

// The memory of commands that were at the target when the connection was lost is taken back
// from the datamover before they are sent again or end.
func TestBuffersOfALostConnection(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		hold(ft, spc.OpRead10)
		ended := make(chan error, 3)
		for range 3 {
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
		}
		synctest.Wait()
		d := ft.last()
		letGo(ft)
		d.cut(errors.New("gone"))
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.released != 3 {
			t.Errorf("the buffers of %d commands were taken back, want 3", d.released)
		}
	})
}

// A command that the target has refused for now has not been carried out: it is sent after
// the connection was lost, even one that must not be carried out twice.
func TestRefusedForNowIsSentAfterALoss(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := answers(ft, spc.OpCompareAndWrite, func(n int, c *fakeDM, p *iscsi.PDU) bool {
			if n == 1 {
				c.status(p, spc.StatusBusy, nil, 0)
			}
			return n == 1
		})
		ended := make(chan error, 1)
		l.Submit(&Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024), Done: func(r *Request) { ended <- r.Err }})
		synctest.Wait()
		ft.last().cut(errors.New("gone"))
		if err := <-ended; err != nil || n() != 2 {
			t.Errorf("%v after %d commands", err, n())
		}
		s := l.Sessions()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.wait.delayed != 0 {
			t.Errorf("%d commands count as delayed", s.wait.delayed)
		}
	})
}
