package multipath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/alloctest"
)

func do(t *testing.T, v *Volume, r *blockio.Request) {
	t.Helper()
	if err := v.Do(context.Background(), r); err != nil {
		t.Fatal(err)
	}
}

func pending(t *testing.T, what string, ch <-chan error) {
	t.Helper()
	select {
	case err := <-ch:
		t.Fatalf("%s ended: %v", what, err)
	default:
	}
}

// A write whose outcome is unknown waits for the fence; everything else goes on at once.
func TestWriteOfALostPathWaitsForItsFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessNonOptimized
		v := open(t, Config{}, a, b)
		w, r := start(v, write(0, 1)), start(v, read(512))
		time.Sleep(time.Millisecond)
		a.cut()
		if err := <-r; err != nil {
			t.Fatalf("the read of the lost path: %v", err)
		}
		do(t, v, write(1024, 2))
		pending(t, "the write of the lost path", w)
		time.Sleep(30 * time.Second)
		pending(t, "the write of the lost path", w)
		if s := v.Paths(); s[0].Unknown != 1 || s[0].State != "down" || !s[1].Active {
			t.Errorf("%+v", s)
		}
		a.change(func() { a.fences = true })
		if err := <-w; err != nil || st.get(0) != 1 {
			t.Errorf("after the fence: %v, %d", err, st.get(0))
		}
	})
}

// Writers keep a ledger of what was acknowledged, while paths are cut and come back. What these carry ends with loses
// then; a writer that is told so writes anew.
func ledger(t *testing.T, cfg Config, fences bool, loses error) (wrong int) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		paths := []*fakePath{st.path("a"), st.path("b"), st.path("c")}
		for _, p := range paths {
			p.fences, p.latency, p.loses = fences, 10*time.Millisecond, loses
		}
		v := open(t, cfg, paths...)
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		var mu sync.Mutex
		for i := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				off := int64(i) * fakeBlock
				for n := uint64(1); ctx.Err() == nil; n++ {
					r := read(off)
					err := v.Do(context.Background(), write(off, n))
					if err == nil {
						err = v.Do(context.Background(), r)
					}
					if errors.Is(err, loses) && errors.Is(err, blockio.ErrOutcomeUnknown) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if got := binary.LittleEndian.Uint64(r.Buf); got != n {
						mu.Lock()
						wrong++
						mu.Unlock()
					}
				}
			}()
		}
		for range 40 {
			p := paths[rand.N(len(paths))]
			time.Sleep(time.Duration(rand.Int64N(int64(100 * time.Millisecond))))
			p.cut()
			time.Sleep(time.Duration(rand.Int64N(int64(time.Second))))
			p.restore()
		}
		stop()
		wg.Wait()
	})
	return wrong
}

func TestLedger(t *testing.T) {
	for _, policy := range []Policy{RoundRobin, QueueDepth} {
		for _, fences := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, fenced through another path: %v", policy, fences), func(t *testing.T) {
				if wrong := ledger(t, Config{Policy: policy}, fences, blockio.ErrSessionLost); wrong > 0 {
					t.Errorf("%d reads did not find what had been acknowledged last", wrong)
				}
			})
		}
	}
	for _, loses := range []error{blockio.ErrTimeoutUnknown, blockio.Unknown(blockdev.ErrMedium), blockio.Unknown(blockio.ErrInaccessible)} {
		t.Run(loses.Error(), func(t *testing.T) {
			if wrong := ledger(t, Config{}, false, loses); wrong > 0 {
				t.Errorf("%d reads did not find what had been acknowledged last", wrong)
			}
		})
	}
}

