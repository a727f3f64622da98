package volume

import "time"

// Some file systems let only one thread at a time write to a file (blockdev.Info.InTurn): a
// second worker that copies into the page cache spins on the inode's lock, sleeps, and has to be
// woken up, which costs more than the copy. So, as long as steps are short (see owed.go), such a
// write gets no worker of its own while another one is queued or being made: the worker that
// makes the other one takes it next. If the queue does not move within stuckAfter, because that
// worker waits for storage or for a range, every queued write gets a worker after all.
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
