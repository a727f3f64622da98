package scsi

import (
	"slices"

	"softiser/internal/spc"

	"softiser/target/volume"
)

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
	NexusReset      TMF = 11 // I_T NEXUS RESET
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
// cold reset is the session layer's part. A unit that has been removed is there for
// its tasks as long as it has any.
func (d *Device) Manage(n *Nexus, f TMF, lun uint64, t *Task, done func(TMFResponse)) {
	w := volume.NewWait(func() { done(TMFComplete) })
	if f == TargetWarmReset || f == TargetColdReset {
		for _, lu := range d.withTasks() {
			lu.reset(n, spc.ASCBusReset, w)
		}
		w.Done()
		return
	}
	if f == NexusReset {
		for _, lu := range d.withTasks() {
			lu.loseNexus(n, w)
			lu.attention(spc.ASCNexusLoss, func(x *Nexus) bool { return x == n })
		}
		w.Done()
		return
	}
	lus := d.numbered(lun)
	switch {
	case len(lus) == 0:
		done(TMFNoLUN)
		return
	case f == AbortTask:
		if t == nil || !slices.ContainsFunc(lus, func(lu *LU) bool { return lu.abortTask(n, t, w) }) {
			done(TMFNoTask)
			return
		}
	case f == AbortTaskSet, f == ClearTaskSet, f == LogicalReset:
		for _, lu := range lus {
			lu.endTasks(n, f, w)
		}
	default: // CLEAR ACA: NormACA is 0, so there is nothing to clear
		done(TMFNotSupported)
		return
	}
	w.Done()
}

// numbered returns the units that tasks for a LUN may be with: the one that is
// there, and any that was before and still has tasks.
func (d *Device) numbered(lun uint64) (lus []*LU) {
	num, ok := spc.DecodeLUN(lun)
	if !ok {
		return nil
	}
	if lu := d.lookup(num); lu != nil {
		lus = append(lus, lu)
	}
	return d.andLeaving(lus, func(lu *LU) bool { return lu.lun == num })
}

// endTasks executes a function about a whole task set.
func (lu *LU) endTasks(n *Nexus, f TMF, w *volume.Wait) {
	switch f {
	case AbortTaskSet:
		lu.endNexus(n, w)
	case ClearTaskSet:
		lu.clearTaskSet(n, w)
	default:
		lu.reset(n, spc.ASCDeviceReset, w)
	}
}

// abortTasks aborts the unit's commands for which match gives a reason, and the copies of
// the clients that copiers accepts; w counts both. other is the reason for those that came
// by another wire than SCSI.
func (u *unit) abortTasks(match func(*Task) volume.AbortReason, other volume.AbortReason, copiers func(*volume.Client) bool, w *volume.Wait) {
	u.vol.AbortWith(func(o *volume.Op) volume.AbortReason {
		if t := taskOf(o); t != nil {
			return match(t)
		}
		return other
	}, copiers, w)
}

// What abortTasks does to copies that are not commands of its task set.
func noCopier(*volume.Client) bool  { return false }
func anyCopier(*volume.Client) bool { return true }

// abortTask aborts t if it is still in the task set and of this nexus.
func (lu *LU) abortTask(n *Nexus, t *Task, w *volume.Wait) bool {
	found := false
	lu.abortTasks(func(x *Task) volume.AbortReason {
		hit := x == t && x.Nexus == n
		found = found || hit
		return byOwnerIf(hit)
	}, volume.NotAborted, noCopier, w)
	return found
}

// endNexus aborts the tasks and the copies of nexus n.
func (lu *LU) endNexus(n *Nexus, w *volume.Wait) {
	lu.abortTasks(func(t *Task) volume.AbortReason { return byOwnerIf(t.Nexus == n) }, volume.NotAborted,
		func(c *volume.Client) bool { return c == &n.client }, w)
}

