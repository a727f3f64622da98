package scsi

import (
	"errors"
	"slices"
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
// the overlapping commands and the earlier exclusives that were already running
// have ended; until then it is blocked, without occupying a worker. A write
// waits for its initiator's data, so this is bounded: after retryAfter the
// command ends with BUSY and nothing done, and its initiator tries again.
//
// Whoever looks at the blocks therefore sees the command done or not begun:
// READs that run are waited for as well. (What a READ has lent to the transport
// when its status goes out is the volume's affair: a write to blocks that are
// lent waits for their return.)
//
// A copy (EXTENDED COPY, WRITE USING TOKEN) is one command that touches blocks
// of several units, piece by piece. It claims each piece, of one unit at a
// time, while it reads or writes it. Claims and exclusives that overlap take
// turns in the order of their announcement.
//
// A write that has been aborted, and a copy, keep others off the blocks that they may
// still be writing until they have ended, see outliveLocked.

const retryAfter = 2 * time.Second

var errUnready = errors.New("scsi: the logical unit is not ready for a copy")

// hold is the block range of a task in the task set.
type hold struct {
	lo, hi  uint64 // [lo, hi)
	kind    holdKind
	granted bool   // an exclusive or a claim that runs
	order   uint64 // of the announcement of an exclusive or a claim
}

type holdKind uint8

const (
	holdNone      holdKind = iota
	holdRead               // runs beside everything but an exclusive
	holdWrite              // likewise
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
	t.hold.order = lu.nextOrderLocked()
	lu.exclusives = append(lu.exclusives, t)
	t.state = taskBlocked
	if lu.grantLocked(); t.hold.granted {
		return
	}
	order := t.hold.order
	t.timer = time.AfterFunc(retryAfter, func() { lu.expire(order) })
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

// expire ends the exclusive that was announced under a number, if it still waits. The
// timer does not know the task: by the time that it fires, the slot may hold a
// command of another unit, whose lock this is not.
func (lu *LU) expire(order uint64) {
	lu.mu.Lock()
	i := slices.IndexFunc(lu.exclusives, func(t *Task) bool { return t.hold.order == order && !t.hold.granted })
	if i < 0 {
		lu.mu.Unlock()
		return
	}
	t := lu.exclusives[i]
	lu.dropRangeLocked(t) // or it could be granted before it has ended
	t.state = taskRunning
	port := t.Port
	lu.mu.Unlock()
	t.status(spc.StatusBusy)
	port.Push()
}

// nextOrderLocked numbers announcements.
func (lu *LU) nextOrderLocked() uint64 {
	lu.announced++
	return lu.announced
}

// rangeBusyLocked reports whether one of earlier, an earlier claim or a running
// command overlaps t.
func (lu *LU) rangeBusyLocked(t *Task, earlier []*Task) bool {
	for _, x := range earlier {
		if t.hold.overlaps(&x.hold) {
			return true
		}
	}
	for _, c := range lu.claims {
		if c.hold.order < t.hold.order && t.hold.overlaps(&c.hold) {
			return true
		}
	}
	for x := lu.first; x != nil; x = x.next {
		running := x.hold.kind == holdRead || x.hold.kind == holdWrite
		if x != t && x.state != taskDormant && running && t.hold.overlaps(&x.hold) {
			return true
		}
	}
	return false
}

// claim is the hold of a copy on blocks of a unit.
type claim struct {
	lu    *LU
	by    *copying
	hold  hold
	ready chan struct{} // nil: granted at once
}

// claim waits until no exclusive command has n bytes at off, which is bounded as
// an exclusive command's own wait is, and keeps new ones off them until drop. It
// fails when the unit has no use for copies any more, because SANITIZE or FORMAT
// UNIT has begun, say. The caller holds no other claim and no worker.
func (lu *LU) claim(by *copying, kind holdKind, off, n int64) (*claim, error) {
	shift := lu.geo().shift
	c := &claim{lu: lu, by: by, hold: hold{lo: uint64(off) >> shift, hi: uint64(off+n+1<<shift-1) >> shift, kind: kind}}
	lu.mu.Lock()
	c.hold.order = lu.nextOrderLocked()
	lu.claims = append(lu.claims, c)
	if !lu.claimBusyLocked(c) {
		c.hold.granted = true
	} else {
		c.ready = make(chan struct{})
	}
	lu.mu.Unlock()
	if c.ready != nil {
		<-c.ready
	}
	gates := uint32(gateMedium)
	if kind == holdWrite {
		gates = gateWrite
	}
	if lu.gate.Load()&gates != 0 {
		c.drop()
		return nil, errUnready
	}
	return c, nil
}

// claimBusyLocked reports whether an exclusive that was announced earlier
// overlaps c.
func (lu *LU) claimBusyLocked(c *claim) bool {
	for _, t := range lu.exclusives {
		if t.hold.order < c.hold.order && c.hold.overlaps(&t.hold) {
			return true
		}
	}
	return false
}

// drop ends the claim.
func (c *claim) drop() {
	lu := c.lu
	lu.mu.Lock()
	defer lu.mu.Unlock()
	if i := slices.Index(lu.claims, c); i >= 0 {
		lu.claims = slices.Delete(lu.claims, i, i+1)
	}
	if len(lu.exclusives) > 0 {
		lu.grantLocked()
	}
	if lu.dormantHead != nil {
		lu.wakeLocked()
	}
}

// outliveLocked keeps others off the blocks of a write that has been aborted while it is
// with the volume: its initiator may be gone, and nobody who waits for its end be left.
// What arrives from now on must not be overtaken by it, so it counts as an exclusive
// command that runs until it ends. Preconditions: lu.mu is held.
func (lu *LU) outliveLocked(t *Task) {
	t.hold.kind, t.hold.granted, t.hold.order = holdExclusive, true, 0
	lu.exclusives = slices.Insert(lu.exclusives, 0, t)
}

// grantClaimsLocked lets the claims go that no exclusive is in the way of.
func (lu *LU) grantClaimsLocked() {
	for _, c := range lu.claims {
		if !c.hold.granted && !lu.claimBusyLocked(c) {
			c.hold.granted = true
			close(c.ready)
		}
	}
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
		if len(lu.claims) > 0 {
			lu.grantClaimsLocked()
		}
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
