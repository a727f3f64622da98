package initiator

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// lookTarget drives a fake target that tells of a change and then is slow to be looked at.
type lookTarget struct {
	ft     *fakeTarget
	mu     sync.Mutex
	tell   spc.ASC // the next WRITE to LUN 0 is answered with this unit attention
	change func()  // called before
	gate   bool    // READ CAPACITY is not answered
	held   []func()
	asked  *iscsi.PDU    // the last of them
	slow   time.Duration // WRITEs take so long
	writes []uint64      // LBAs of the WRITEs to LUN 0 that came, that one left out
	fail   *spc.Sense
	again  func(op spc.Opcode) bool // a unit attention instead of an answer
}

func newLookTarget(ft *fakeTarget) *lookTarget {
	lt := &lookTarget{ft: ft}
	ft.mu.Lock()
	ft.hook = lt.hook
	ft.mu.Unlock()
	return lt
}

func (lt *lookTarget) hook(c *fakeDM, p *iscsi.PDU) bool {
	if p.BHS.SCSICommand().LUN() != 0 {
		return false
	}
	lt.mu.Lock()
	defer lt.mu.Unlock()
	cdb := p.BHS.SCSICommand().CDB()
	op := spc.Opcode(cdb[0])
	switch {
	case lt.again != nil && lt.again(op):
		c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCCapacityChanged})
		return true
	case op == spc.OpWrite10 && lt.tell != 0:
		lt.change()
		c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: lt.tell})
		lt.tell = 0
		return true
	case op == spc.OpWrite10:
		lt.writes = append(lt.writes, spc.ParseIO(cdb[:10]).LBA)
		time.AfterFunc(lt.slow, func() { c.execute(p) })
		return true
	case op == spc.OpServiceActionIn && lt.fail != nil:
		c.check(p, *lt.fail)
		return true
	case op == spc.OpServiceActionIn && lt.gate:
		lt.asked = p
		lt.held = append(lt.held, func() { c.execute(p) })
		return true
	}
	return false
}

// open answers what was held.
func (lt *lookTarget) open() {
	lt.mu.Lock()
	held := lt.held
	lt.gate, lt.held = false, nil
	lt.mu.Unlock()
	for _, f := range held {
		f()
	}
}

func (lt *lookTarget) arrived() []uint64 {
	lt.mu.Lock()
	defer lt.mu.Unlock()
	return slices.Clone(lt.writes)
}

// blocks makes the target's blocks n bytes long.
func (lt *lookTarget) blocks(n int) func() {
	return func() {
		lt.ft.mu.Lock()
		lt.ft.bs = n
		lt.ft.mu.Unlock()
	}
}

// write submits a WRITE of 4096 bytes.
func write(l *LUN, off int64) <-chan error {
	ended := make(chan error, 1)
	l.Submit(&Request{Op: OpWrite, Off: off, Buf: bytes.Repeat([]byte{7}, 4096), Done: func(r *Request) { ended <- r.Err }})
	return ended
}

func empty(t *testing.T, ft *fakeTarget) {
	t.Helper()
	if i := bytes.IndexByte(ft.disk, 7); i >= 0 {
		t.Errorf("byte %d was written", i)
	}
}

// changes are the unit attentions after which a LUN may count in other blocks.
var changes = []spc.ASC{spc.ASCCapacityChanged, spc.ASCParametersChanged, spc.ASCModeChanged, spc.ASCLUNsChanged, spc.ASCInquiryChanged}

// A LUN that says that it has changed is looked at before anything more is sent to it;
// with blocks of another size it gets nothing more.
func TestAnotherBlockSizeOnLine(t *testing.T) {
	for _, asc := range changes {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			lt := newLookTarget(ft)
			lt.tell, lt.change, lt.gate = asc, lt.blocks(4096), true
			ended := []<-chan error{write(l, 0)}
			synctest.Wait()
			ended = append(ended, write(l, 4096), write(l, 8192))
			synctest.Wait()
			lt.open()
			for i, ch := range ended {
				if err := <-ch; !errors.Is(err, ErrLUNChanged) || !strings.Contains(err.Error(), "had blocks of 512 bytes, now they have 4096") {
					t.Errorf("%v, write %d: %v", asc, i, err)
				}
			}
			if n := len(lt.arrived()); n > 0 {
				t.Errorf("%v: %d WRITEs with the numbers of other blocks came", asc, n)
			}
			empty(t, ft)
			if st, err := l.Sessions()[0].State(); st != StateFailed || !errors.Is(err, ErrLUNChanged) {
				t.Errorf("the session is %v: %v", st, err)
			}
		})
	}
}

