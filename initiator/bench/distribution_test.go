package bench

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// drawn returns how often each of 16384 blocks is drawn in 400000 operations.
func drawn(t *testing.T, distribution string) []int {
	t.Helper()
	j := parseText(t, "[j]\nrw=randread\nbs=4k\nrandom_distribution="+distribution)[0]
	p := newPattern(j, 0, 64<<20, 64<<20)
	count := make([]int, 16384)
	for n := 0; n < 400_000; {
		e, ok := p.next()
		if !ok {
			p.restart()
			continue
		}
		count[e.off/4096]++
		n++
	}
	return count
}

// TestDistributionsAreFios compares what the hottest blocks get with what fio 3.33
// gave them: 400000 operations over as many blocks, counted in its write_iolog.
func TestDistributionsAreFios(t *testing.T) {
	for _, tc := range []struct {
		name                           string
		first, hundredth, tenth, fifth float64 // share of the hottest block, of the hottest 1, 10, 20 % of them
	}{
		{"zipf:0.8", 0.0332, 0.3173, 0.5845, 0.6938},
		{"zipf:1.2", 0.2058, 0.7899, 0.9205, 0.9507},
		{"pareto:0.2", 0.2610, 0.5292, 0.7304, 0.8051},
		{"pareto:0.1", 0.6426, 0.8107, 0.9022, 0.9333},
	} {
		count := drawn(t, tc.name)
		slices.SortFunc(count, func(a, b int) int { return b - a })
		part := func(n int) (sum float64) {
			for _, c := range count[:n] {
				sum += float64(c)
			}
			return sum / 400_000
		}
		for _, c := range []struct {
			blocks int
			want   float64
		}{{1, tc.first}, {163, tc.hundredth}, {1638, tc.tenth}, {3276, tc.fifth}} {
			if got := part(c.blocks); math.Abs(got-c.want) > 0.01 {
				t.Errorf("%s: the hottest %d blocks get %.4f of the operations, fio's %.4f", tc.name, c.blocks, got, c.want)
			}
		}
	}
	count := drawn(t, "zoned:50/5:30/15:20/80")
	for _, z := range []struct {
		from, to int
		want     float64
	}{{0, 819, 0.5}, {819, 3276, 0.3}, {3276, 16384, 0.2}} {
		n := 0
		for _, c := range count[z.from:z.to] {
			n += c
		}
		if got := float64(n) / 400_000; math.Abs(got-z.want) > 0.01 {
			t.Errorf("zoned: blocks %d to %d get %.3f, want %.3f", z.from, z.to, got, z.want)
		}
	}
}

// A range of a few blocks, or a volume of many, must not leave the range.
func TestDistributionsStayInRange(t *testing.T) {
	for _, name := range []string{"zipf:0.5", "zipf:1.2", "zipf:100", "pareto:0.01", "pareto:0.99", "zoned:50/1:50/99", "zoned:100/0.", "zoned:/:/"} {
		j := newJob()
		if err := setDistribution(j, name); err != nil {
			continue // refused is in range, too
		}
		for _, n := range []uint64{1, 2, 3, 7, 1 << 40} {
			s, r := newScatter(j.Dist, n, 1), rng(1)
			for range 1000 {
				if b := s.next(&r); b >= n {
					t.Fatalf("%s: block %d of %d", name, b, n)
				}
			}
		}
	}
}

func TestSharesAreFios(t *testing.T) {
	j := parseText(t, "[j]\nrw=read\nbssplit=512/10:1k/5:2k/5:4k/60:8k/2:16k/4:32k/4:64k/10")[0]
	p := newPattern(j, 0, 1<<40, 1<<40)
	count := map[int]int{}
	for range 100_000 {
		e, _ := p.next()
		count[e.n]++
	}
	for _, s := range j.Split[dirRead] {
		if got := float64(count[s.value]) / 1000; math.Abs(got-float64(s.percent)) > 1 {
			t.Errorf("%d bytes: %.1f%% of the operations, want %d%%", s.value, got, s.percent)
		}
	}
	if len(count) != 8 {
		t.Errorf("sizes %v", count)
	}
	j = parseText(t, "[j]\nrw=rw\nbssplit=4k/50:1k/:32k/,8k/90:16k/10")[0]
	if want := []portion{{4096, 50}, {1024, 25}, {32768, 25}}; !slices.Equal(j.Split[dirRead], want) || j.BS[dirRead] != (MinMax{1024, 32768}) {
		t.Errorf("reads %v of %v", j.Split[dirRead], j.BS[dirRead])
	}
	if want := []portion{{8192, 90}, {16384, 10}}; !slices.Equal(j.Split[dirWrite], want) || !slices.Equal(j.Split[dirTrim], want) {
		t.Errorf("writes %v, trims %v", j.Split[dirWrite], j.Split[dirTrim])
	}
	for text, want := range map[string]string{
		"bssplit=4k/60:8k/60":                                   "add up to 120",
		"bssplit=4k/60":                                         "add up to 60",
		"bssplit=4k/x":                                          "percentage",
		"bssplit=4k/50:5k/50":                                   "multiples",
		"bssplit=4k/100\nbs=8k":                                 "t.fio:3: bs=8k: bssplit has given",
		"random_distribution=zipf:1":                            "not be 1",
		"random_distribution=pareto:1.2":                        "between 0 and 1",
		"random_distribution=zipf:1.2:0.5":                      "a centre is not offered",
		"random_distribution=zoned:60/10:30/90":                 "shares of the draws: the percentages add up to 90",
		"random_distribution=zoned_abs:60/1g:40/2g":             "would change the load",
		"random_distribution=zipf:1.2,random":                   "one distribution",
		"rate_process=uniform":                                  "expected linear or poisson",
		"rw=randwrite\nverify=crc32c\nrandom_distribution=zipf": "verify cannot be used with",
	} {
		s, err := parseJobText(strings.NewReader("[j]\n"+text), "t.fio", nil)
		if err == nil {
			_, _, err = ParseJobs(s)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// Intervals of a Poisson process: their mean is 1/rate, and their standard
// deviation is as long.
func TestPoissonRate(t *testing.T) {
	j := parseText(t, "[j]\nrate_iops=50\nrate_process=poisson")[0]
	p := newPacing(j)
	l := &p.lim[dirRead]
	l.reset(time.Second)
	var m Moments
	last := time.Duration(0)
	for range 20_000 {
		l.take(4096)
		due := l.wait(time.Second)
		m.Add(int64(due - last))
		last = due
	}
	if ms := m.Mean / 1e6; math.Abs(ms-20) > 0.6 {
		t.Errorf("mean interval %.2f ms, want 20", ms)
	}
	if ms := m.Stddev() / 1e6; math.Abs(ms-20) > 1 {
		t.Errorf("deviation %.2f ms, want 20", ms)
	}
}
