package volume

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
)

// slow is a device whose writes take as long as it is told, and go in turn if inTurn says so.
type slow struct {
	blockdev.Device
	inTurn bool
	write  func(off int64)
}

func (d slow) Info() blockdev.Info {
	info := d.Device.Info()
	info.InTurn, info.WriteCache = d.inTurn, true
	return info
}

func (d slow) WriteAt(p []byte, off int64) (int, error) {
	d.write(off)
	return d.Device.WriteAt(p, off)
}

// Writes that the store takes in turn are made by one worker while steps are short. When that one
// is stuck the others get workers; and so do they at once where the store takes several.
func TestWritesInTurn(t *testing.T) {
	for _, tc := range []struct {
		name   string
		inTurn bool
		first  time.Duration // how long the first of them takes
		at     time.Duration // when it is looked
		begun  int32         // of six
		abort  bool          // the one behind the first is aborted
		others time.Duration // when all are over
	}{
		{"in turn", true, stuckAfter / 2, stuckAfter / 4, 1, false, stuckAfter},
		{"stuck", true, time.Hour, 2 * stuckAfter, 6, false, time.Hour},
		{"one aborted in the queue", true, stuckAfter / 2, stuckAfter / 4, 1, true, stuckAfter},
		{"another store", false, stuckAfter / 2, stuckAfter / 4, 6, false, stuckAfter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &Client{}
				var n uint64
				var begun atomic.Int32
				var block [512]byte
				times := make([]time.Duration, 64) // of the write of each block
				b := serve(t, new(Registry), Config{Device: slow{newDevice(t, "v"), tc.inTurn, func(off int64) {
					begun.Add(1)
					time.Sleep(times[off/512])
				}}, Workers: 16}, "v")
				write := func(took time.Duration) *req {
					n++
					times[n] = took
					r := &req{steps: make(chan Cause, 1)}
					if _, runs := b.start(r, client, Simple, n, n+1, HoldWrite); !runs {
						t.Fatal("a request beside others has to wait")
					}
					b.v.ToWriter(&r.op, block[:], int64(n)*512)
					return r
				}
				for range stepsSure {
					<-write(0).steps
				}
				synctest.Wait()
				begun.Store(0)
				began := time.Now()
				all := []*req{write(tc.first)}
				synctest.Wait() // it has begun
				for range 5 {
					all = append(all, write(0))
				}
				if tc.abort {
					b.v.AbortWhere(func(o *Op) AbortReason {
						if o == &all[1].op {
							return AbortedByOwner
						}
						return NotAborted
					}, nil)
				}
				time.Sleep(tc.at)
				synctest.Wait()
				if got := begun.Load(); got != tc.begun {
					t.Errorf("%d of 6 have begun after %v, want %d", got, tc.at, tc.begun)
				}
				if tc.first == time.Hour { // who comes later does not wait for it either
					later := time.Now()
					for range 2 * stepsSure {
						<-write(0).steps
					}
					if took := time.Since(later); took != 0 {
						t.Errorf("writes beside one that is stuck took %v", took)
					}
				}
				for i, r := range all {
					want := Proceed
					if tc.abort && i == 1 {
						want = Abort
					}
					if why := <-r.steps; why != want {
						t.Errorf("write %d: %v, want %v", i, why, want)
					}
				}
				synctest.Wait()
				if took := time.Since(began); took > tc.others {
					t.Errorf("all were over after %v, want %v", took, tc.others)
				}
				b.v.mu.Lock()
				if b.v.pool.turns.n != 0 {
					t.Errorf("%d writes are still counted", b.v.pool.turns.n)
				}
				b.v.mu.Unlock()
			})
		})
	}
}

// Of steps that make data durable twice as many are under way at once as of others.
func TestWorkersForSyncs(t *testing.T) {
	const workers = 3
	for _, tc := range []struct {
		name string
		to   func(*Tasks, *Op)
		want int32
	}{{"others", (*Tasks).ToWorker, workers}, {"syncs", (*Tasks).ToSyncer, 2 * workers}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), Workers: workers}, "v")
				gate := make(chan struct{})
				var begun atomic.Int32
				var all []*req
				for n := range uint64(4 * workers) {
					r := &req{steps: make(chan Cause, 1)}
					r.more = func(r *req) {
						begun.Add(1)
						<-gate
						r.Step(Proceed)
					}
					if _, runs := b.start(r, &Client{}, Simple, n, n+1, HoldWrite); !runs {
						t.Fatal("a request beside others has to wait")
					}
					tc.to(&b.v.Tasks, &r.op)
					all = append(all, r)
				}
				synctest.Wait()
				if got := begun.Load(); got != tc.want {
					t.Errorf("%d steps are under way, want %d", got, tc.want)
				}
				close(gate)
				for _, r := range all {
					<-r.steps
				}
			})
		})
	}
}

// One of them that comes behind others gets its own worker as soon as it is the next.
func TestWorkerForSyncBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), Workers: 1}, "v")
		var gates [3]chan struct{}
		var begun [3]atomic.Bool
		var all [3]*req
		for i := range all {
			gates[i] = make(chan struct{})
			r := &req{steps: make(chan Cause, 1)}
			r.more = func(r *req) {
				begun[i].Store(true)
				<-gates[i]
				r.Step(Proceed)
			}
			if _, runs := b.start(r, &Client{}, Simple, uint64(i), uint64(i)+1, HoldWrite); !runs {
				t.Fatal("a request beside others has to wait")
			}
			all[i] = r
		}
		b.v.ToWorker(&all[0].op)
		b.v.ToWorker(&all[1].op)
		b.v.ToSyncer(&all[2].op)
		synctest.Wait()
		if begun[1].Load() || begun[2].Load() {
			t.Error("one worker has begun two steps")
		}
		close(gates[0])
		synctest.Wait()
		if !begun[1].Load() || !begun[2].Load() {
			t.Errorf("the step behind has begun: %v; what makes data durable: %v", begun[1].Load(), begun[2].Load())
		}
		close(gates[1])
		close(gates[2])
		for _, r := range all {
			<-r.steps
		}
	})
}