// clearTaskSet aborts every task, at whatever LUN of whatever target. Initiators whose tasks were aborted by
// another one learn it from TASK ABORTED status or from a unit attention.
func (lu *LU) clearTaskSet(n *Nexus, w *volume.Wait) {
	hit := map[*Nexus]bool{}
	lu.abortTasks(func(t *Task) volume.AbortReason {
		hit[t.Nexus] = true
		return byNexus(t, n)
	}, volume.AbortedByOther, anyCopier, w)
	lu.tellCleared(func(x *Nexus) bool { return x != n && hit[x] })
}

// TellsAborted reports whether commands to a LUN that another initiator ends are answered with TASK ABORTED
// (TAS).
func (d *Device) TellsAborted(lun uint64) bool {
	for _, lu := range d.numbered(lun) {
		if lu.modes.tas.Load() {
			return true
		}
	}
	return false
}

// TellCleared tells the nexuses that match of commands that another initiator has ended before
// they came to the unit, and without a status.
func (d *Device) TellCleared(lun uint64, match func(*Nexus) bool) {
	for _, lu := range d.numbered(lun) {
		lu.attention(spc.ASCCommandsCleared, match)
	}
}

// reset is the logical unit reset of SAM-5 §6.3.3: all tasks end, reservations of
// RESERVE go, mode parameters return to their saved values, medium removal is
// allowed again, every initiator gets a unit attention, at every LUN of the volume. Persistent
// reservations stay.
func (lu *LU) reset(n *Nexus, why spc.ASC, w *volume.Wait) {
	tas := lu.modes.tas.Load() // which may be gone when the tasks end
	lu.abortTasks(func(t *Task) volume.AbortReason { t.told = t.told || tas; return byNexus(t, n) }, volume.AbortedByOther, anyCopier, w)
	lu.vol.Unseize(nil)
	cached := lu.vol.WriteCache()
	lu.modes.restore()
	if cached && !lu.vol.WriteCache() && lu.disk != nil {
		lu.vol.FlushBehind() // what the cache held must not stay volatile when nothing else is
	}
	lu.selfTest.abort(testEnded)
	lu.allowRemoval(nil)
	lu.everywhere(why, nil)
}

// loseNexus is the I_T nexus loss of SAM-5 §6.3.4: the tasks of n end, its RESERVE and
// its prevention of medium removal go. Persistent reservations and mode
// parameters stay.
func (lu *LU) loseNexus(n *Nexus, w *volume.Wait) {
	lu.endNexus(n, w)
	lu.vol.Unseize(&n.client)
	lu.allowRemoval(n)
}

// AsyncEvent is what QUERY ASYNCHRONOUS EVENT tells (SAM-5 §7.9): the unit attention that
// the next command would report, which stays pending.
type AsyncEvent struct {
	more bool // it is not the only one
	key  spc.Key
	asc  spc.ASC
}

// Information is the additional response information of the answer:
//
//	+--+-----------------------------------------------+
//	| 0| UADE depth (30h): 1 one, 2 more | sense key   |
//	| 1| ASC, ASCQ                                     |
//	+--+-----------------------------------------------+
func (e AsyncEvent) Information() uint32 {
	depth := uint32(1)
	if e.more {
		depth = 2
	}
	return (depth<<4|uint32(e.key))<<16 | uint32(e.asc)
}

// QueryAsyncEvent returns the pending unit attention of a nexus, if there is one.
// known tells whether there is such a logical unit.
func (d *Device) QueryAsyncEvent(n *Nexus, lun uint64) (e AsyncEvent, pending, known bool) {
	num, ok := spc.DecodeLUN(lun)
	i := n.itls.Load().find(num)
	if !ok || i == nil {
		return e, false, false
	}
	i.lu.mu.Lock()
	defer i.lu.mu.Unlock()
	if len(i.queue) == 0 {
		return e, false, true
	}
	return AsyncEvent{more: len(i.queue) > 1, key: spc.KeyUnitAttention, asc: i.queue[0]}, true, true
}
