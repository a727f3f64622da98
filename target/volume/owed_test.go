package volume

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// pushed is a port that notes its pushes, among the steps of the worker.
type pushed struct {
	events *[]int // n: the step of request n; -n: its push. The only worker appends
	n      int
	took   time.Duration
}

func (p pushed) Push() {
	*p.events = append(*p.events, -p.n)
	time.Sleep(p.took) // virtual: tests of pushes run in synctest
}

// ported is a request whose port is another one than itself.
type ported struct {
	*req
	port pushed
}

func (r *ported) Via() Port { return r.port }

// steps runs requests of those kinds on one worker, which finds all of them in its queue, and
// returns in which order it took its steps and pushed, and how often it read the clock. Each step and each
// push takes so long.
func steps(t *testing.T, kinds []Hold, took func(n int) time.Duration, pushing time.Duration) (events []int, looked int) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), Workers: 1}, "v")
		b.v.mu.Lock()
		b.v.pool.now = func() time.Time { // by the only worker
			looked++
			return time.Now()
		}
		b.v.mu.Unlock()
		gate := make(chan struct{})
		var all []*ported
		for i, kind := range kinds {
			n := i + 1
			r := &ported{req: &req{v: b.v, steps: make(chan Cause, 1)}, port: pushed{&events, n, pushing}}
			r.more = func(r *req) {
				if n == 1 {
					<-gate
				}
				events = append(events, n)
				time.Sleep(took(n))
				r.Step(Proceed)
			}
			r.op.Init(r)
			r.op.Cover(uint64(n), uint64(n)+1, kind)
			if !b.v.Admit(&r.op) {
				t.Fatal("a request beside others has to wait")
			}
			b.v.ToWorker(&r.op)
			all = append(all, r)
		}
		close(gate)
		for _, r := range all {
			<-r.steps
		}
		synctest.Wait()
	})
	return events, looked
}

// run is the numbers from lo to hi.
func run(lo, hi int) (s []int) {
	for ; lo <= hi; lo++ {
		s = append(s, lo)
	}
	return s
}

func minus(s []int) []int {
	for i := range s {
		s[i] = -s[i]
	}
	return s
}

// single is each of those steps with its push behind it.
func single(lo, hi int) (s []int) {
	for ; lo <= hi; lo++ {
		s = append(s, lo, -lo)
	}
	return s
}

func atOnce(int) time.Duration { return 0 }

// Answers to writes leave in batches once some steps were short; what is owed is paid
// before anything that may wait for storage.
func TestOwedPushes(t *testing.T) {
	writes := slices.Repeat([]Hold{HoldWrite}, 40)
	for _, tc := range []struct {
		name    string
		kinds   []Hold
		took    func(int) time.Duration
		pushing time.Duration
		want    []int
	}{
		{"pushes that take long are no part of a step", writes, atOnce, time.Second,
			slices.Concat(single(1, 7), run(8, 23), minus(run(8, 23)), run(24, 39), minus(run(24, 39)), single(40, 40))},
		// The first step waits at the gate, for no virtual time.
		{"writes", writes, atOnce, 0, slices.Concat(single(1, 7), run(8, 23), minus(run(8, 23)), run(24, 39), minus(run(24, 39)), single(40, 40))},
		{"reads", slices.Repeat([]Hold{HoldRead}, 10), atOnce, 0, single(1, 10)},
		{"a flush among them", slices.Concat(writes[:10], []Hold{HoldNone}, writes[:2]), atOnce, 0,
			slices.Concat(single(1, 7), run(8, 10), minus(run(8, 10)), run(11, 13), minus(run(11, 13)))},
		{"one that takes long", writes[:20], func(n int) time.Duration {
			if n == 10 {
				return time.Millisecond
			}
			return 0
		}, 0, slices.Concat(single(1, 7), run(8, 10), minus(run(8, 10)), single(11, 17), run(18, 20), minus(run(18, 20)))},
		{"not for long", writes[:14], func(int) time.Duration { return 90 * time.Microsecond }, 0,
			slices.Concat(single(1, 7), run(8, 11), minus(run(8, 11)), run(12, 14), minus(run(12, 14)))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, _ := steps(t, tc.kinds, tc.took, tc.pushing); !slices.Equal(got, tc.want) {
				t.Errorf("steps and pushes %v\nwant %v", got, tc.want)
			}
		})
	}
}

