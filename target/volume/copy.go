package volume

import (
	"errors"

	"softiser/blockdev"
)

// Errors of copies.
var (
	ErrAborted  = errors.New("volume: the copy has been aborted")
	ErrFenced   = errors.New("volume: a reservation keeps the initiator from the blocks")
	ErrNotReady = errors.New("volume: the volume is not ready for a copy")
)

const (
	// StageBytes is how much is moved at once through a buffer.
	StageBytes = 1 << 20
	zeroPiece  = 64 << 20
)

// Copy is a copy from blocks of volumes to blocks of volumes in execution. It reads and
// writes volumes in whose task sets its command is not, and may go on when its command
// has ended. So that it is still no way around a reservation or an abort, each volume
// that it touches knows it:
//
//	Touch        before anything is looked at there
//	 |           what ends the commands of the client on that volume (a preempt and abort, a
//	 |           reset, the end of the client, …) ends the copy as well, and waits for End
//	piece        each asks whether the client may do that, when it takes effect
//	 |
//	End          nothing of the copy follows
//
// A preempt and abort publishes the reservation before it looks for copies, and a copy is
// known before it looks at the reservation: one of the two sees the other.
type Copy struct {
	// Over says that there is to be no further piece although nobody has aborted the
	// copy; nil: never. Set before the first piece.
	Over func() bool

	client *Client
	bufs   *Buffers
	vols   []*Volume

	ending // told to end early
}

// NewCopy makes the copy of o, which is in the task set of v and whose abort ends it.
func (v *Volume) NewCopy(o *Op) *Copy {
	c := &Copy{client: o.Client, bufs: &v.bufs}
	c.begin()
	c.Touch(v)
	v.mu.Lock()
	o.copying = c
	aborted := o.Aborted()
	v.mu.Unlock()
	if aborted {
		c.stop()
	}
	return c
}

// Touch makes the copy known to a volume, which stays open until End.
func (c *Copy) Touch(v *Volume) {
	for _, x := range c.vols {
		if x == v {
			return
		}
	}
	c.vols = append(c.vols, v)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.copying == nil {
		v.copying = map[*Copy][]*Wait{}
	}
	v.copying[c] = nil
}

// End leaves the volumes, and tells whoever waits for that.
func (c *Copy) End() {
	for _, v := range c.vols {
		v.mu.Lock()
		waits := v.copying[c]
		delete(v.copying, c)
		v.tellFreezeLocked()
		v.mu.Unlock()
		Waits(waits).Done()
	}
}

// May reports whether the client may read or write a volume right now, as a copy
// manager has to ask for it.
func (c *Copy) May(v *Volume, a Access) bool {
	return v.dev != nil && v.Gates()&a.gates() == 0 && !v.Forbids(c.client, a)
}

// piece runs f with n bytes at off claimed.
func (c *Copy) piece(v *Volume, kind Hold, off, n int64, f func() error) error {
	if c.Stopped() || c.Over != nil && c.Over() {
		return ErrAborted
	}
	a := Reads
	if kind == HoldWrite {
		a = Writes
	}
	shift := v.Geo().Shift
	held := v.claim(c, kind, uint64(off)>>shift, uint64(off+n+1<<shift-1)>>shift)
	defer held.drop()
	if v.Gates()&a.gates() != 0 { // a rewrite has begun, say
		return ErrNotReady
	}
	// Both may have changed while others had the blocks.
	if c.Stopped() {
		return ErrAborted
	}
	if v.Forbids(c.client, a) {
		return ErrFenced
	}
	if kind == HoldWrite {
		if err := v.BeforeChange(blockdev.Wait, c); err != nil {
			return err
		}
	}
	err := f()
	if errors.Is(err, blockdev.ErrStopped) {
		err = ErrAborted
	}
	return err
}

// Backwards reports whether n bytes are copied from their end on: overlapping blocks of one volume are, as memmove does.
func Backwards(src *Volume, from int64, dst *Volume, to, n int64) bool {
	return src == dst && from < to && to < from+n
}

// Bytes copies n bytes. Each piece is claimed where it is read, then where it is
// written. It returns how many it has copied and what it was doing when it failed.
func (c *Copy) Bytes(src *Volume, from int64, dst *Volume, to, n int64) (int64, Direction, error) {
	buf := c.bufs.Get(StageBytes)
	defer c.bufs.Put(buf)
	backwards := Backwards(src, from, dst, to, n)
	done := int64(0)
	for done < n {
		k := min(int64(len(buf)), n-done)
		at := done
		if backwards {
			at = n - done - k
		}
		// Before the blocks are claimed: nobody else is to wait for a rate limit of ours.
		if !src.await(c, k) {
			return done, Reading, ErrAborted
		}
		if err := c.piece(src, HoldRead, from+at, k, func() error {
			_, err := src.ReadAt(buf[:k], from+at)
			return err
		}); err != nil {
			src.Counters.CountError(err, Reading)
			return done, Reading, err
		}
		if !dst.await(c, k) {
			return done, Writing, ErrAborted
		}
		if err := c.piece(dst, HoldWrite, to+at, k, func() error { return dst.WriteAt(buf[:k], to+at, c) }); err != nil {
			dst.Counters.CountError(err, Writing)
			return done, Writing, err
		}
		done += k
	}
	return done, Writing, dst.settleCopy(to, n)
}

// Zero makes n bytes zero in claimed pieces.
func (c *Copy) Zero(v *Volume, off, n int64) error {
	for done := int64(0); done < n; {
		at, k := off+done, min(n-done, zeroPiece)
		if err := c.piece(v, HoldWrite, at, k, func() error { return v.WriteZeroes(at, k, true, c) }); err != nil {
			v.Counters.CountError(err, Writing)
			return err
		}
		done += k
	}
	return v.settleCopy(off, n)
}

// Settle makes what a copy or a discard has changed durable if the write cache is off.
func (v *Volume) Settle(off, n int64) error {
	if v.Geo().Info.WriteCache && !v.WriteCache() {
		return v.dev.FlushRange(off, n)
	}
	return nil
}

// settleCopy is Settle for what no command will report, so that it is counted here.
func (v *Volume) settleCopy(off, n int64) error {
	err := v.Settle(off, n)
	if err != nil {
		v.Counters.CountError(err, Writing)
	}
	return err
}

// Copies returns how many copies touch the volume.
func (s *Tasks) Copies() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.copying)
}

// stopCopies ends all copies as far as they touch the volume. Preconditions: no locks held.
func (s *Tasks) stopCopies() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopCopiesLocked(func(*Client) bool { return true }, nil)
}

// stopCopiesLocked ends the copies of the clients that match; w (nil: nobody waits) counts
// them.
func (s *Tasks) stopCopiesLocked(match func(*Client) bool, w *Wait) {
	for c, waits := range s.copying {
		if !match(c.client) {
			continue
		}
		if w != nil {
			w.left.Add(1)
			s.copying[c] = append(waits, w)
		}
		c.stop()
	}
}
