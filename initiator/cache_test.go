package initiator

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// isFlush reports a SYNCHRONIZE CACHE.
func isFlush(p *iscsi.PDU) bool {
	op := spc.Opcode(p.BHS.SCSICommand().CDB()[0])
	return op == spc.OpSyncCache10 || op == spc.OpSyncCache16
}

// powerCut makes the fake forget what was not flushed: all of it.
func powerCut(ft *fakeTarget, fill byte) {
	ft.mu.Lock()
	defer ft.mu.Unlock()
	for i := range ft.disk {
		ft.disk[i] = fill
	}
}

// A write that is made durable by a flush behind it is written again when the target
// was reset before that flush.
func TestForceUnitAccessAfterReset(t *testing.T) {
	data := bytes.Repeat([]byte{7}, 128<<10)
	unit := func(a spc.ASC) func(*fakeDM, *iscsi.PDU) {
		return func(d *fakeDM, p *iscsi.PDU) { d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: a}) }
	}
	resets := []struct {
		name  string
		reset func(*fakeDM, *iscsi.PDU) // in the place of the flush
	}{
		{"29/00", unit(spc.ASCPowerOnReset)},
		{"29/01", unit(spc.ASCPowerOn)},
		{"29/02", unit(spc.ASCBusReset)},
		{"reconnect", func(d *fakeDM, p *iscsi.PDU) { d.cut(errors.New("power cut")) }},
	}
	for _, c := range []struct {
		name string
		r    Request
		fill byte // what a power cut leaves
		want []byte
		err  error
		log  []string // of one round
	}{
		{"write", Request{Op: OpWrite, Buf: data, FUA: true}, 0, data, nil, []string{"WRITE(10)", "WRITE(10)", "SYNCHRONIZE CACHE(10)"}},
		{"zeroes", Request{Op: OpWriteZeroes, Len: 4096, FUA: true}, 9, make([]byte, 4096), nil, []string{"WRITE SAME(16)", "SYNCHRONIZE CACHE(10)"}},
		{"compare", Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024), FUA: true}, 0, nil, ErrCacheLost, nil},
	} {
		for _, x := range resets {
			t.Run(c.name+"/"+x.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, ft *fakeTarget) {
					ft.noFUA = true
					l := dialLUN(t, ft.config())
					flushes := 0
					ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
						if !isFlush(p) {
							return false
						}
						if flushes++; flushes > 1 {
							return false
						}
						powerCut(ft, c.fill)
						x.reset(d, p)
						return true
					}
					r := c.r
					if err := l.Do(context.Background(), &r); !errors.Is(err, c.err) {
						t.Fatal(err)
					}
					letGo(ft)
					if c.err != nil {
						return
					}
					if !bytes.Equal(ft.disk[:len(c.want)], c.want) {
						t.Error("it was called durable and is not there")
					}
					if got := ft.logged(); !slices.Equal(got[len(got)-len(c.log):], c.log) {
						t.Errorf("the last commands are %v, want %v", got, c.log)
					}
				})
			})
		}
	}
}

// A target that is reset before each flush does not keep a write for ever.
func TestForceUnitAccessGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.noFUA = true
		l := dialLUN(t, ft.config())
		told := false
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			if told = isFlush(p) && !told; told {
				d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCPowerOn})
			}
			return told
		}
		defer letGo(ft)
		if err := l.Do(context.Background(), &Request{Op: OpWrite, Buf: make([]byte, 512), FUA: true}); !errors.Is(err, ErrCacheLost) {
			t.Fatal(err)
		}
	})
}

