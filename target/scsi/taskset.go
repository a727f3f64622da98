package scsi

import (
	spc "softiser/internal/scsi"
)

// The task set of a logical unit (SAM-5 §8) holds every command from Execute
// to its status. Ordering by task attribute:
//
//	SIMPLE          waits for older ORDERED and HEAD OF QUEUE tasks
//	ORDERED         waits for all older tasks
//	HEAD OF QUEUE   starts at once
//
// A task that may not start yet is dormant. The usual case (nothing but SIMPLE
// tasks, no block range held exclusively) costs a few compares.

// admit puts t into the task set and reports whether it may run now; if not,
// job runs on a worker when it may.
func (lu *LU) admit(t *Task, job func(*Task)) bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	t.prev, t.next = lu.last, nil
	if lu.last == nil {
		lu.first = t
	} else {
		lu.last.next = t
	}
	lu.last = t
	if lu.dormantHead == nil && lu.nOrdered == 0 && len(lu.exclusives) == 0 && len(lu.claims) == 0 && t.Attr <= AttrSimple {
		t.state = taskRunning
		lu.nEnabled++
		return true
	}
	if lu.mayStartLocked(t, lu.orderedDormantLocked()) {
		lu.startLocked(t)
		return true
	}
	t.job = job
	t.state = taskDormant
	t.qnext = nil
	if lu.dormantTail == nil {
		lu.dormantHead = t
	} else {
		lu.dormantTail.qnext = t
	}
	lu.dormantTail = t
	return false
}

// mayStartLocked reports whether t may start; olderOrdered says that an older
// ORDERED task is still dormant.
func (lu *LU) mayStartLocked(t *Task, olderOrdered bool) bool {
	switch t.Attr {
	case AttrHeadOfQueue:
	case AttrOrdered:
		if lu.nEnabled > 0 || lu.dormantHead != nil && lu.dormantHead != t {
			return false
		}
	default:
		if lu.nOrdered > 0 || olderOrdered {
			return false
		}
	}
	for _, x := range lu.exclusives {
		if t.hold.overlaps(&x.hold) {
			return false
		}
	}
	for _, c := range lu.claims {
		if c.hold.kind == holdWrite && c.hold.granted && c.by.stopped() && t.hold.overlaps(&c.hold) {
			return false
		}
	}
	return true
}

func (lu *LU) orderedDormantLocked() bool {
	for q := lu.dormantHead; q != nil; q = q.qnext {
		if q.Attr == AttrOrdered {
			return true
		}
	}
	return false
}

func (lu *LU) startLocked(t *Task) {
	t.state = taskRunning
	lu.nEnabled++
	if t.Attr >= AttrOrdered {
		lu.nOrdered++
	}
}

// wakeLocked starts the dormant tasks that may start now, on workers.
func (lu *LU) wakeLocked() {
	var prev *Task
	ordered := false
	for t := lu.dormantHead; t != nil; {
		next := t.qnext
		if !lu.mayStartLocked(t, ordered) {
			ordered = ordered || t.Attr == AttrOrdered
			prev, t = t, next
			continue
		}
		lu.removeDormantLocked(prev, t)
		lu.startLocked(t)
		lu.enqueueLocked(t)
		t = next
	}
}

func (lu *LU) removeDormantLocked(prev, t *Task) {
	if prev == nil {
		lu.dormantHead = t.qnext
	} else {
		prev.qnext = t.qnext
	}
	if lu.dormantTail == t {
		lu.dormantTail = prev
	}
	t.qnext = nil
}

func (lu *LU) undormantLocked(t *Task) {
	var prev *Task
	for q := lu.dormantHead; q != nil; prev, q = q, q.qnext {
		if q == t {
			lu.removeDormantLocked(prev, t)
			return
		}
	}
}

// leaveLocked takes a started task out of the task set and starts what waited
// for it.
func (lu *LU) leaveLocked(t *Task) {
	if t.prev == nil {
		lu.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		lu.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	lu.nEnabled--
	if t.Attr >= AttrOrdered {
		lu.nOrdered--
	}
	t.state = taskEnded
	if t.hold.kind != holdNone {
		lu.dropRangeLocked(t)
	}
	if lu.dormantHead != nil {
		lu.wakeLocked()
	}
	if lu.first == nil && lu.closed {
		lu.work.Broadcast()
	}
}

// end is the last step of every task: out of the task set, status to the port,
// then the task management functions that waited for it.
func (t *Task) end() {
	lu := t.lu
	if lu == nil || t.state == taskIdle {
		// Never admitted: no such logical unit, or refused before the task set.
		t.state = taskEnded
		t.Port.Respond(t)
		return
	}
	var others abortSet
	lu.mu.Lock()
	if r := abortReason(t.aborted.Load()); r != notAborted {
		t.Status, t.SenseLen, t.Sent = spc.StatusTaskAborted, 0, 0
		t.Silent = r == abortedByOwner || !lu.modes.tas.Load()
	}
	lu.leaveLocked(t)
	waits := t.waits
	t.waits, t.copying = nil, nil
	if t.Status == spc.StatusCheckCondition && lu.modes.qerr.Load() != qerrContinue {
		lu.queueErrorLocked(t, &others)
	}
	lu.mu.Unlock()
	t.Port.Respond(t)
	others.finish()
	for _, w := range waits {
		w.one()
	}
}
