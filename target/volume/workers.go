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

// enqueueLocked puts o behind the worker queue. Preconditions: s.mu is held.
func (s *Tasks) enqueueLocked(o *Op) {
	o.to(Queued)
	s.queue.push(o)
	if o.inTurn {
		s.turns.n++
		if s.turns.n > 1 && s.short == stepsSure {
			s.watchLocked()
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
