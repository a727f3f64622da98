package scsi

// Workers run what may wait for storage. They are started on demand, at most
// LUConfig.Workers of them for a logical unit, and all but two end when there is
// nothing to do. The queue is bounded by the sessions' command windows.

const keepIdleWorkers = 2

// toWorker hands t to a worker, which calls job.
func (t *Task) toWorker(job func(*Task)) {
	lu := t.lu
	t.job = job
	lu.mu.Lock()
	lu.enqueueLocked(t)
	lu.mu.Unlock()
}

// enqueueLocked puts t behind the worker queue. Preconditions: lu.mu is held,
// t.job is set.
func (lu *LU) enqueueLocked(t *Task) {
	t.state = taskQueued
	t.qnext = nil
	if lu.queueTail == nil {
		lu.queueHead = t
	} else {
		lu.queueTail.qnext = t
	}
	lu.queueTail = t
	switch {
	case lu.idleWorkers > lu.wakeups:
		lu.wakeups++
		lu.work.Signal()
	case lu.workers < lu.maxWorkers:
		lu.workers++
		go lu.worker()
	}
}

// SetWorkers changes how many goroutines may wait for the volume, at least one. What
// runs is left to end.
func (lu *LU) SetWorkers(n int) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	lu.maxWorkers = max(n, 1)
	for t := lu.queueHead; t != nil && lu.workers < lu.maxWorkers; t = t.qnext {
		lu.workers++
		go lu.worker()
	}
}

// endWorkerLocked takes the calling worker, which holds lu.mu, out of the pool.
func (lu *LU) endWorkerLocked() {
	lu.workers--
	lu.work.Broadcast()
	lu.mu.Unlock()
}

// worker is a goroutine of the pool. It owns the task it has taken from the
// queue until the task ends, waits for Data-Out or is queued again.
func (lu *LU) worker() {
	lu.mu.Lock()
	for {
		if lu.workers > lu.maxWorkers { // there are others for the queue
			lu.endWorkerLocked()
			return
		}
		for lu.queueHead == nil {
			if lu.closed || lu.idleWorkers >= keepIdleWorkers {
				lu.endWorkerLocked()
				return
			}
			lu.idleWorkers++
			lu.work.Wait()
			lu.idleWorkers--
			lu.wakeups = max(lu.wakeups-1, 0)
		}
		t := lu.queueHead
		lu.queueHead = t.qnext
		if lu.queueHead == nil {
			lu.queueTail = nil
		}
		t.qnext = nil
		t.state = taskRunning
		lu.mu.Unlock()

		port := t.Port // after job the task may belong to someone else
		if t.isAborted() {
			t.end()
		} else {
			t.job(t)
		}
		port.Push()
		lu.mu.Lock()
	}
}

// unqueueLocked takes t out of the worker queue before a worker has seen it.
func (lu *LU) unqueueLocked(t *Task) {
	var prev *Task
	for q := lu.queueHead; q != nil; prev, q = q, q.qnext {
		if q != t {
			continue
		}
		if prev == nil {
			lu.queueHead = t.qnext
		} else {
			prev.qnext = t.qnext
		}
		if lu.queueTail == t {
			lu.queueTail = prev
		}
		t.qnext = nil
		return
	}
}
