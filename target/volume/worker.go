package volume

import "time"

// worker is a goroutine of a pool, and what it keeps from one command to the next. It owns
// the command that it has taken from the queue until that ends, waits for its initiator's
// data or is queued again.
type worker struct {
	*pool
	owes   owed
	news   [announceMost]read
	ended  time.Time // when the last step did, if the next one follows at once; else zero
	reader bool      // the last command was a read
}

// run takes what there is to do, until the worker is one too many.
func (w *worker) run() {
	w.mu.Lock()
	for w.waitLocked() {
		if w.tellLocked() {
			continue
		}
		// Reads and what else there is go by turns.
		if w.reader = w.readableLocked() && (w.queue.head == nil || !w.reader); w.reader {
			w.readLocked()
		} else {
			w.stepLocked()
		}
	}
	w.endLocked()
}

// waitLocked waits until there is something to do. False: the worker is to end.
func (w *worker) waitLocked() bool {
	if next := w.queue.head; w.n > w.most && (next == nil || w.n > w.mostFor(next)) { // there are others for the queue
		return false
	}
	for w.queue.head == nil && w.reads.fresh.head == nil && !w.readableLocked() {
		if w.closed || w.idle >= keepIdleWorkers {
			return false
		}
		w.idle++
		w.work.Wait()
		w.idle--
		w.woken = max(w.woken-1, 0)
	}
	return true
}

// tellLocked announces the reads that have come, and reports whether there were any. The lock is
// released meanwhile.
func (w *worker) tellLocked() bool {
	k := w.announceLocked(&w.news)
	if k == 0 {
		return false
	}
	w.mu.Unlock()
	for i := range w.news[:k] {
		r := &w.news[i]
		r.from.Announce(r.off, r.n)
	}
	w.mu.Lock()
	return true
}

// readLocked goes on with the next read. The lock is released meanwhile.
func (w *worker) readLocked() {
	if next := w.queue.head; next != nil {
		w.hireLocked(next) // the caller may have been the one who was to come for it
	}
	o := w.popReadLocked()
	r := o.read
	o.read = read{}
	o.to(Running)
	w.mu.Unlock()
	if w.owes.n > 0 && (o.Aborted() || !r.lend()) {
		w.owes.pay()
	}
	o.read.lent = r.lent
	answer := debt{port: o.req.Via()}
	if o.Aborted() {
		o.req.Step(Abort)
	} else {
		o.req.Step(Proceed)
	}
	now := w.now()
	w.owes.add(answer, now)
	w.mu.Lock()
	w.reads.readers--
	if !w.mayOweReadsLocked(&w.owes, now) {
		w.mu.Unlock()
		w.owes.pay()
		w.mu.Lock()
	}
}

// stepLocked goes on with the next command that is no read. The lock is released meanwhile.
func (w *worker) stepLocked() {
	if w.readableLocked() {
		w.hireLocked(w.reads.waiting.head)
	}
	o := w.queue.pop()
	w.turns.popped++
	if next := w.queue.head; next != nil && next.syncs && w.n >= w.most {
		w.hireLocked(next) // who was started for it has ended if o was before it
	}
	inTurn, round := o.takeTurn(), w.turns.round
	o.to(Running)
	w.mu.Unlock()

	began := w.ended
	if began.IsZero() {
		began = w.now()
	}
	answer := debt{port: o.req.Via()} // after Step the slot may hold another command
	switch {
	case o.Aborted():
		o.req.Step(Abort)
	case o.makeWrite() && inTurn:
		answer.step = o.req
	default:
		o.req.Step(Proceed)
	}
	w.ended = w.now()
	w.owes.add(answer, w.ended)
	w.mu.Lock()
	if !w.mayOweLocked(&w.owes, w.ended, w.ended.Sub(began)) {
		w.mu.Unlock()
		w.owes.pay()
		w.ended = time.Time{}
		w.mu.Lock()
	}
	w.turns.end(inTurn, round)
}
