package backing

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// erasePiece is how much is overwritten at once, bytes, so that nobody waits
// long for the range.
const erasePiece = 1 << 20

// Erase implements blockdev.Eraser. Zeroes are written over whatever the store has
// allocated, rather than asked of it: a file system that is told to zero a range
// only marks it as unwritten, and the medium keeps what it held. They reach the medium
// before any block is given back, because a hole would take them out of the page
// cache unwritten.
func (v *Volume) Erase(off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	if v.cfg.Info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	if n == 0 {
		return nil
	}
	if v.cfg.Volatile {
		return v.Discard(off, n) // memory goes back to the kernel, which clears it
	}
	extents, err := v.Extents(off, n)
	if err != nil {
		return err
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	for _, e := range extents {
		if e.Data {
			err = v.overwrite(e.Off, e.Len)
		} else {
			err = v.behindHole(e.Off, e.Len, v.overwrite)
		}
		if err != nil {
			return err
		}
	}
	if err := v.syncRange(off, n); err != nil {
		return err
	}
	if v.cfg.Punch == nil || !v.cfg.Info.Discard || !v.cfg.Info.ZeroesOnTrim || v.cfg.Prealloc {
		return nil
	}
	return v.zero("discard", off, n, v.cfg.Punch, true)
}

// behindHole calls f for the blocks behind what reads as a hole: those that were made zero by
// WriteZeroes, or of a preallocated file, hold what they held. Where the file system does not tell of
// them, there are none.
func (m *mapped) behindHole(off, n int64, f func(off, n int64) error) error {
	for end := off + n; off < end; {
		at, k, err := int64(0), int64(0), error(nil)
		err = retry(func() error {
			at, k, err = m.sys.allocated(m.fd, off, end-off)
			return err
		})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || err == nil && k == 0:
			return nil
		case err != nil:
			return m.fail("FIEMAP", off, end-off, err)
		}
		// A file system may have blocks that are smaller.
		stop := min((at+k+m.mask)&^m.mask, end)
		at = max(at&^m.mask, off)
		if err := f(at, stop-at); err != nil {
			return err
		}
		off = stop
	}
	return nil
}

// lists are for one slice each, for what would otherwise allocate one per command.
var lists = sync.Pool{New: func() any { return new([1][]byte) }}

// overwrite stores zeroes in pieces. The caller has v.opMu.
func (v *Volume) overwrite(off, n int64) error {
	for n > 0 {
		k := min(n, erasePiece)
		one := lists.Get().(*[1][]byte)
		err := v.store(blockdev.Zeroes(one[:0], k), off, k, false)
		lists.Put(one)
		if err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
