package scsi

import (
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/spc"
)

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
	r.dev.CloseNexus(n) // which counts nothing twice
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
	if n := alloctest.PerRun(100, func() { c.Observe(time.Millisecond, false) }); n != 0 {
		t.Errorf("%v allocations per command", n)
	}
	r.finish(c).good()
}
