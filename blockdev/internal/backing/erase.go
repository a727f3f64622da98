package backing

import (
	"sync"

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
			if err := v.overwrite(e.Off, e.Len); err != nil {
				return err
			}
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