// What the fence is for: without it the late first copy of a write undoes what was
// acknowledged after its repetition.
func TestLateWrite(t *testing.T) {
	for _, c := range []struct {
		fence Fence
		want  uint64
	}{{FenceNone, 1}, {FenceSession, 2}} {
		t.Run(c.fence.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				a, b := st.path("a"), st.path("b")
				b.access, a.fences = blockio.AccessNonOptimized, true
				a.lag = maxLag // by chance it would sometimes come before what it is to undo
				v := open(t, Config{Fence: c.fence}, a, b)
				w := start(v, write(0, 1))
				time.Sleep(time.Millisecond)
				a.cut()
				if err := <-w; err != nil {
					t.Fatal(err)
				}
				do(t, v, write(0, 2))
				time.Sleep(maxLag + time.Second)
				if got := st.get(0); got != c.want {
					t.Errorf("2 was acknowledged, %d is there", got)
				}
			})
		})
	}
}

func TestNoPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a := st.path("a")
		v := open(t, Config{NoPathRetry: 30 * time.Second}, a)
		a.cut()
		begun := time.Now()
		short := start(v, read(0))
		time.Sleep(29 * time.Second)
		pending(t, "a read without a path", short)
		if err := <-short; !errors.Is(err, ErrNoPath) || !errors.Is(err, blockio.ErrSessionLost) || time.Since(begun) > 31*time.Second {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
		if err := <-start(v, read(0)); !errors.Is(err, ErrNoPath) {
			t.Fatalf("once that time is over: %v", err)
		}
		a.restore()
		time.Sleep(time.Second)
		do(t, v, read(0))
		// The wait begins anew, and a path that comes back ends it.
		a.cut()
		held := start(v, read(0))
		time.Sleep(20 * time.Second)
		a.restore()
		if err := <-held; err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := newStorage().path("a")
		v := open(t, Config{NoPathRetry: FailFast}, a)
		a.cut()
		begun := time.Now()
		if err := <-start(v, read(0)); !errors.Is(err, ErrNoPath) || time.Since(begun) > time.Millisecond {
			t.Errorf("fail: %v after %v", err, time.Since(begun))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := newStorage().path("a")
		v := open(t, Config{NoPathRetry: -1}, a)
		a.cut()
		ch := start(v, read(0))
		time.Sleep(24 * time.Hour)
		pending(t, "a read that waits for ever", ch)
		v.Close()
		if err := <-ch; !errors.Is(err, blockio.ErrClosed) {
			t.Error(err)
		}
	})
}

// The outcome of a write that is never fenced is unknown when the time is over, which is a time-out.
func TestUnfencedWriteEnds(t *testing.T) {
	for d, says := range map[time.Duration]string{10 * time.Second: "fenced within 10s: ", FailFast: "fenced: "} {
		synctest.Test(t, func(t *testing.T) {
			st := newStorage()
			a, b := st.path("a"), st.path("b")
			b.access = blockio.AccessNonOptimized
			v := open(t, Config{NoPathRetry: d}, a, b)
			w := start(v, write(0, 1))
			time.Sleep(time.Millisecond)
			a.cut()
			if err := <-w; !errors.Is(err, blockio.ErrOutcomeUnknown) || !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), says) {
				t.Error(err)
			}
			do(t, v, write(512, 1)) // the other path goes on
		})
	}
}

