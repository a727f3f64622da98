package scsi

import "sync/atomic"

// abortReason tells who ended a task early.
type abortReason uint32

const (
	notAborted     abortReason = iota
	abortedByOwner             // its own I_T nexus: it expects no status
	abortedByOther             // another I_T nexus: TASK ABORTED if TAS is set
)

func (t *Task) isAborted() bool { return t.aborted.Load() != uint32(notAborted) }

// Aborted reports whether the task has been aborted and has not ended yet.
func (t *Task) Aborted() bool { return t.isAborted() }

// tmfWait is one task management function that waits for tasks to end.
type tmfWait struct {
	left atomic.Int32
	done func()
}

func (w *tmfWait) one() {
	if w.left.Add(-1) == 0 {
		w.done()
	}
}

// newWait makes a wait that its creator holds one count of.
func newWait(done func()) *tmfWait {
	w := &tmfWait{done: done}
	w.left.Store(1)
	return w
}

// abortSet collects what is left to do, without locks, for aborted tasks.
type abortSet struct {
	dead    []*Task // taken out of their queues: to be ended
	running []*Task // to be cancelled at ports
	ports   []Port
}

// abortLocked marks t aborted. One that has not started is taken out of its
// queue. Preconditions: lu.mu is held and t is in the task set.
func (lu *LU) abortLocked(t *Task, why abortReason, w *tmfWait, set *abortSet) {
	t.markAbortedLocked(why)
	if w != nil {
		w.left.Add(1)
		t.waits = append(t.waits, w)
		if waits, on := lu.copying[t.copying]; on { // it may go on behind t
			w.left.Add(1)
			lu.copying[t.copying] = append(waits, w)
		}
	}
	switch t.state {
	case taskDormant:
		lu.undormantLocked(t)
		lu.startLocked(t)
		set.dead = append(set.dead, t)
	case taskQueued:
		lu.unqueueLocked(t)
		t.state = taskRunning
		set.dead = append(set.dead, t)
	case taskThrottled:
		lu.unthrottleLocked(t)
		t.state = taskRunning
		set.dead = append(set.dead, t)
	case taskBlocked:
		lu.dropRangeLocked(t)
		t.unwaitLocked()
		t.state = taskRunning
		set.dead = append(set.dead, t)
	case taskRunning:
		if t.hold.kind == holdWrite {
			lu.outliveLocked(t)
		}
		set.running = append(set.running, t)
		set.ports = append(set.ports, t.Port)
	}
}

// finish ends what has not started and cancels the data phase of the rest.
// Preconditions: no locks held.
func (s *abortSet) finish() {
	for i, t := range s.running {
		s.ports[i].Cancel(t)
	}
	for _, t := range s.dead {
		port := t.Port
		t.end()
		port.Push()
	}
}

// abortWhere aborts every task of the task set for which match gives a reason;
// w counts them. Preconditions: no locks held.
func (lu *LU) abortWhere(match func(*Task) abortReason, w *tmfWait) {
	var set abortSet
	lu.mu.Lock()
	for t := lu.first; t != nil; t = t.next {
		if why := match(t); why != notAborted {
			lu.abortLocked(t, why, w, &set)
		}
	}
	lu.mu.Unlock()
	set.finish()
}

// AbortTask ends one task of n early, because its connection or session ends: it
// takes the path of ABORT TASK, without a response to wait for. A task that is
// entering Execute meanwhile may be missed; its port then refuses it further
// data. The caller makes sure that t is not released before AbortTask returns.
func (n *Nexus) AbortTask(t *Task) {
	for _, i := range *n.itls.Load() {
		if i.lu.abortTask(n, t, nil) {
			return
		}
	}
	for _, lu := range *n.dev.leaving.Load() {
		if lu.abortTask(n, t, nil) {
			return
		}
	}
}

func byOwnerIf(yes bool) abortReason {
	if yes {
		return abortedByOwner
	}
	return notAborted
}

// byNexus tells why a task ends when nexus n ends all of them.
func byNexus(t *Task, n *Nexus) abortReason {
	if t.Nexus == n {
		return abortedByOwner
	}
	return abortedByOther
}

// queueErrorLocked applies QERR after a CHECK CONDITION of t (SPC-4 §7.5.8): 01b
// aborts the whole task set, 11b the tasks of the same nexus.
func (lu *LU) queueErrorLocked(t *Task, set *abortSet) {
	all := lu.modes.qerr.Load() == qerrAbortAll
	for x := lu.first; x != nil; x = x.next {
		if all || x.Nexus == t.Nexus {
			lu.abortLocked(x, byNexus(x, t.Nexus), nil, set)
		}
	}
}
