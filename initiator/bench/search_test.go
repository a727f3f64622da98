package bench

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/blockio"
)

// A disk that takes 100 µs for each operation in turn: n in flight take n×100 µs.
func TestLatencyTarget(t *testing.T) {
	for _, tc := range []struct {
		text  string
		depth int
		lat   time.Duration // mean of what is reported; 0: not looked at
		fails string
	}{
		{"iodepth=128\nlatency_target=1ms\nlatency_window=100ms", 10, time.Millisecond, ""},
		{"iodepth=128\nlatency_target=1050\nlatency_window=100ms\nlatency_percentile=99", 10, time.Millisecond, ""},
		{"iodepth=64\nlatency_target=2550\nlatency_window=50ms\nlatency_percentile=90", 25, 0, ""},
		{"iodepth=4\nlatency_target=1ms\nlatency_window=100ms", 4, 400 * time.Microsecond, ""},
		{"iodepth=1\nlatency_target=1ms\nlatency_window=100ms", 1, 100 * time.Microsecond, ""},
		{"iodepth=32\nlatency_target=99\nlatency_window=100ms", 1, 0, "longer than latency_target=99µs, with nothing else in flight"},
		{"iodepth=32\nlatency_target=99\nlatency_window=100ms\nlatency_percentile=50\nruntime=2", 1, 0, ""},
		{"iodepth=128\nlatency_target=1ms\nlatency_window=10ms\nlatency_run=1\nruntime=3\nlatency_percentile=99", 10, 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			f.delay = 100 * time.Microsecond
			rep, err := runText(t, f, "[j]\nrw=randread\nbs=4k\ntime_based\nruntime=1h\nlatency_run=0\n"+tc.text+"\n")
			if err != nil {
				t.Fatal(err)
			}
			s := rep.Clones[0]
			if (rep.Err() == nil) != (tc.fails == "") || rep.Err() != nil && (!strings.Contains(rep.Err().Error(), tc.fails) || s.Code != int(syscall.ETIMEDOUT)) {
				t.Errorf("%q: %v", tc.text, rep.Err())
			}
			if s.FoundDepth != tc.depth && !(strings.Contains(tc.text, "latency_run=1") && s.FoundDepth == tc.depth+1) {
				t.Errorf("%q: depth %d, want %d", tc.text, s.FoundDepth, tc.depth)
			}
			mean := time.Duration(s.Dir[dirRead].Clat.Mean)
			if d := mean - tc.lat; tc.lat > 0 && (d > tc.lat/20 || d < -tc.lat/20) {
				t.Errorf("%q: mean latency %v, want %v", tc.text, mean, tc.lat)
			}
			if e := s.Elapsed; tc.lat > 0 && e > 120*time.Millisecond {
				t.Errorf("%q: %v are reported, not the last window alone", tc.text, e)
			}
			if rep.Interrupted || s.Elapsed > time.Minute {
				t.Errorf("%q: elapsed %v, interrupted %v", tc.text, s.Elapsed, rep.Interrupted)
			}
		})
	}
}

// A job that ends by its size or by an error while slots are held back ends.
func TestLatencyTargetEnds(t *testing.T) {
	for _, text := range []string{"number_ios=50", "io_size=400k", "size=200k", "size=40k\nloops=9"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, 1<<20)
			f.delay = 100 * time.Microsecond
			mustRun(t, f, "[j]\nrw=read\nbs=4k\niodepth=16\nlatency_target=300\nlatency_window=1ms\n"+text+"\n")
		})
	}
	f := newFake(t, 1<<20)
	n := 0
	f.hook = func(*blockio.Request) (bool, error) {
		if n++; n == 100 {
			return true, syscall.EIO
		}
		return true, nil
	}
	if r, err := runText(t, f, "[j]\nrw=read\nbs=4k\niodepth=16\nlatency_target=300ms\nlatency_window=1h\nloops=99\n"); err != nil || r.Clones[0].Errors != 1 {
		t.Errorf("%v, %+v", err, r.Clones[0].Errors)
	}
}

// steadyRun runs a job on a volume that does as many operations in each second as perSecond says.
func steadyRun(t *testing.T, text string, perSecond func(second int) int) (r *Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, 1<<20)
		var once sync.Once
		var began time.Time
		f.hook = func(*blockio.Request) (bool, error) {
			once.Do(func() { began = time.Now() })
			time.Sleep(time.Second / time.Duration(perSecond(int(time.Since(began)/time.Second))))
			return true, nil
		}
		var err error
		if r, err = runText(t, f, text); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