// A write whose path is not fenced when the volume is closed may yet be carried out, unlike one that
// waits for a path.
func TestCloseBeforeFence(t *testing.T) {
	for name, closed := range map[string]func(*Volume, *fakePath){
		"waiting for the fence": func(v *Volume, a *fakePath) { a.cut(); synctest.Wait(); v.Close() },
		"with the path":         func(v *Volume, a *fakePath) { v.Close(); a.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newStorage().path("a")
				v := open(t, Config{NoPathRetry: -1}, a)
				w := start(v, write(0, 1))
				synctest.Wait() // it is sent
				closed(v, a)
				if err := <-w; !errors.Is(err, blockio.ErrOutcomeUnknown) || !errors.Is(err, blockio.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		a := newStorage().path("a")
		v := open(t, Config{NoPathRetry: -1}, a)
		a.cut()
		w := start(v, write(0, 1))
		v.Close()
		if err := <-w; !errors.Is(err, blockio.ErrClosed) || errors.Is(err, blockio.ErrOutcomeUnknown) {
			t.Error(err)
		}
	})
}

func TestOnceOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessNonOptimized
		a.fences = true
		v := open(t, Config{}, a, b)
		r := write(0, 1)
		r.Op = blockio.OpCompareAndWrite
		ch := start(v, r)
		time.Sleep(time.Millisecond)
		a.cut()
		if err := <-ch; !errors.Is(err, blockio.ErrOutcomeUnknown) {
			t.Errorf("a compare and write that was at the lost path: %v", err)
		}
		q := write(0, 1)
		q.Op = blockio.OpCompareAndWrite
		do(t, v, q) // never sent to the lost one
	})
}

func TestFenceByReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessNonOptimized
		v := open(t, Config{Fence: FenceReset}, a, b)
		w := start(v, write(0, 1))
		time.Sleep(time.Millisecond)
		a.cut()
		if err := <-w; err != nil || b.resets != 1 {
			t.Errorf("%v, %d resets", err, b.resets)
		}
	})
}

// The storage moves the volume to a standby: its old owner is dead, unless the target knows
// of other ports that serve it, or the old owner answers. It may have moved before the old
// path is known to be lost, of which a node that is paused tells nobody.
func TestTakeOver(t *testing.T) {
	for _, c := range []struct {
		name                 string
		shared, mute, answer bool
		repeated             bool
	}{
		{"the path is lost", false, false, false, true},
		{"the path is lost, other ports serve it", true, false, false, false},
		{"the path is mute", false, true, false, true},
		{"the path is mute, other ports serve it", true, true, false, false},
		{"the path is mute for a while", false, true, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				a, b := st.path("a"), st.path("b")
				b.access, b.shared = blockio.AccessInaccessible, c.shared
				a.latency = time.Hour
				v := open(t, Config{}, a, b)
				w := start(v, write(0, 1))
				time.Sleep(time.Millisecond)
				mute := func(on bool) { a.change(func() { a.mute = on }) }
				if mute(c.mute); !c.mute {
					a.cut()
				}
				time.Sleep(time.Second) // a is not known to be lost where it is mute
				b.set(blockio.AccessOptimized)
				time.Sleep(time.Second)
				if !c.shared { // which leaves it the choice
					do(t, v, write(512, 1))
				}
				if c.answer {
					mute(false)
					time.Sleep(10 * time.Second)
				}
				if c.mute {
					pending(t, "the write", w)
					a.change(a.fence) // the node is off, where it is
					a.cut()
				}
				time.Sleep(10 * time.Second)
				if !c.repeated {
					pending(t, "the write", w)
				} else if err := <-w; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Two targets serve the volume at once, and neither knows of the other. One of them is in transition for a
// moment: that it serves again does not say that the other one has ceased to, and a write of that one's lost
// path waits. Repeated at once, it would undo what is written behind it.
func TestTransitionIsNoTakeOver(t *testing.T) {
	for _, first := range []string{"the path is lost", "the transition ends"} {
		t.Run(first, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				a, b := st.path("a"), st.path("b")
				a.latency, a.lag = time.Hour, 4*time.Second
				v := open(t, Config{}, a, b)
				b.set(blockio.AccessTransitioning)
				synctest.Wait()
				w := start(v, write(0, 1))
				time.Sleep(time.Millisecond)
				a.change(func() { a.mute = true }) // a's answer would say that it serves, too
				if first == "the path is lost" {
					a.cut()
					time.Sleep(time.Millisecond)
				}
				b.set(blockio.AccessOptimized)
				synctest.Wait()
				if first == "the transition ends" {
					a.cut()
				}
				time.Sleep(time.Second)
				pending(t, "the write", w)
				do(t, v, write(0, 2))
				time.Sleep(10 * time.Second)
				pending(t, "the write", w)
				a.change(func() { a.mute, a.latency = false, time.Millisecond })
				a.restore()
				if err := <-w; err != nil || st.get(0) != 1 {
					t.Errorf("%v, block 0 has %d", err, st.get(0))
				}
			})
		})
	}
}