// A flush does not call durable what the target has lost before.
func TestFlushAfterPowerCut(t *testing.T) {
	write := func(t *testing.T, l *LUN) {
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
	}
	flushed := func(t *testing.T, l *LUN) {
		write(t, l)
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	do := func(r Request) func(*testing.T, *LUN) {
		return func(t *testing.T, l *LUN) {
			if err := l.Do(context.Background(), &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	one, two := [16]byte{1}, [16]byte{2}
	for _, c := range []struct {
		name          string
		noFUA         bool
		before        func(*testing.T, *LUN)
		asc           spc.ASC
		epoch, epoch2 [16]byte
		lost          bool
	}{
		{"power on", false, write, spc.ASCPowerOn, [16]byte{}, [16]byte{}, true},
		{"of zeroes", false, do(Request{Op: OpWriteZeroes, Len: 512}), spc.ASCPowerOn, [16]byte{}, [16]byte{}, true},
		{"a new login to a target that does not say why", false, write, spc.ASCPowerOnReset, [16]byte{}, [16]byte{}, false},
		{"nexus loss", false, write, spc.ASCNexusLoss, [16]byte{}, [16]byte{}, false},
		{"flushed before", false, flushed, spc.ASCPowerOn, [16]byte{}, [16]byte{}, false},
		{"a flush of a part is none of the rest", false, func(t *testing.T, l *LUN) {
			write(t, l)
			if err := l.FlushRange(4096, 512); err != nil {
				t.Fatal(err)
			}
		}, spc.ASCPowerOn, [16]byte{}, [16]byte{}, true},
		{"nothing written", false, func(*testing.T, *LUN) {}, spc.ASCPowerOn, [16]byte{}, [16]byte{}, false},
		{"written with FUA", false, do(Request{Op: OpWrite, Buf: make([]byte, 512), FUA: true}), spc.ASCPowerOn, [16]byte{}, [16]byte{}, false},
		{"written and flushed", true, do(Request{Op: OpWrite, Buf: make([]byte, 512), FUA: true}), spc.ASCPowerOn, [16]byte{}, [16]byte{}, false},
		{"same epoch", false, write, spc.ASCPowerOn, one, one, false},
		{"new epoch", false, write, spc.ASCPowerOnReset, one, two, true},
		{"new epoch, no attention", false, write, 0, one, two, true},
		{"new epoch, flushed before", false, flushed, spc.ASCPowerOnReset, one, two, false},
		{"the target begins to tell epochs", false, write, spc.ASCPowerOnReset, [16]byte{}, two, false},
		{"the target no longer tells epochs", false, write, spc.ASCPowerOnReset, one, [16]byte{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				ft.epoch, ft.noFUA = c.epoch, c.noFUA
				cfg := ft.config()
				lost := 0
				cfg.OnEvent = func(e Event) {
					if e.Kind == EventCacheLost {
						lost++
					}
				}
				l := dialLUN(t, cfg)
				c.before(t, l)
				ft.mu.Lock()
				ft.epoch, ft.asc, ft.attention = c.epoch2, c.asc, c.asc != 0
				ft.mu.Unlock()
				ft.last().cut(errors.New("power cut"))
				// Reads and writes go on; it is the flush that cannot keep its promise.
				if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
				write(t, l)
				if err := l.Flush(); errors.Is(err, ErrCacheLost) != c.lost || !c.lost && err != nil {
					t.Errorf("the flush: %v", err)
				}
				if err := l.Flush(); err != nil {
					t.Errorf("the flush after it: %v", err)
				}
				if (lost > 0) != c.lost {
					t.Errorf("%d events", lost)
				}
			})
		})
	}
}

// Flushes that were under way together when the target lost power have each a
// caller who relies on it: all of them fail, also those that are sent again.
func TestFlushesAcrossPowerCut(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		ft.asc = spc.ASCPowerOn
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			if isFlush(p) {
				letGo(ft)
				d.cut(errors.New("power cut"))
			}
			return isFlush(p)
		}
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- l.Flush() }()
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, ErrCacheLost) {
				t.Error(err)
			}
		}
	})
}

// A loss is told to each of the users of a LUN, once; who begins later has lost nothing.
func TestFlushersAreToldEach(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		flush := func(f *Flusher) error { return l.Do(context.Background(), &Request{Op: OpFlush, Flusher: f}) }
		users := map[string]*Flusher{"one": l.NewFlusher(), "another": l.NewFlusher()}
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			letGo(ft)
			d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCPowerOn})
			return true
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		// Nobody knows of it yet, so that whoever comes now has to.
		users["one who comes before anybody was told"] = l.NewFlusher()
		for name, f := range users {
			if err := flush(f); !errors.Is(err, ErrCacheLost) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !EventCacheLost.Trouble() {
			t.Error("nobody hears of it who did not ask for details")
		}
		users["one who comes later"] = l.NewFlusher()
		users["those without a name"] = nil
		for name, f := range users {
			if err := flush(f); err != nil {
				t.Errorf("%s, then: %v", name, err)
			}
		}
	})
}

// The second path's attention of its login is taken when the LUN is opened: it says
// nothing about what was written over the first.
func TestPathsAttentionIsOld(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.asc = spc.ASCPowerOn
		cfg := ft.config()
		cfg.Sessions = 2
		l := dialLUN(t, cfg)
		for range 4 { // over both
			if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Flush(); err != nil {
			t.Error(err)
		}
	})
}

// A raw command that meets the unit attention does not hide it from the flush.
func TestRawCommandMeetsPowerOn(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		if _, err := l.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			letGo(ft)
			d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCPowerOn})
			return true
		}
		var se *spc.SenseError
		if err := l.Do(context.Background(), &Request{Op: OpCDB, CDB: spc.AppendTestUnitReady(nil)}); !errors.As(err, &se) {
			t.Fatal(err)
		}
		if err := l.Flush(); !errors.Is(err, ErrCacheLost) {
			t.Error(err)
		}
	})
}
