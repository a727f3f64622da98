package scsi

import (
	"time"

	"softiser/target/volume"
)

// Latency is a snapshot of a latency histogram.
type Latency = volume.Latency

// Observe books how long a READ or WRITE took from its arrival to its response.
// The session layer calls it before Release.
func (t *Task) Observe(took time.Duration, write bool) {
	if t.itl == nil {
		return // no such logical unit
	}
	l := t.itl.latency.Load()
	if l == nil {
		// Made by the first command, because most sessions of a large target never
		// use most of its units.
		t.itl.latency.CompareAndSwap(nil, new(volume.Latencies))
		l = t.itl.latency.Load()
	}
	l.Observe(took, write)
}

// tally adds the latencies of the unit at this LUN.
func (lu *LU) tally(y *volume.Tally) {
	lu.mu.Lock()
	past := lu.past
	all := make([]*itl, 0, len(lu.itls))
	for _, i := range lu.itls {
		all = append(all, i)
	}
	lu.mu.Unlock()
	y.Sum(&past)
	for _, i := range all {
		y.Add(i.latency.Load())
	}
}

// Latency returns how long the READs and WRITEs of the unit through this LUN took,
// whoever sent them, since it was added.
func (lu *LU) Latency() (read, write Latency) {
	var y volume.Tally
	lu.tally(&y)
	return y.Latency()
}

// Latency returns how long the READs and WRITEs of the nexus took, on all of its
// logical units that are still there.
func (n *Nexus) Latency() (read, write Latency) {
	var y volume.Tally
	for _, i := range *n.itls.Load() {
		y.Add(i.latency.Load())
	}
	return y.Latency()
}