// A volume that has moved to a standby and back has moved, though all that was heard of the first owner
// meanwhile is that it is in transition.
func TestTakeOverAfterATransition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessInaccessible
		v := open(t, Config{}, a, b)
		a.set(blockio.AccessTransitioning)
		synctest.Wait()
		b.set(blockio.AccessOptimized)
		synctest.Wait()
		b.change(func() { b.latency = time.Hour })
		w := start(v, write(0, 1))
		time.Sleep(time.Millisecond)
		b.cut()
		time.Sleep(time.Second)
		pending(t, "the write", w)
		a.set(blockio.AccessOptimized)
		if err := <-w; err != nil {
			t.Error(err)
		}
	})
}

func TestTransitionsAndFailback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessNonOptimized
		v := open(t, Config{}, a, b)
		only := func(want, other *fakePath) {
			t.Helper()
			w, o := want.count(), other.count()
			for range 10 {
				do(t, v, write(0, 1))
			}
			if want.count() != w+10 || other.count() != o {
				t.Errorf("%s served %d, %s %d", want.name, want.count()-w, other.name, other.count()-o)
			}
		}
		only(a, b)
		a.set(blockio.AccessInaccessible) // told by the target
		synctest.Wait()
		only(b, a)
		a.set(blockio.AccessOptimized)
		synctest.Wait()
		only(a, b)
		a.change(func() { a.access = blockio.AccessInaccessible }) // found out by a command
		only(b, a)
		b.set(blockio.AccessTransitioning)
		ch := start(v, write(0, 2))
		time.Sleep(10 * time.Second)
		pending(t, "a write during a transition", ch)
		b.change(func() { b.access = blockio.AccessOptimized }) // nothing tells it
		if err := <-ch; err != nil || st.get(0) != 2 {
			t.Error(err)
		}
	})
}

// While requests wait for a path, the one that is there is asked often: the volume may be
// moving to it, and nothing tells.
func TestStandbyBecomesActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessInaccessible
		v := open(t, Config{}, a, b)
		do(t, v, write(0, 1))
		a.cut()
		const after = 2 * time.Second
		time.AfterFunc(after, func() {
			b.change(func() { b.access = blockio.AccessOptimized })
		})
		start := time.Now()
		if err := v.Do(context.Background(), read(0)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start) - after; d < 0 || d > noPathPause+b.latency {
			t.Errorf("read %v after the path could carry it", d)
		}
	})
}

func TestPolicies(t *testing.T) {
	for _, policy := range []Policy{RoundRobin, QueueDepth} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				fast, slow := st.path("fast"), st.path("slow")
				slow.latency = 20 * fast.latency
				v := open(t, Config{Policy: policy}, fast, slow)
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						for range 50 {
							v.Do(context.Background(), read(int64(i)*fakeBlock))
						}
					}()
				}
				wg.Wait()
				f, s := fast.count(), slow.count()
				if f+s != 400 || policy == RoundRobin && f != s || policy == QueueDepth && f < 4*s {
					t.Errorf("fast %d, slow %d", f, s)
				}
			})
		})
	}
}

func TestSubmitBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		v := open(t, Config{}, a, b)
		var wg sync.WaitGroup
		rs := make([]*blockio.Request, 9)
		for i := range rs {
			if rs[i] = write(int64(i)*fakeBlock, uint64(i)+1); i == 4 {
				rs[i] = &blockio.Request{Op: blockio.OpFlush}
			}
			rs[i].Done = func(r *blockio.Request) {
				if r.Err != nil {
					t.Error(r.Err)
				}
				wg.Done()
			}
		}
		wg.Add(len(rs))
		v.SubmitBatch(rs)
		wg.Wait()
		for i := range rs {
			if i != 4 && st.get(int64(i)*fakeBlock) != uint64(i)+1 {
				t.Errorf("block %d", i)
			}
		}
		if a.count() == 0 || b.count() == 0 {
			t.Error("one path carried nothing")
		}
	})
}