// Where a step follows another one at once, the end of that is its beginning; the clock is not read again.
func TestClockOfSteps(t *testing.T) {
	// Seven steps with a push behind each, then five with one end.
	if _, looked := steps(t, slices.Repeat([]Hold{HoldWrite}, 12), atOnce, 0); looked != 7*2+1+5 {
		t.Errorf("the clock was read %d times for 12 steps, want %d", looked, 7*2+1+5)
	}
}

// Writes that go in turn are all made before the first of a batch is answered, and are pushed
// together; where each has a turn of its own, its answer is behind it.
func TestAnsweredTogether(t *testing.T) {
	const n = 12
	for _, tc := range []struct {
		inTurn bool
		want   []int // 100+i: write i; i: its answer; -i: its push
	}{
		{true, slices.Concat(answered(1, 7), plus100(run(8, n)), run(8, n), minus(run(8, n)))},
		{false, slices.Concat(answered(1, 7), []int{108, 8, 109, 9, 110, 10, 111, 11, 112, 12}, minus(run(8, n)))},
	} {
		synctest.Test(t, func(t *testing.T) {
			var events []int
			gate := make(chan struct{})
			b := serve(t, new(Registry), Config{Device: slow{newDevice(t, "v"), tc.inTurn, func(off int64) {
				if off == 512 {
					<-gate
				}
				events = append(events, 100+int(off/512))
			}}, Workers: 1}, "v")
			var block [512]byte
			var all []*ported
			for i := 1; i <= n; i++ {
				r := &ported{req: &req{v: b.v, steps: make(chan Cause, 1)}, port: pushed{&events, i, 0}}
				r.more = func(r *req) {
					events = append(events, i)
					if err := r.op.Written(); err != nil {
						t.Error(err)
					}
					r.Step(Proceed)
				}
				r.op.Init(r)
				r.op.Cover(uint64(i), uint64(i)+1, HoldWrite)
				if !b.v.Admit(&r.op) {
					t.Fatal("a request beside others has to wait")
				}
				b.v.ToWriter(&r.op, block[:], int64(i)*512)
				all = append(all, r)
			}
			close(gate)
			for _, r := range all {
				<-r.steps
			}
			synctest.Wait()
			if !slices.Equal(events, tc.want) {
				t.Errorf("in turn %v: writes, answers and pushes %v\nwant %v", tc.inTurn, events, tc.want)
			}
		})
	}
}

// A write that has been made is answered before a worker takes up one that may sync.
func TestAnsweredBeforeASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []int
		gate := make(chan struct{})
		b := serve(t, new(Registry), Config{Device: slow{newDevice(t, "v"), true, func(off int64) {
			if off == 512 {
				<-gate
			}
			events = append(events, 100+int(off/512))
		}}, Workers: 1}, "v")
		var block [512]byte
		var all []*ported
		for i := 1; i <= 11; i++ {
			r := &ported{req: &req{v: b.v, steps: make(chan Cause, 1)}, port: pushed{&events, i, 0}}
			r.more = func(r *req) {
				events = append(events, i)
				r.Step(Proceed)
			}
			r.op.Init(r)
			r.op.Cover(uint64(i), uint64(i)+1, HoldWrite)
			if !b.v.Admit(&r.op) {
				t.Fatal("a request beside others has to wait")
			}
			if i == 11 {
				b.v.ToWorker(&r.op) // ToSyncer might have a worker of its own, beside the one that owes
			} else {
				b.v.ToWriter(&r.op, block[:], int64(i)*512)
			}
			all = append(all, r)
		}
		close(gate)
		for _, r := range all {
			<-r.steps
		}
		synctest.Wait()
		want := slices.Concat(answered(1, 7), plus100(run(8, 10)), run(8, 10), minus(run(8, 10)), single(11, 11))
		if !slices.Equal(events, want) {
			t.Errorf("writes, answers and pushes %v\nwant %v", events, want)
		}
	})
}

// answered is each of those writes with its answer and its push behind it.
func answered(lo, hi int) (s []int) {
	for ; lo <= hi; lo++ {
		s = append(s, 100+lo, lo, -lo)
	}
	return s
}

func plus100(s []int) []int {
	for i := range s {
		s[i] += 100
	}
	return s
}
