package volume

import "time"

// Files of some file systems are written to by one at a time (blockdev.Info.InTurn): a second
// worker that copies into the page cache spins on the inode's lock, sleeps, and has to be woken up,
// which costs more than the copy. So as long as steps are short, as owed.go has it, a write like
// that which comes while another one is queued or made gets no worker of its own: who makes the
// other one looks at the queue next. If nobody comes for it within stuckAfter, because the other
// one waits for storage or for a range, everything that is queued gets its worker after all.
const stuckAfter = time.Millisecond

// turns are the writes of the worker queue that go in turn. The zero value is ready; Tasks.mu
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

// ToWriter is ToWorker for a write whose step does nothing that can wait but WriteAt.
func (v *Volume) ToWriter(o *Op) {
	inTurn := v.Geo().Info.InTurn
	v.mu.Lock()
	defer v.mu.Unlock()
	o.inTurn = inTurn
	v.enqueueLocked(o)
}

// takeTurn reports whether o was queued as one of those that go in turn. Preconditions: it is out
// of the queue, and the lock of its set is held.
func (o *Op) takeTurn() bool {
	was := o.inTurn
	o.inTurn = false
	return was
}

// watchLocked has a look at the queue taken after a while. Preconditions: s.mu is held.
func (s *Tasks) watchLocked() {
	w := &s.turns
	if w.watched {
		return
	}
	w.watched, w.seen = true, w.popped
	if w.watch == nil {
		w.watch = time.AfterFunc(stuckAfter, s.unstick)
	} else {
		w.watch.Reset(stuckAfter)
	}
}

// unstick has workers come for the queue if it does not move.
func (s *Tasks) unstick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns.watched = false
	switch {
	case s.queue.head == nil:
	case s.turns.popped != s.turns.seen:
		s.watchLocked()
	default:
		s.short = 0
		s.turns.n = 0 // nobody waits for those that are being made any more
		s.turns.round++
		for o := s.queue.head; o != nil; o = o.qnext {
			o.inTurn = false
			s.hireLocked()
		}
	}
}
