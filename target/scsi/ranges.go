package scsi

import (
	"time"

	spc "softiser/internal/scsi"
)

// Commands that must be all-or-nothing (COMPARE AND WRITE, ORWRITE, WRITE
// ATOMIC) hold their blocks exclusively while they read and write the volume.
// The task set itself is the range table: it knows the blocks of every command
// in execution, so READ and WRITE pay nothing for this while no exclusive
// command is there.
//
// Rules. When its data have arrived, an exclusive command announces its range;
// commands that arrive from then on and overlap it stay dormant. It starts when
// the overlapping writes and the earlier exclusives that were already running
// have ended; until then it is blocked, without occupying a worker. A write
// waits for its initiator's data, so this is bounded: after retryAfter the
// command ends with BUSY and nothing done, and its initiator tries again.

const retryAfter = 2 * time.Second

// hold is the block range of a task in the task set.
type hold struct {
	lo, hi  uint64 // [lo, hi)
	kind    holdKind
	granted bool // an exclusive that runs
}

type holdKind uint8

const (
	holdNone      holdKind = iota
	holdRead               // runs beside everything but an exclusive
	holdWrite              // likewise; an exclusive waits for it
	holdStaged             // collects data, then becomes exclusive
	holdExclusive          // announced
)

func (h *hold) overlaps(o *hold) bool {
	return h.kind != holdNone && o.kind != holdNone && h.lo < o.hi && o.lo < h.hi
}

// exclusively runs job on a worker with the range of t.hold held exclusively,
// until the task ends or calls unlockRange.
func (t *Task) exclusively(job func(*Task)) {
	lu := t.lu
	t.job = job
	lu.mu.Lock()
	defer lu.mu.Unlock()
	t.hold.kind = holdExclusive
	t.hold.granted = false
	lu.exclusives = append(lu.exclusives, t)
	t.state = taskBlocked
	if lu.grantLocked(); t.hold.granted {
		return
	}
	arrival := t.arrival
	t.timer = time.AfterFunc(retryAfter, func() { lu.expire(t, arrival) })
}

// grantLocked starts the announced exclusives whose range is free.
func (lu *LU) grantLocked() {
	for i, t := range lu.exclusives {
		if !t.hold.granted && !lu.rangeBusyLocked(t, lu.exclusives[:i]) {
			t.hold.granted = true
			t.stopTimer()
			lu.enqueueLocked(t)
		}
	}
}

// expire ends an exclusive that has waited too long.
func (lu *LU) expire(t *Task, arrival uint64) {
	lu.mu.Lock()
	if t.arrival != arrival || t.state != taskBlocked || t.hold.granted {
		lu.mu.Unlock()
		return
	}
	t.state = taskRunning
	port := t.Port
	lu.mu.Unlock()
	t.status(spc.StatusBusy)
	port.Push()
}

// rangeBusyLocked reports whether one of earlier or a running write overlaps t.
func (lu *LU) rangeBusyLocked(t *Task, earlier []*Task) bool {
	for _, x := range earlier {
		if t.hold.overlaps(&x.hold) {
			return true
		}
	}
	for x := lu.first; x != nil; x = x.next {
		if x != t && x.state != taskDormant && x.hold.kind == holdWrite && t.hold.overlaps(&x.hold) {
			return true
		}
	}
	return false
}

// dropRangeLocked ends the hold of t on its blocks.
func (lu *LU) dropRangeLocked(t *Task) {
	if t.hold.kind == holdExclusive {
		for i, x := range lu.exclusives {
			if x == t {
				lu.exclusives = append(lu.exclusives[:i], lu.exclusives[i+1:]...)
				break
			}
		}
		t.stopTimer()
	}
	t.hold.kind = holdNone
	if len(lu.exclusives) > 0 {
		lu.grantLocked()
	}
}

func (t *Task) stopTimer() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
