package bench

import "softiser/initiator/blockio"

// flushes keeps account of what the flushes of a clone make durable.
type flushes struct {
	every    int       // writes between two of them; 0: none during the run
	since    int       // writes since the last one was issued
	inFlight bool      // one of the run is
	last     bool      // the one of phaseFlush has been issued
	acked    []written // acknowledged since the last one was issued; with a ledger only
	covered  []written // acknowledged before the one in flight
}

// written names one acknowledged write.
type written struct {
	off int64
	gen uint32
}

func newFlushes(j *Job, ledger bool) flushes {
	f := flushes{every: j.Fsync}
	if ledger && j.Fsync > 0 {
		f.acked = make([]written, 0, j.Fsync+j.IODepth)
		f.covered = make([]written, 0, j.Fsync+j.IODepth)
	}
	return f
}

// due reports whether one is to be issued.
func (f *flushes) due() bool { return f.every > 0 && f.since >= f.every && !f.inFlight }

// begin takes note that one is issued.
func (f *flushes) begin() {
	f.since, f.inFlight = 0, true
	f.acked, f.covered = f.covered[:0], f.acked
}

// acknowledged enters a write in the ledger, block by block.
func (f *flushes) acknowledged(l *Ledger, e extent, fua bool) {
	for off := e.off; off < e.off+int64(e.n); off += l.unit {
		l.ack(off, fua)
		if f.every > 0 && !fua {
			f.acked = append(f.acked, written{off, l.entry[l.index(off)].acked})
		}
	}
}

// durable enters in the ledger what the flush that has ended covers.
func (f *flushes) durable(l *Ledger) {
	for _, w := range f.covered {
		l.flushed(w.off, w.gen)
	}
	f.covered = f.covered[:0]
}

// failed takes note that one has: of what was acknowledged before, none is known to be in the target's cache.
func (f *flushes) failed(l *Ledger) {
	f.acked, f.covered = f.acked[:0], f.covered[:0]
	l.flushFailed()
}

// flush makes a slot's operation one.
func (s *slot) flush() {
	s.d, s.ext = dirSync, extent{d: dirSync}
	s.req.Op, s.req.Off, s.req.Len, s.req.Buf, s.req.FUA = blockio.OpFlush, 0, 0, nil, false
}
