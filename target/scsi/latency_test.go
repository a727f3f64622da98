package scsi

import (
	"testing"
	"time"

	spc "softiser/internal/scsi"
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
	if allocs := testing.AllocsPerRun(100, func() { h.observe(time.Millisecond) }); allocs != 0 {
		t.Errorf("observe allocates %v times", allocs)
	}
}

// TestLatencyOfUnits: each unit sums up its initiators, those that have gone
// included, each nexus its units.
func TestLatencyOfUnits(t *testing.T) {
	r := twoUnits(t)
	do := func(n *Nexus, lun uint16, cdb, out []byte, took time.Duration) {
		t.Helper()
		c := r.start(n, lun, cdb, out, 512)
		<-c.done
		c.Observe(took, len(out) > 0)
		r.finish(c).good()
	}
	read, write, p := spc.AppendRead(nil, 0, 1, false), spc.AppendWrite(nil, 0, 1, false), make([]byte, 512)
	do(r.nx[0], 0, read, nil, time.Millisecond)
	do(r.nx[0], 1, read, nil, time.Millisecond)
	do(r.nx[1], 1, write, p, 2*time.Millisecond)
	n := r.nexus(3)
	do(n, 1, read, nil, time.Second)
	r.dev.CloseNexus(n)
	r.nx = r.nx[:2]
	counts := func(a, b Latency) [2]uint64 { return [2]uint64{a.Count, b.Count} }
	for i, want := range [][2]uint64{{1, 0}, {2, 1}} {
		if got := counts(r.dev.lookup(uint16(i)).Latency()); got != want {
			t.Errorf("LUN %d: %v READs and WRITEs, want %v", i, got, want)
		}
	}
	if l, _ := r.dev.lookup(1).Latency(); l.Sum != time.Second+time.Millisecond || l.P99 < time.Second {
		t.Errorf("LUN 1: %+v", l)
	}
	if got := counts(r.nx[0].Latency()); got != [2]uint64{2, 0} {
		t.Errorf("first nexus: %v", got)
	}
	// A command for no unit has no place.
	c := r.start(r.nx[0], 77, read, nil, 512)
	c.Observe(time.Second, false)
	r.finish(c).illegal(spc.ASCLUNotSupported)
	c = r.start(r.nx[0], 0, read, nil, 512)
	<-c.done
	if n := testing.AllocsPerRun(100, func() { c.Observe(time.Millisecond, false) }); n != 0 {
		t.Errorf("%v allocations per command", n)
	}
	r.finish(c).good()
}