// Who tells of the change does not matter: a raw CDB gets its unit attention to itself,
// and an Asynchronous Message belongs to no command.
func TestChangeToldToOthers(t *testing.T) {
	sense := spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCCapacityChanged}
	for name, tell := range map[string]func(l *LUN, lt *lookTarget){
		"raw CDB": func(l *LUN, lt *lookTarget) {
			lt.again = func(op spc.Opcode) bool { return op == spc.OpTestUnitReady }
			_ = l.Do(context.Background(), &Request{Op: OpCDB, CDB: spc.AppendTestUnitReady(nil)})
		},
		"asynchronous message": func(l *LUN, lt *lookTarget) {
			var p iscsi.PDU
			p.BHS.NewAsync(iscsi.AsyncSCSI)
			p.Data = iscsi.AppendSense(nil, sense.AppendFixed(nil))
			lt.ft.last().answer(&p)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				lt := newLookTarget(ft)
				lt.blocks(4096)()
				lt.mu.Lock()
				lt.gate = true
				lt.mu.Unlock()
				tell(l, lt)
				ended := write(l, 0)
				synctest.Wait()
				if n := len(lt.arrived()); n > 0 {
					t.Errorf("%d WRITEs came before the look", n)
				}
				lt.open()
				if err := <-ended; !errors.Is(err, ErrLUNChanged) {
					t.Error(err)
				}
				empty(t, ft)
			})
		})
	}
}

// What waited for a look is sent after it, in order and with time of its own; other LUNs
// do not wait.
func TestHeldUntilLookedAt(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		other, err := l.Sessions()[0].LUN(context.Background(), 3)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		lt := newLookTarget(ft)
		lt.tell, lt.gate, lt.change = spc.ASCCapacityChanged, true, func() {
			ft.mu.Lock()
			ft.disk = append(ft.disk, make([]byte, 1<<20)...)
			ft.mu.Unlock()
		}
		ended := []<-chan error{write(l, 0)}
		synctest.Wait()
		ended = append(ended, write(l, 4096), write(l, 8192))
		if err := <-write(other, 65536); err != nil {
			t.Errorf("a write to another LUN: %v", err)
		}
		time.Sleep(50 * time.Second)
		if n := len(lt.arrived()); n > 0 {
			t.Errorf("%d WRITEs came before the look", n)
		}
		lt.slow = 12 * time.Second // more than a minute after the first command began
		lt.open()
		for i, ch := range ended {
			if err := <-ch; err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		}
		if got := lt.arrived(); !slices.Equal(got, []uint64{0, 8, 16}) {
			t.Errorf("blocks %v were written", got)
		}
		if st := l.Stats(); st.Losses != 0 || st.Aborts != 0 || l.Info().Size != 2<<20 {
			t.Errorf("%+v, %+v", st, l.Info())
		}
	})
}

// A connection that is lost during a look: recovery looks, and only then what waited is
// sent, or never.
func TestReconnectDuringLook(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			lt := newLookTarget(ft)
			lt.tell, lt.change, lt.gate = spc.ASCCapacityChanged, lt.blocks(bs), true
			ended := []<-chan error{write(l, 0)}
			synctest.Wait()
			ended = append(ended, write(l, 4096))
			ft.last().cut(errors.New("gone"))
			time.Sleep(time.Second) // logged in again; now recovery's look waits
			ended = append(ended, write(l, 8192))
			synctest.Wait()
			if st, _ := l.Sessions()[0].State(); st != StateRecovering || len(lt.arrived()) > 0 {
				t.Errorf("the session is %v, %d WRITEs came", st, len(lt.arrived()))
			}
			lt.open()
			for i, ch := range ended {
				if err := <-ch; bs == 512 && err != nil || bs != 512 && !errors.Is(err, ErrLUNChanged) {
					t.Errorf("blocks of %d bytes, write %d: %v", bs, i, err)
				}
			}
			if got := lt.arrived(); bs == 512 && !slices.Equal(got, []uint64{0, 8, 16}) || bs != 512 && len(got) > 0 {
				t.Errorf("blocks %v of %d bytes were written", got, bs)
			}
		})
	}
}