// Another volume, another size, other blocks: not one command goes there.
func TestIdentity(t *testing.T) {
	for name, change := range map[string]func(*fakePath){
		"name":       func(p *fakePath) { p.names = []string{"naa.6002"} },
		"no name":    func(p *fakePath) { p.names = nil },
		"other kind": func(p *fakePath) { p.names = []string{"t10.x", "naa.6002"} },
		"size":       func(p *fakePath) { p.info.Size *= 2 },
		"block size": func(p *fakePath) { p.info.BlockSize = 4096 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newStorage().path("a"), newStorage().path("b")
				change(b)
				v := open(t, Config{NoPathRetry: time.Second}, a, b)
				for range 10 {
					do(t, v, write(0, 1))
				}
				a.cut()
				if err := <-start(v, read(0)); !errors.Is(err, ErrNoPath) || !errors.Is(err, errOther) {
					t.Error(err)
				}
				if n := b.count(); n != 0 || !b.closed {
					t.Errorf("%d commands went to another volume", n)
				}
			})
		})
	}
}

func TestSameNames(t *testing.T) {
	for _, c := range []struct {
		a, b []string
		same bool
	}{
		{[]string{"naa.1", "eui.2"}, []string{"naa.1", "eui.2"}, true},
		{[]string{"naa.1", "eui.2"}, []string{"eui.2"}, true},
		{[]string{"naa.1", "eui.2"}, []string{"uuid.3", "eui.2"}, true},
		{[]string{"naa.1", "eui.2"}, []string{"naa.9", "eui.2"}, false},
		{[]string{"naa.1"}, []string{"eui.1"}, false},
		{[]string{"naa.1"}, nil, false},
	} {
		if SameNames(c.a, c.b) != c.same || SameNames(c.b, c.a) != c.same {
			t.Errorf("%v and %v: want %v", c.a, c.b, c.same)
		}
	}
}

// A path that cannot be opened at first is looked for, and used once it is there.
func TestPathComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		a.refuse = errors.New("nobody listens")
		v := open(t, Config{}, a, b)
		do(t, v, write(0, 1))
		time.Sleep(20 * time.Second)
		a.change(func() { a.refuse = nil })
		time.Sleep(6 * time.Second)
		b.cut()
		do(t, v, read(0))
		if a.count() == 0 {
			t.Error("it is not used")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a, b := newStorage().path("a"), newStorage().path("b")
		a.refuse, b.refuse = errors.New("nobody listens at a"), errors.New("nobody listens at b")
		_, err := Open(context.Background(), Config{Paths: []Dialer{a.dialer(), b.dialer()}})
		if !errors.Is(err, a.refuse) || !errors.Is(err, b.refuse) {
			t.Error(err)
		}
	})
}

