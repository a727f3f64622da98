package volume

import "time"

// Workers run what may wait for storage. They are started on demand, at most
// Config.Workers of them for a volume, and all but two end when there is
// nothing to do. The queue is bounded by the sessions' command windows.

const keepIdleWorkers = 2

// ToWorker hands o, which runs, to a worker, which calls its Step.
func (s *Tasks) ToWorker(o *Op) {
	s.mu.Lock()
	s.enqueueLocked(o)
	s.mu.Unlock()
}

// ToWriter is ToWorker for a write whose step does nothing that can wait but WriteAt.
func (v *Volume) ToWriter(o *Op) {
	inTurn := v.Geo().Info.InTurn
	v.mu.Lock()
	defer v.mu.Unlock()
	o.inTurn = inTurn
	v.enqueueLocked(o)
}

// enqueueLocked puts o behind the worker queue. Preconditions: s.mu is held.
func (s *Tasks) enqueueLocked(o *Op) {
	o.to(Queued)
	s.queue.push(o)
	if o.inTurn {
		s.turns.n++
		if s.turns.n > 1 && s.short == stepsSure {
			watch(s)
			return // who makes the one before takes it next
		}
	}
	s.hireLocked()
}

// hireLocked has one more worker look at the queue, if there may be one. Preconditions:
// s.mu is held.
func (s *Tasks) hireLocked() {
	switch {
	case s.idleWorkers > s.wakeups:
		s.wakeups++
		s.work.Signal()
	case s.workers < s.maxWorkers:
		s.workers++
		go s.worker()
	}
}

// watch has a look at the queue of s taken after a while. Preconditions: s.mu is held.
func watch(s *Tasks) {
	w := &s.turns
	if w.watched {
		return
	}
	w.watched, w.seen = true, w.popped
	if w.watch == nil {
		w.watch = time.AfterFunc(stuckAfter, func() { unstick(s) })
	} else {
		w.watch.Reset(stuckAfter)
	}
}

// unstick has workers come for the queue if it does not move.
func unstick(s *Tasks) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns.watched = false
	switch {
	case s.queue.head == nil:
	case s.turns.popped != s.turns.seen:
		watch(s)
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

// SetWorkers changes how many goroutines may wait for the volume, at least one. What
// runs is left to end.
func (s *Tasks) SetWorkers(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxWorkers = max(n, 1)
	for o := s.queue.head; o != nil && s.workers < s.maxWorkers; o = o.qnext {
		s.workers++
		go s.worker()
	}
}

// endWorkerLocked takes the calling worker, which holds s.mu, out of the pool.
func (s *Tasks) endWorkerLocked() {
	s.workers--
	s.work.Broadcast()
	s.mu.Unlock()
}

// worker is a goroutine of the pool. It owns the command that it has taken from
// the queue until that ends, waits for its initiator's data or is queued again.
func (s *Tasks) worker() {
	var owes owed
	s.mu.Lock()
	for {
		if s.workers > s.maxWorkers { // there are others for the queue
			s.endWorkerLocked()
			return
		}
		for s.queue.head == nil {
			if s.closed || s.idleWorkers >= keepIdleWorkers {
				s.endWorkerLocked()
				return
			}
			s.idleWorkers++
			s.work.Wait()
			s.idleWorkers--
			s.wakeups = max(s.wakeups-1, 0)
		}
		o := s.queue.pop()
		s.turns.popped++
		inTurn, round := o.takeTurn(), s.turns.round
		o.to(Running)
		s.mu.Unlock()

		began := time.Now()
		port := o.req.Via() // after Step the slot may hold another command
		if o.Aborted() {
			o.req.Step(Abort)
		} else {
			o.req.Step(Proceed)
		}
		now := time.Now()
		owes.add(port, now)
		s.mu.Lock()
		if !s.mayOweLocked(&owes, now, now.Sub(began)) {
			s.mu.Unlock()
			owes.pay()
			s.mu.Lock()
		}
		s.turns.end(inTurn, round)
	}
}