// A look that fails ends what waited for it, and the next command has another one made.
// The session and its other LUNs go on.
func TestLookFails(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			other, err := l.Sessions()[0].LUN(context.Background(), 3)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			lt := newLookTarget(ft)
			lt.tell, lt.change = spc.ASCCapacityChanged, lt.blocks(bs)
			lt.fail = &spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCUnrecoveredRead}
			for range 2 { // what waited, and one that asks for a look itself
				err := <-write(l, 0)
				if !errors.Is(err, blockdev.ErrMedium) || !strings.Contains(err.Error(), "could not be looked at") {
					t.Error(err)
				}
			}
			if bs == 512 {
				if err := <-write(other, 65536); err != nil {
					t.Errorf("a write to another LUN: %v", err)
				}
			}
			if n := len(lt.arrived()); n > 0 {
				t.Errorf("%d WRITEs came", n)
			}
			lt.mu.Lock()
			lt.fail = nil
			lt.mu.Unlock()
			if err := <-write(l, 0); bs == 512 && err != nil || bs != 512 && !errors.Is(err, ErrLUNChanged) {
				t.Errorf("the look succeeds: %v", err)
			}
		})
	}
}

// A look that fails says nothing to a command that came after it had begun: by then the
// LUN may be another one, or be there again.
func TestLookFailsForThoseBefore(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		lt := newLookTarget(ft)
		lt.tell, lt.change, lt.gate = spc.ASCCapacityChanged, func() {}, true
		before := write(l, 0)
		synctest.Wait()
		lt.mu.Lock()
		lt.held[0] = func() {
			ft.last().check(lt.asked, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCUnrecoveredRead})
		}
		lt.mu.Unlock()
		since := write(l, 4096)
		synctest.Wait()
		lt.open()
		if err := <-before; !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("a command that waited for the look: %v", err)
		}
		if err := <-since; err != nil {
			t.Errorf("a command that came during the look: %v", err)
		}
		if got := lt.arrived(); !slices.Equal(got, []uint64{8}) {
			t.Errorf("blocks %v were written", got)
		}
	})
}

// Answers of one look are of one state of the LUN: who reports another change meanwhile is
// looked at again, after a login as well, but not for ever.
func TestChangeDuringLook(t *testing.T) {
	for _, c := range []struct {
		name     string
		lose     bool // the look after a login
		endless  bool
		min, max int // looks
	}{
		{"once", false, false, 2, 2}, {"once, after a login", true, false, 2, 2}, {"endless", false, true, 2, 2 * maxAgain},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				lt := newLookTarget(ft)
				lt.tell, lt.change = spc.ASCCapacityChanged, func() {}
				looks, told := 0, 0
				lt.again = func(op spc.Opcode) bool {
					switch op {
					case spc.OpServiceActionIn:
						looks++
						told = 0
					case spc.OpModeSense6: // after the READ CAPACITY
						if told++; (c.endless || looks == 1) && told == 1 {
							ft.mu.Lock()
							ft.disk = append(ft.disk, make([]byte, 512)...)
							ft.mu.Unlock()
							return true
						}
					}
					return false
				}
				if c.lose {
					lt.tell = 0
					ft.last().cut(errors.New("gone"))
				}
				err := <-write(l, 0)
				lt.mu.Lock()
				defer lt.mu.Unlock()
				if (err != nil) != c.endless || looks < c.min || looks > c.max {
					t.Errorf("%v after %d looks", err, looks)
				}
				if want := int64(1<<20 + 512); !c.endless && l.Info().Size != want {
					t.Errorf("%d bytes, want %d", l.Info().Size, want)
				}
				lt.again = nil
			})
		})
	}
}

