package backing

import (
	"softiser/blockdev"
)

// LeaseWrite implements blockdev.Device.
func (v *Volume) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := v.checkMode(off, int64(n), m); err != nil {
		return err
	}
	if v.cfg.Info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	l.Off, l.Len, l.Write = off, n, true
	l.Segs = l.Segs[:0]
	if n == 0 {
		l.Direct, l.Owner = false, v
		return nil
	}
	if v.ranges.TryWrite(off, int64(n)) {
		// Once more, now that a shrinking resize would see this range: one may have come in between.
		if err := v.checkMode(off, int64(n), m); err != nil {
			v.ranges.EndWrite(off, int64(n))
			return err
		}
		ok, err := v.own(off, int64(n), m)
		if ok {
			l.Segs = append(l.Segs, v.mem[off:off+int64(n):off+int64(n)])
			l.Direct, l.Owner = true, v
			return nil
		}
		v.ranges.EndWrite(off, int64(n))
		if err != nil {
			return err
		}
	}
	bufs, err := v.pool.Get(l.Priv.Pool[:0], n, m)
	if err != nil {
		return err
	}
	l.Priv.Pool = bufs
	l.Segs = append(l.Segs, bufs...)
	l.Direct, l.Owner = false, v
	return nil
}

// own makes [off, off+n) storable through the mapping. It reports false
// without an error where pool memory serves better.
func (v *Volume) own(off, n int64, m blockdev.Mode) (bool, error) {
	if v.pages.writable(off, n) {
		return true, nil
	}
	if v.cfg.Volatile {
		// Storing allocates memory, which neither waits for a disk nor finds
		// a file system full.
		v.pages.set(off, n, pageOwned)
		return true, nil
	}
	if m == blockdev.NoWait {
		return false, blockdev.ErrWouldBlock
	}
	return v.reserve(off, n)
}

// CommitBlocks implements blockdev.Lender.
func (v *Volume) CommitBlocks(l *blockdev.Lease, fua bool) bool {
	return l.Len != 0 && (!l.Direct || v.mustSync(fua))
}

// CommitLease implements blockdev.Lender.
func (v *Volume) CommitLease(l *blockdev.Lease, fua bool) error {
	off, n := l.Off, int64(l.Len)
	if n == 0 {
		return nil
	}
	if !l.Direct {
		if err := v.begin(); err != nil {
			return err
		}
		defer v.opMu.RUnlock()
		return v.store(l.Segs, off, n, fua)
	}
	if !v.mustSync(fua) {
		return nil
	}
	return v.syncRange(off, n)
}