// Whoever opens a volume is told of a path once: in the error if no path can be opened, else by an event. That
// closing the volume has ended an attempt is no news.
func TestUnusedPathIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		tell := func(line string) { lines = append(lines, line) }
		a, b := newStorage().path("a"), newStorage().path("b")
		a.refuse = errors.New("nobody listens")
		if _, err := Open(context.Background(), Config{OnEvent: tell, Paths: []Dialer{a.dialer()}}); !errors.Is(err, a.refuse) || len(lines) > 0 {
			t.Errorf("%v, and beside it %q", err, lines)
		}
		var hangs atomic.Bool
		dialer, refuses := a.dialer(), a.dialer().Open
		dialer.Open = func(ctx context.Context, h Hooks) (blockio.Path, error) {
			if !hangs.Load() {
				return refuses(ctx, h)
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		v, err := Open(context.Background(), Config{OnEvent: tell, Paths: []Dialer{dialer, b.dialer()}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // the keeper tries again
		synctest.Wait()
		if want := []string{"a: not used: nobody listens"}; !slices.Equal(lines, want) {
			t.Errorf("%q, want %q", lines, want)
		}
		hangs.Store(true)
		time.Sleep(6 * time.Second) // the keeper is at it
		synctest.Wait()
		lines = nil
		v.Close()
		if len(lines) > 0 {
			t.Errorf("closing says %q", lines)
		}
	})
}

func TestCancel(t *testing.T) {
	why := errors.New("enough")
	unknown := map[string]bool{"before a fence": true} // the lost path may yet carry it out
	for name, prepare := range map[string]func(a, b *fakePath){
		"with a path":     func(a, _ *fakePath) { a.latency = time.Hour },
		"without a path":  func(a, b *fakePath) { a.cut(); b.cut() },
		"before a fence":  nil,
		"in a transition": func(a, b *fakePath) { a.set(blockio.AccessTransitioning); b.set(blockio.AccessTransitioning) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				a, b := st.path("a"), st.path("b")
				b.access = blockio.AccessNonOptimized
				v := open(t, Config{}, a, b)
				if prepare != nil {
					prepare(a, b)
				} else {
					time.AfterFunc(time.Millisecond, a.cut)
				}
				ctx, cancel := context.WithCancelCause(context.Background())
				time.AfterFunc(time.Minute, func() { cancel(why) })
				if err := v.Do(ctx, write(0, 1)); !errors.Is(err, why) || errors.Is(err, blockio.ErrOutcomeUnknown) != unknown[name] {
					t.Error(err)
				}
			})
		})
	}
}

// What a cache holds that no path leads to any more fails the next flush; what one holds to
// which a path leads is flushed there.
func TestFlushOfSeveralCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		a.epochID, b.epochID = [16]byte{1}, [16]byte{2}
		b.access = blockio.AccessNonOptimized
		v := open(t, Config{}, a, b)
		do(t, v, write(0, 1))
		a.set(blockio.AccessInaccessible)
		synctest.Wait()
		// The standby still flushes, or says that it need not: here it fails, as LUNs on
		// standby do.
		if err := v.Flush(); !errors.Is(err, blockio.ErrCacheLost) {
			t.Errorf("with a cache that no path leads to: %v", err)
		}
		if err := v.Flush(); err != nil {
			t.Errorf("the next one: %v", err)
		}
		a.set(blockio.AccessOptimized)
		synctest.Wait()
		do(t, v, write(0, 2))
		b.set(blockio.AccessOptimized)
		synctest.Wait()
		for range 4 {
			if err := v.Flush(); err != nil {
				t.Errorf("both caches are reached: %v", err)
			}
		}
		if v.cache.Elsewhere(b.epoch) {
			t.Error("the first cache still holds something")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		a.epochID, b.epochID = [16]byte{1}, [16]byte{1}
		v := open(t, Config{}, a, b)
		do(t, v, write(0, 1))
		do(t, v, write(0, 2))
		a.cut()
		if err := v.Flush(); err != nil {
			t.Errorf("one cache, one path left: %v", err)
		}
	})
}