// Close waits for what waits for a look, as for everything outstanding.
func TestCloseDuringLook(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		lt := newLookTarget(ft)
		lt.tell, lt.change, lt.gate = spc.ASCCapacityChanged, func() {}, true
		first := write(l, 0)
		synctest.Wait()
		second := write(l, 4096)
		begin := time.Now()
		time.AfterFunc(time.Second, lt.open)
		if err := l.Close(); err != nil || time.Since(begin) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		for _, ch := range []<-chan error{first, second} {
			if err := <-ch; err != nil {
				t.Error(err)
			}
		}
	})
}

// What was submitted to a LUN that its user has closed since is not sent after a
// reconnect: nobody has looked at the LUN.
func TestClosedLUNIsNotReplayed(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		cfg := ft.config()
		s, err := Dial(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := s.LUN(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		held := hold(ft, spc.OpWrite10)
		sent := write(l, 0)
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-write(l, 4096); !errors.Is(err, ErrClosed) {
			t.Errorf("a write to a closed LUN: %v", err)
		}
		ft.last().cut(errors.New("gone"))
		if err := <-sent; !errors.Is(err, ErrClosed) {
			t.Errorf("the write that was outstanding: %v", err)
		}
		time.Sleep(time.Minute) // of the bubble: it logs in again
		synctest.Wait()
		if st, err := s.State(); st != StateActive {
			t.Errorf("%v: %v", st, err)
		}
		if n := len(held()); n != 1 {
			t.Errorf("%d WRITEs came", n)
		}
		letGo(ft)
	})
}

// A page that cannot be had at the moment does not make a LUN another one: after a loss it is
// looked at once more, and on line only what waits for that look fails.
func TestLookThatFailsForNow(t *testing.T) {
	pages := map[string][]byte{"the list of pages": {spc.VPDSupported}, "what it is called": {spc.VPDSerial, spc.VPDIdentification}}
	answers := map[string]func(c *fakeDM, p *iscsi.PDU){
		"not ready":            func(c *fakeDM, p *iscsi.PDU) { c.check(p, spc.Sense{Key: spc.KeyNotReady}) },
		"busy for a long time": func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusBusy, nil, 0) },
		"no answer in time":    func(*fakeDM, *iscsi.PDU) {},
	}
	for what, refused := range pages {
		for how, answer := range answers {
			for _, lost := range []bool{true, false} {
				bubble(t, func(t *testing.T, ft *fakeTarget) {
					cfg := ft.config()
					cfg.CommandTimeout = time.Second
					l := dialLUN(t, cfg)
					s := l.Sessions()[0]
					var fails, attention atomic.Bool
					fails.Store(true)
					attention.Store(!lost)
					ft.mu.Lock()
					ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
						switch cdb := p.BHS.SCSICommand().CDB(); spc.Opcode(cdb[0]) {
						case spc.OpInquiry:
							if fails.Load() && cdb[1]&1 != 0 && bytes.IndexByte(refused, cdb[2]) >= 0 {
								answer(c, p)
								return true
							}
						case spc.OpWrite10:
							if attention.Swap(false) {
								c.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCParametersChanged})
								return true
							}
						}
						return false
					}
					ft.mu.Unlock()
					if lost {
						ft.last().cut(errors.New("cut"))
					}
					first := write(l, 0)
					time.Sleep(5 * time.Second) // of the bubble: several looks
					fails.Store(false)
					if err := <-first; lost && err != nil || errors.Is(err, ErrLUNChanged) {
						t.Errorf("%s, %s, lost %v: the write that waited: %v", what, how, lost, err)
					}
					if err := <-write(l, 4096); err != nil {
						t.Errorf("%s, %s, lost %v: the next write: %v", what, how, lost, err)
					}
					if st, err := s.State(); st != StateActive {
						t.Errorf("%s, %s, lost %v: the session is %v: %v", what, how, lost, st, err)
					}
				})
			}
		}
	}
}

// A LUN that another initiator has reserved is opened all the same, though it does not say how
// it caches: reservations are reported and preempted by way of it.
func TestLookAtAReservedLUN(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.mu.Lock()
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool {
			if spc.Opcode(p.BHS.SCSICommand().CDB()[0]) != spc.OpModeSense6 {
				return false
			}
			c.status(p, spc.StatusReservationConflict, nil, 0)
			return true
		}
		ft.mu.Unlock()
		if l := dialLUN(t, ft.config()); !l.Info().WriteCache {
			t.Error("a LUN that does not say how it caches is not flushed")
		}
	})
}