func TestSteadyState(t *testing.T) {
	settles := func(s int) int { return 1000 + 800/(s+1) } // 1800, 1400, 1266, …
	for _, tc := range []struct {
		text     string
		speed    func(int) int
		from, to time.Duration // it ends between
		attained bool
	}{
		{"ss=iops:10%\nss_dur=5", settles, 6 * time.Second, 12 * time.Second, true},
		{"ss=iops_slope:2%\nss_dur=5", settles, 6 * time.Second, 15 * time.Second, true},
		{"ss=bw:500k\nss_dur=5", settles, 6 * time.Second, 15 * time.Second, true},
		{"ss=bw_slope:0.5%\nss_dur=5\nss_ramp=20", settles, 25 * time.Second, 28 * time.Second, true},
		{"steadystate=iops:1%\nsteadystate_duration=10\nsteadystate_ramp_time=3", func(s int) int { return 500 + s*100 }, 40 * time.Second, 41 * time.Second, false},
		{"ss=iops:1\nss_dur=3", func(s int) int { return 1000 - s%2*100 }, 40 * time.Second, 41 * time.Second, false},
	} {
		text := "[j]\nrw=randread\nbs=4k\ntime_based\nruntime=40\n" + tc.text + "\n"
		r := steadyRun(t, text, tc.speed)
		s := r.Groups[0]
		if r.Err() != nil || r.Interrupted || s.Elapsed < tc.from || s.Elapsed > tc.to || s.Steady.attained != tc.attained {
			t.Errorf("%q: %v, interrupted %v, %v, attained %v (criterion %.3f)", tc.text, r.Err(), r.Interrupted, s.Elapsed, s.Steady.attained, s.Steady.criterion)
		}
		var out strings.Builder
		r.WriteText(&out)
		if want := fmt.Sprintf("  steadystate  : attained=%s, bw=", map[bool]string{true: "yes", false: "no"}[tc.attained]); !strings.Contains(out.String(), want) {
			t.Errorf("%q: no %q in\n%s", tc.text, want, out.String())
		}
	}
	// A group is judged as one: its two halves are not steady, and their sum is.
	r := steadyRun(t, "[global]\ntime_based\nruntime=30\ngroup_reporting\nss=iops:2%\nss_dur=4\nbs=4k\n[a]\nnumjobs=2\n", func(int) int { return 1000 })
	if s := r.Groups[0]; len(r.Groups) != 1 || !s.Steady.attained || s.Elapsed > 8*time.Second {
		t.Errorf("%d groups, %v, %v", len(r.Groups), s.Steady.attained, s.Elapsed)
	}
}

func TestSteadyRefused(t *testing.T) {
	for text, want := range map[string]string{
		"[j]\nss=iops":                    "expected a limit",
		"[j]\nss=lat:3%":                  "expected iops, iops_slope, bw or bw_slope",
		"[j]\nss=bw:x":                    "does not begin with a number",
		"[j]\nss=iops:3%\nss_dur=1":       "steadystate_duration of 2 s or more",
		"[j]\nss=iops:3%":                 "steadystate_duration of 2 s or more",
		"[j]\nss=iops:3%\nss_dur=5\n[k]":  "must be the same as that of job j",
		"[j]\nlatency_target=1\nrate=1m":  "latency_target together with flow, a rate, thinktime or verify is not offered",
		"[j]\nlatency_percentile=0":       "expected a percentage",
		"[j]\nlatency_percentile=nothing": "expected a percentage",
	} {
		s, err := parseJobText(strings.NewReader(text), "t.fio", nil)
		if err == nil {
			_, _, err = ParseJobs(s)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestSteadyCriteria holds the arithmetic against figures worked out by hand.
func TestSteadyCriteria(t *testing.T) {
	for _, tc := range []struct {
		what    string
		percent bool
		values  []float64
		want    float64
	}{
		{"iops", false, []float64{10, 20, 30, 40}, 15},
		{"iops", true, []float64{10, 20, 30, 40}, 60},
		{"iops", false, []float64{100, 100, 40, 100}, 45}, // mean 85
		{"iops_slope", false, []float64{10, 20, 30, 40}, 10},
		{"iops_slope", false, []float64{40, 30, 20, 10}, -10},
		{"bw_slope", true, []float64{40, 30, 20, 10}, -40},
		{"bw_slope", false, []float64{1, 3, 2}, 0.5},
		{"bw", true, []float64{7, 7, 7}, 0},
	} {
		s := &steadyState{want: Steady{what: tc.what, percent: tc.percent, limit: 1e-6}}
		if s.iops = tc.values; strings.HasPrefix(tc.what, "bw") {
			s.iops, s.bw = []float64{1, 2, 3, 4}, tc.values
		}
		if steady := s.judge(); s.criterion < tc.want-1e-9 || s.criterion > tc.want+1e-9 || steady != (tc.want == 0) {
			t.Errorf("%s of %v: %v, want %v", tc.what, tc.values, s.criterion, tc.want)
		}
	}
	if s := (&steadyState{want: Steady{what: "iops", percent: true, limit: 5}, iops: []float64{0, 0}}); s.judge() {
		t.Error("nothing at all is steady")
	}
}