func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		v := open(t, Config{}, a, b)
		told := make(chan int64, 4)
		defer v.OnResize(func(i blockdev.Info) { told <- i.Size })()
		for _, p := range []*fakePath{a, b} {
			p.change(func() { p.info.Size = 2 << 20 })
			p.hooks.Changed()
			synctest.Wait()
			if p == a && v.Info().Size != 1<<20 {
				t.Error("grown before every path knows")
			}
		}
		if n := <-told; n != 2<<20 || v.Info().Size != n {
			t.Errorf("told %d", n)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	st := newStorage()
	a, b := st.path("a"), st.path("b")
	a.latency, b.latency = 0, 0
	for _, policy := range []Policy{RoundRobin, QueueDepth} {
		v := open(t, Config{Policy: policy}, a, b)
		r := write(0, 1)
		r.Done = func(*blockio.Request) {}
		batch := make([]*blockio.Request, 32)
		for i := range batch {
			batch[i] = write(int64(i)*fakeBlock, 1)
			batch[i].Done = r.Done
		}
		for name, f := range map[string]func(){"Submit": func() { v.Submit(r) }, "SubmitBatch": func() { v.SubmitBatch(batch) }} {
			f()
			if n := alloctest.PerRun(200, f); n > 0 {
				t.Errorf("%v, %s: %v allocations", policy, name, n)
			}
		}
	}
}

// A request that is cancelled while it is given up for want of a path ends once.
func TestCancelledWhileGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStorage().path("a")
		var v *Volume
		ended := 0
		r := read(0)
		r.Done = func(*blockio.Request) { ended++ }
		v = open(t, Config{NoPathRetry: time.Second, OnEvent: func(line string) {
			if strings.HasPrefix(line, "no path has come back") {
				v.cancelRequest(r.Driver.(*request), context.Canceled)
			}
		}}, a)
		a.cut()
		synctest.Wait()
		v.Submit(r)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if ended != 1 || !errors.Is(r.Err, ErrNoPath) {
			t.Errorf("it has ended %d times: %v", ended, r.Err)
		}
	})
}

// A volume that is closed has lost no path.
func TestClosedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		a := newStorage().path("a")
		v := open(t, Config{OnEvent: func(line string) { lines = append(lines, line) }}, a)
		synctest.Wait()
		v.cancel()
		synctest.Wait() // the keeper is gone; one that was at its question would have found:
		v.paths[0].set(condition{access: blockio.AccessGone}, context.Canceled)
		if n := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "lost") }); n >= 0 {
			t.Error(lines[n])
		}
	})
}

// The state in which a path is found at the start is no news: its changes are, and that one is there of which
// it had been told that it is not.
func TestFirstStateIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b, c := st.path("a"), st.path("b"), st.path("c")
		b.access = blockio.AccessInaccessible
		c.refuse = errors.New("nobody listens")
		var lines []string
		changes := 0
		open(t, Config{OnEvent: func(line string) { lines = append(lines, line) }, Changed: func() { changes++ }}, a, b, c)
		synctest.Wait()
		if want := []string{"c: not used: nobody listens"}; !slices.Equal(lines, want) || changes != 3 {
			t.Errorf("%q, want %q; %d changes", lines, want, changes)
		}
		lines = nil
		c.mu.Lock()
		c.refuse = nil
		c.mu.Unlock()
		b.set(blockio.AccessOptimized)
		time.Sleep(20 * time.Second) // c is tried again
		synctest.Wait()
		if want := []string{"b: optimized", "c: optimized"}; !slices.Equal(lines, want) || changes != 5 {
			t.Errorf("%q, want %q; %d changes", lines, want, changes)
		}
	})
}

// Lines are told one at a time, in the order in which they come about, whichever goroutine has
// found them.
func TestEventsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		var lines []string
		told := make(chan struct{})
		v := open(t, Config{OnEvent: func(line string) {
			if strings.HasPrefix(line, "a: lost") {
				b.set(blockio.AccessNonOptimized)
				synctest.Wait() // b's keeper has found it
				defer close(told)
			}
			lines = append(lines, line)
		}}, a, b)
		synctest.Wait()
		lines = nil
		a.cut()
		<-told
		synctest.Wait()
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "a: lost") || lines[1] != "b: non-optimized" {
			t.Errorf("%q", lines)
		}
		if s := v.Paths(); s[1].State != "non-optimized" {
			t.Errorf("%+v", s)
		}
	})
}
