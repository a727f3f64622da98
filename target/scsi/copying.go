package scsi

import (
	"errors"
	"slices"
	"sync"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
)

var (
	errAborted = errors.New("scsi: the copy has been aborted")
	errFenced  = errors.New("scsi: a reservation keeps the initiator from the blocks")
)

// copying is an EXTENDED COPY or WRITE USING TOKEN in execution. It reads and writes
// units in whose task sets its command is not, and may go on when its command has
// ended. So that it is still no way around a reservation or an abort, each unit that
// it touches knows it:
//
//	touch        before anything is looked at there
//	 |           what ends the commands of the nexus on that unit (PREEMPT AND ABORT, a reset,
//	 |           the end of the nexus, …) ends the copy as well, and waits for end
//	piece        each asks whether the nexus may do that, when it takes effect
//	 |
//	end          nothing of the copy follows
//
// PREEMPT AND ABORT publishes the reservation before it looks for copies, and a copy is
// known before it looks at the reservation: one of the two sees the other.
type copying struct {
	dev    *Device
	nexus  *Nexus
	units  []*LU
	behind bool // it goes on when its command has ended

	once sync.Once
	done chan struct{} // closed: to end early
}

// newCopying makes the copy of t, which an abort of t ends.
func (t *Task) newCopying() *copying {
	lu := t.lu
	c := &copying{dev: t.dev, nexus: t.Nexus, done: make(chan struct{})}
	lu.users.Add(1) // it has been removed perhaps, but t is there
	c.know(lu)
	lu.mu.Lock()
	t.copying = c
	aborted := t.isAborted()
	lu.mu.Unlock()
	if aborted {
		c.stop()
	}
	return c
}

// touch makes the copy known to a unit, which it may use until end. It reports false when
// the unit has been removed.
func (c *copying) touch(lu *LU) bool {
	if slices.Contains(c.units, lu) {
		return true
	}
	if !lu.use() {
		return false
	}
	c.know(lu)
	return true
}

// know enters the copy in a unit. Preconditions: one of the unit's users is the copy.
func (c *copying) know(lu *LU) {
	c.units = append(c.units, lu)
	lu.mu.Lock()
	defer lu.mu.Unlock()
	if lu.copying == nil {
		lu.copying = map[*copying][]*tmfWait{}
	}
	lu.copying[c] = nil
}

// end leaves the units, and tells whoever waits for that.
func (c *copying) end() {
	for _, lu := range c.units {
		lu.mu.Lock()
		waits := lu.copying[c]
		delete(lu.copying, c)
		lu.mu.Unlock()
		for _, w := range waits {
			w.one()
		}
		lu.users.Add(-1)
	}
}

// stop makes the copy end at its next step, and ends its wait for space.
func (c *copying) stop() { c.once.Do(func() { close(c.done) }) }

// Done implements blockdev.Stop.
func (c *copying) Done() <-chan struct{} { return c.done }

// stopped reports whether the copy has been told to end.
func (c *copying) stopped() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// over reports whether there is to be no further piece: one that goes on behind its
// status does not keep a unit that has been removed.
func (c *copying) over() bool {
	return c.stopped() || c.behind && slices.ContainsFunc(c.units, (*LU).Removed)
}

// may reports whether the nexus may read (accRead) or write (accWrite) a unit right now,
// as a copy manager has to ask for it.
func (c *copying) may(lu *LU, a access) bool {
	gates := uint32(gateMedium)
	if a == accWrite {
		gates = gateWrite
	}
	return lu.vol != nil && lu.gate.Load()&gates == 0 && !lu.keepsFrom(c.nexus, a)
}

// piece runs f with n bytes at off claimed.
func (c *copying) piece(lu *LU, kind holdKind, off, n int64, f func() error) error {
	if c.over() {
		return errAborted
	}
	hold, err := lu.claim(c, kind, off, n)
	if err != nil {
		return err
	}
	defer hold.drop()
	// Both may have changed while others had the blocks.
	if c.stopped() {
		return errAborted
	}
	a := accRead
	if kind == holdWrite {
		a = accWrite
	}
	if lu.keepsFrom(c.nexus, a) {
		return errFenced
	}
	if kind == holdWrite {
		lu.touched()
		if lu.journal.stuck.Load() {
			if err := lu.unstick(c); err != nil {
				return err
			}
		}
	}
	if err = f(); errors.Is(err, blockdev.ErrStopped) {
		err = errAborted
	}
	return err
}

// copyBytes copies n bytes. Each piece is claimed where it is read, then where it is
// written. It returns how many it has copied and what it was doing when it failed.
func (c *copying) copyBytes(src *LU, from int64, dst *LU, to, n int64) (int64, direction, error) {
	buf := c.dev.bufs.get(stageBytes)
	defer c.dev.bufs.put(buf)
	// Overlapping blocks of one volume are copied backwards, as memmove does.
	backwards := src == dst && from < to && to < from+n
	done := int64(0)
	for done < n {
		k := min(int64(len(buf)), n-done)
		at := done
		if backwards {
			at = n - done - k
		}
		if err := c.piece(src, holdRead, from+at, k, func() error {
			_, err := src.vol.ReadAt(buf[:k], from+at)
			return err
		}); err != nil {
			src.mediumError(err, reading)
			return done, reading, err
		}
		if err := c.piece(dst, holdWrite, to+at, k, func() error { return dst.writeAt(buf[:k], to+at, c) }); err != nil {
			dst.mediumError(err, writing)
			return done, writing, err
		}
		done += k
	}
	return done, writing, dst.settleCopy(to, n)
}

// zeroBytes makes n bytes zero in claimed pieces.
func (c *copying) zeroBytes(lu *LU, off, n int64) error {
	for done := int64(0); done < n; {
		at, k := off+done, min(n-done, zeroPiece)
		if err := c.piece(lu, holdWrite, at, k, func() error { return lu.writeZeroes(at, k, true, c) }); err != nil {
			lu.mediumError(err, writing)
			return err
		}
		done += k
	}
	return lu.settleCopy(off, n)
}

// abortCopies ends the copies of the nexuses that match (nil: all) as far as they touch
// the unit; w counts them. It comes behind abortWhere, which ends those whose command is
// there as what it is, an aborted command. Preconditions: no locks held.
func (lu *LU) abortCopies(match func(*Nexus) bool, w *tmfWait) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	for c, waits := range lu.copying {
		if match != nil && !match(c.nexus) {
			continue
		}
		if w != nil {
			w.left.Add(1)
			lu.copying[c] = append(waits, w)
		}
		c.stop()
	}
}

// copySense tells how a copy has failed.
func copySense(err error, dir direction) *spc.Sense {
	k, a := senseOf(err, dir)
	return &spc.Sense{Key: k, ASC: a}
}
