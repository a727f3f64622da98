package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBucketsAreMonotonicAndClose(t *testing.T) {
	last := -1
	for _, v := range []int64{0, 1, 63, 64, 127, 128, 129, 130, 255, 256, 1000, 4096, 1 << 20, 1e9, 1<<34 - 1} {
		i := bucketOf(v)
		if i < last {
			t.Errorf("bucket of %d is %d, below %d", v, i, last)
		}
		last = i
		if d := math.Abs(float64(bucketValue(i)-v)) / max(float64(v), 1); d > 0.01 {
			t.Errorf("value %d is reported as %d", v, bucketValue(i))
		}
		if bucketOf(bucketValue(i)) != i {
			t.Errorf("bucket %d does not hold its own value %d", i, bucketValue(i))
		}
	}
	for i := 1; i < histLen; i++ {
		if bucketValue(i) <= bucketValue(i-1) {
			t.Fatalf("bucket %d (%d) is not above bucket %d (%d)", i, bucketValue(i), i-1, bucketValue(i-1))
		}
	}
	if bucketOf(math.MaxInt64) != histLen-1 || bucketOf(-5) != 0 {
		t.Error("values outside the range are not clamped")
	}
}

// The bucket values that fio 3.33 printed for its percentiles.
func TestBucketValuesAreFios(t *testing.T) {
	for _, v := range []int64{11712, 13376, 146432, 152576, 216064, 313344, 333824, 403456, 11584, 98816} {
		if got := bucketValue(bucketOf(v)); got != v {
			t.Errorf("fio's bucket value %d is not one of ours (%d)", v, got)
		}
	}
}

func TestPercentiles(t *testing.T) {
	var h Histogram
	r := rand.New(rand.NewPCG(1, 2))
	var all []int64
	for range 100_000 {
		v := int64(math.Exp(r.NormFloat64()*0.7 + 11))
		all = append(all, v)
		h.Add(v)
	}
	slices.Sort(all)
	got := h.Percentiles(defaultPercentiles)
	for i, p := range defaultPercentiles {
		want := all[min(len(all)-1, int(math.Ceil(p/100*float64(len(all))))-1)]
		if d := math.Abs(float64(got[i]-want)) / float64(want); d > 0.02 {
			t.Errorf("p%v = %d, exact %d", p, got[i], want)
		}
	}
	if v := new(Histogram).Percentiles([]float64{50}); v[0] != 0 {
		t.Error("an empty histogram has a median")
	}
}

func TestMomentsMerge(t *testing.T) {
	var a, b, all Moments
	for i := range int64(1000) {
		v := i * i % 977
		all.Add(v)
		if i%3 == 0 {
			a.Add(v)
		} else {
			b.Add(v)
		}
	}
	a.Merge(&b)
	a.Merge(&Moments{})
	if a.N != all.N || a.Min != all.Min || a.Max != all.Max || math.Abs(a.Mean-all.Mean) > 1e-9 || math.Abs(a.Stddev()-all.Stddev()) > 1e-9 {
		t.Errorf("merged %+v, want %+v", a, all)
	}
}

func TestShares(t *testing.T) {
	var h Histogram
	for range 3 {
		h.Add(5)
	}
	h.Add(70_000)
	v := h.shares([]int64{4, 10, 100_000})
	if v[0] != 0 || v[1] != 75 || v[2] != 25 || v[3] != 0 {
		t.Errorf("shares %v", v)
	}
}

// The edges of the figures: two values have a deviation, a merge keeps the extremes
// of both sides, and a value that equals a bound belongs to the next class.
func TestFiguresAtTheirEdges(t *testing.T) {
	var m Moments
	m.Add(10)
	m.Add(20)
	if d := m.Stddev(); math.Abs(d-math.Sqrt(50)) > 1e-9 {
		t.Errorf("deviation of 10 and 20: %v", d)
	}
	var low, high Moments
	low.Add(1)
	low.Add(5)
	high.Add(3)
	high.Add(9)
	low.Merge(&high)
	if low.Min != 1 || low.Max != 9 {
		t.Errorf("%d to %d, want 1 to 9", low.Min, low.Max)
	}
	var h Histogram
	h.Add(2)
	if v := h.shares([]int64{2, 4}); v[0] != 0 || v[1] != 100 {
		t.Errorf("shares of 2 ns below 2 and 4: %v", v)
	}
	var s DirStats
	s.add(4096, 100, 20, &Job{LatPercentile: true, SlatPercentile: true})
	if v := s.LatHist.Percentiles([]float64{100}); v[0] != 120 {
		t.Errorf("total latency %d, want 120", v[0])
	}
	if v := s.SlatHist.Percentiles([]float64{100}); v[0] != 100 || s.Lat.Max != 120 {
		t.Errorf("submission %d, want 100; total %d", v[0], s.Lat.Max)
	}
}
