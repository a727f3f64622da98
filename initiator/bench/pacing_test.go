package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
)

func TestLimiter(t *testing.T) {
	l := limiter{bytes: 1 << 20, iops: 1000}
	l.reset(5 * time.Second)
	if w := l.wait(5 * time.Second); w > 0 {
		t.Errorf("the first operation waits %v", w)
	}
	l.take(1 << 20)
	if w := l.wait(5 * time.Second); w != time.Second {
		t.Errorf("after one second's bytes: %v", w)
	}
	for range 1999 {
		l.take(0)
	}
	if w := l.wait(5 * time.Second); w != 2*time.Second {
		t.Errorf("after two seconds' operations: %v", w)
	}
	if w := l.wait(9 * time.Second); w >= 0 {
		t.Errorf("a late load waits %v", w)
	}
	if d := perSecond(1<<62, 1); d <= 0 {
		t.Errorf("overflow: %v", d)
	}
}

func TestRates(t *testing.T) {
	for _, tc := range []struct {
		text     string
		ios      uint64
		min, max time.Duration
	}{
		{"rw=read\nrate_iops=100\nnumber_ios=500", 500, 4990 * time.Millisecond, 5010 * time.Millisecond},
		{"rw=write\nrate=400k\nnumber_ios=500", 500, 4985 * time.Millisecond, 5010 * time.Millisecond},
		{"rw=read\nrate_iops=100\niodepth=32\nnumber_ios=500", 500, 4990 * time.Millisecond, 5010 * time.Millisecond},
		{"rw=read\nthinktime=10ms\nnumber_ios=100", 100, 990 * time.Millisecond, 1010 * time.Millisecond},
		{"rw=randread\nrate_iops=50\ntime_based\nruntime=4\nramp_time=2", 200, 3990 * time.Millisecond, 4010 * time.Millisecond},
		{"rw=randread\nrate_iops=50\ntime_based\nruntime=4\nramp_time=2\niodepth=64", 200, 3980 * time.Millisecond, 4010 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 4<<20)
			s := mustRun(t, f, "[j]\nbs=4k\n"+tc.text).Groups[0]
			d := &s.Dir[dirRead]
			if d.IOs == 0 {
				d = &s.Dir[dirWrite]
			}
			if d.Runtime < tc.min || d.Runtime > tc.max {
				t.Errorf("%q took %v", tc.text, d.Runtime)
			}
			if d.IOs < tc.ios-1 || d.IOs > tc.ios+1 {
				t.Errorf("%q: %d operations", tc.text, d.IOs)
			}
		})
	}
}

// A direction that is ahead of its rate lets the other one go on, as in fio.
func TestRatesOfMixedLoads(t *testing.T) {
	for _, tc := range []struct {
		text          string
		reads, writes uint64
	}{
		{"rate_iops=200,50", 1000, 250},
		{"rate_iops=200,50\niodepth=8", 1000, 250},
		{"rate_iops=,50", 4750, 250},
		{"rate_iops=,50\nrwmixread=10", 4750, 250},
		{"rate=400k,", 500, 4500},
		{"rate_iops=200,50\nrwmixread=0", 0, 250},
		{"rate_iops=200,50\nverify=crc32c\ndo_verify=0", 250, 250}, // what is verified is known beforehand
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 64<<20)
			f.delay = time.Millisecond
			s := mustRun(t, f, "[j]\nrw=randrw\nbs=4k\ntime_based\nruntime=5\n"+tc.text).Groups[0]
			for d, want := range map[dir]uint64{dirRead: tc.reads, dirWrite: tc.writes} {
				if got := s.Dir[d].IOs; got < want-want/20 || got > want+want/20 {
					t.Errorf("%q: %d %vs, want about %d", tc.text, got, d, want)
				}
			}
		})
	}
}

func TestRuntimeAndSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		f.delay = time.Millisecond
		s := mustRun(t, f, "[j]\nrw=randread\nbs=4k\ntime_based\nruntime=5").Groups[0]
		d := &s.Dir[dirRead]
		if d.IOs < 4990 || d.IOs > 5001 || s.Elapsed < 5*time.Second || s.Elapsed > 5002*time.Millisecond {
			t.Errorf("%d operations in %v", d.IOs, s.Elapsed)
		}
		if d.BW.N < 9 || d.BW.N > 10 || d.Rate.Mean < 990 || d.Rate.Mean > 1001 {
			t.Errorf("%d samples, mean %v IOPS", d.BW.N, d.Rate.Mean)
		}
		if d.Clat.Min != int64(time.Millisecond) || d.Clat.Max != int64(time.Millisecond) {
			t.Errorf("clat %d to %d", d.Clat.Min, d.Clat.Max)
		}
	})
}

// What happens during the ramp is in none of the figures: not in those of the samples either.
func TestSamplesBehindRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		begun := time.Now()
		f.hook = func(*blockio.Request) (bool, error) {
			if f.delay = time.Millisecond; time.Since(begun) < 3*time.Second {
				f.delay = 10 * time.Millisecond
			}
			return true, nil
		}
		d := &mustRun(t, f, "[j]\nrw=randread\nbs=4k\ntime_based\nruntime=2\nramp_time=3250ms").Groups[0].Dir[dirRead]
		if d.Rate.N < 2 || d.Rate.N > 4 || d.Rate.Min < 990 || d.Rate.Max > 1010 {
			t.Errorf("%d samples of %d to %d IOPS, want those of 2 s with 1000", d.Rate.N, d.Rate.Min, d.Rate.Max)
		}
	})
}

func TestCancelStopsEverything(t *testing.T) {
	for _, text := range []string{
		"[j]\nrw=randwrite\nbs=4k\ntime_based\nruntime=1h\niodepth=4\nverify=crc32c",
		"[j]\nrw=read\nbs=4k\nrate_iops=1\nruntime=1h\ntime_based",
		"[j]\nrw=read\nbs=4k\nstartdelay=1h",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			f.delay = time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			r, err := Run(ctx, parseText(t, text), Config{Open: f.open, URL: "fake://"})
			if err != nil || r.Failed() {
				t.Fatal(err, r.Err())
			}
			if d := time.Since(began); d > 3100*time.Millisecond {
				t.Errorf("%q stopped after %v", text, d)
			}
		})
	}
}

func TestProgressLine(t *testing.T) {
	got := progressLine(&Snapshot{Elapsed: 2 * time.Second, Running: 2, Done: 0.5, Bytes: [datas]float64{441450496, 0}, IOs: [datas]float64{107838, 0}})
	if want := "Jobs: 2 (f=2): [run][50.0%][r=421MiB/s][r=108k IOPS][eta 00m:02s]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
