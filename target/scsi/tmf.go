package scsi

import spc "softiser/internal/scsi"

// TMF is a task management function (SAM-5 §7), numbered as in the iSCSI Task
// Management Function Request.
type TMF uint8

// Task management functions of a logical unit or target.
const (
	AbortTask       TMF = 1
	AbortTaskSet    TMF = 2
	ClearACA        TMF = 3
	ClearTaskSet    TMF = 4
	LogicalReset    TMF = 5
	TargetWarmReset TMF = 6
	TargetColdReset TMF = 7
)

// TMFResponse is the result of a task management function, numbered as in the
// iSCSI Task Management Function Response.
type TMFResponse uint8

// Results of task management functions.
const (
	TMFComplete      TMFResponse = 0
	TMFNoTask        TMFResponse = 1
	TMFNoLUN         TMFResponse = 2
	TMFNotSupported  TMFResponse = 5
	TMFNotAuthorized TMFResponse = 6
	TMFRejected      TMFResponse = 255
)

// Manage executes a task management function that came through nexus n and
// calls done, on any goroutine and perhaps before it returns, when every task
// it affects has ended. For ABORT TASK, t is the task found by its tag, nil when
// there is none; the caller makes sure that it is not released meanwhile. A
// target reset covers every logical unit; dropping the connections after a
// cold reset is the session layer's part.
func (d *Device) Manage(n *Nexus, f TMF, lun uint64, t *Task, done func(TMFResponse)) {
	w := newWait(func() { done(TMFComplete) })
	if f == TargetWarmReset || f == TargetColdReset {
		for _, lu := range d.LUs() {
			lu.reset(n, spc.ASCBusReset, w)
		}
		w.one()
		return
	}
	num, ok := spc.DecodeLUN(lun)
	lu := d.lookup(num)
	if !ok || lu == nil {
		done(TMFNoLUN)
		return
	}
	switch f {
	case AbortTask:
		if t == nil || !lu.abortTask(n, t, w) {
			done(TMFNoTask)
			return
		}
	case AbortTaskSet:
		lu.abortWhere(func(t *Task) abortReason { return byOwnerIf(t.Nexus == n) }, w)
	case ClearTaskSet:
		lu.clearTaskSet(n, w)
	case LogicalReset:
		lu.reset(n, spc.ASCDeviceReset, w)
	default: // CLEAR ACA: NormACA is 0, so there is nothing to clear
		done(TMFNotSupported)
		return
	}
	w.one()
}

// abortTask aborts t if it is still in the task set and of this nexus.
func (lu *LU) abortTask(n *Nexus, t *Task, w *tmfWait) bool {
	found := false
	lu.abortWhere(func(x *Task) abortReason {
		hit := x == t && x.Nexus == n
		found = found || hit
		return byOwnerIf(hit)
	}, w)
	return found
}

// clearTaskSet aborts every task. Initiators whose tasks were aborted by
// another one learn it from TASK ABORTED status or from a unit attention.
func (lu *LU) clearTaskSet(n *Nexus, w *tmfWait) {
	hit := map[*Nexus]bool{}
	lu.abortWhere(func(t *Task) abortReason {
		hit[t.Nexus] = true
		return byNexus(t, n)
	}, w)
	if !lu.modes.tas.Load() {
		lu.attention(spc.ASCCommandsCleared, func(x *Nexus) bool { return x != n && hit[x] })
	}
}

// reset is the logical unit reset of SAM-5 §6.3.3: all tasks end, reservations of
// RESERVE go, mode parameters return to their saved values, medium removal is
// allowed again, every initiator gets a unit attention. Persistent
// reservations stay.
func (lu *LU) reset(n *Nexus, why spc.ASC, w *tmfWait) {
	lu.abortWhere(func(t *Task) abortReason { return byNexus(t, n) }, w)
	lu.releaseLegacy(nil)
	lu.modes.restore()
	lu.allowRemoval(nil)
	lu.attention(why, nil)
}
