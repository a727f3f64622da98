package volume

import "time"

// Files of some file systems are written to by one at a time (blockdev.Info.InTurn): a second
// worker that copies into the page cache spins on the inode's lock, sleeps, and has to be woken up,
// which costs more than the copy. So as long as steps are short, as owed.go has it, a write like
// that which comes while another one is queued or made gets no worker of its own: who makes the
// other one looks at the queue next. If nobody comes for it within stuckAfter, because the other
// one waits for storage or for a range, everything that is queued gets its worker after all.
const stuckAfter = time.Millisecond

// turns are the writes of the worker queue that go in turn. The zero value is ready; pool.mu
// guards it.
type turns struct {
	n       int         // those that are queued or made, without those that were stuck
	round   uint64      // how often some were
	popped  uint64      // commands that workers have taken
	seen    uint64      // popped when the watch was set
	watched bool        // watch is running
	watch   *time.Timer // nil before it is needed
}

// end takes off a write that is over, if it was one, and was taken from the queue in that round.
func (w *turns) end(was bool, round uint64) {
	if was && round == w.round {
		w.n--
	}
}

// takeTurn reports whether o was queued as one of those that go in turn. Preconditions: it is out
// of the queue, and the lock of its set is held.
func (o *Op) takeTurn() bool {
	was := o.inTurn
	o.inTurn = false
	return was
}
