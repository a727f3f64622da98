package bench

// supply is what a clone has left to issue: passes over a pattern, bounded in bytes
// and operations.
type supply struct {
	offsets *pattern
	apart   bool  // passes must not overlap
	drained bool  // a pass is over, and the next begins with restart, when all slots rest
	passes  int   // <0: no limit
	bytes   int64 // <0: no limit
	ops     int64 // <0: no limit
}

// newSupply is the work of j on a range of size bytes.
func newSupply(j *Job, offsets *pattern, size int64) supply {
	w := supply{offsets: offsets, passes: j.Loops, bytes: -1, ops: -1}
	switch io := j.IOSize.Resolve(size); {
	case j.TimeBased && !j.VerifyOnly:
		w.passes = -1
	case io > 0:
		w.passes, w.bytes = -1, io
	}
	if j.NumberIOs > 0 {
		w.ops = j.NumberIOs
	}
	return w
}

// next takes the next operation into e.
func (w *supply) next(e *extent) bool {
	if w.drained || w.exhausted() {
		return false
	}
	x, ok := w.offsets.next()
	if !ok {
		if w.passes > 0 {
			w.passes--
		}
		if w.passes == 0 {
			w.ops = 0 // so that the other slots rest, too
			return false
		}
		if w.apart {
			w.drained = true
			return false
		}
		w.offsets.restart()
		if x, ok = w.offsets.next(); !ok {
			return false
		}
	}
	if w.bytes > 0 {
		x.n = int(min(int64(x.n), w.bytes))
		x.n -= x.n % int(w.offsets.unit)
		if x.n == 0 {
			w.bytes = 0
			return false
		}
		w.bytes -= int64(x.n)
	}
	if w.ops > 0 {
		w.ops--
	}
	*e = x
	return true
}

// restart begins the next pass.
func (w *supply) restart() {
	w.drained = false
	w.offsets.restart()
}

// exhausted reports whether there is no operation left to issue.
func (w *supply) exhausted() bool { return w.ops == 0 || w.bytes == 0 }
