package volume

import (
	"testing"
	"time"

	"softiser/internal/alloctest"
)

func TestHistogramBuckets(t *testing.T) {
	// Every bound is the first value of the next bucket, and no more than a
	// quarter above the bound before.
	for i := range histBuckets - 1 {
		b := histBound(i)
		if got := histIndex(b - 1); got != i {
			t.Fatalf("histIndex(%d) = %d, want %d", b-1, got, i)
		}
		if got := histIndex(b); got != i+1 {
			t.Fatalf("histIndex(%d) = %d, want %d", b, got, i+1)
		}
		if next := histBound(i + 1); float64(next) > 1.2501*float64(b) {
			t.Fatalf("bucket %d: %d..%d is too wide", i+1, b, next)
		}
	}
	if got := histIndex(1 << 63); got != histBuckets-1 {
		t.Fatalf("histIndex(max) = %d", got)
	}
}

func TestHistogramPercentiles(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.observe(time.Duration(i+1) * time.Microsecond)
	}
	var y tally
	y.add(&h)
	l := y.latency()
	if l.Count != 1000 || l.Sum != 500500*time.Microsecond {
		t.Fatalf("count %d sum %v", l.Count, l.Sum)
	}
	for _, c := range []struct {
		got, exact time.Duration
	}{{l.P50, 500 * time.Microsecond}, {l.P99, 990 * time.Microsecond}, {l.P999, 999 * time.Microsecond}} {
		if c.got < c.exact || float64(c.got) > 1.25*float64(c.exact) {
			t.Errorf("percentile %v for exact %v", c.got, c.exact)
		}
	}
	if allocs := alloctest.PerRun(100, func() { h.observe(time.Millisecond) }); allocs != 0 {
		t.Errorf("observe allocates %v times", allocs)
	}
}

// TestEpochsDiffer: no two are the same.
func TestEpochsDiffer(t *testing.T) {
	if newEpoch() == newEpoch() {
		t.Error("two new epochs are the same")
	}
}
