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
	if v.inPlace() || m == blockdev.Probe {
		if ok, err := v.lendInPlace(l, off, n, m); ok || err != nil {
			return err
		}
	}
	if m == blockdev.Probe {
		return blockdev.ErrWouldBlock
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

// lendInPlace makes l a lease of the mapping. It reports false without an error where pool memory serves better.
func (v *Volume) lendInPlace(l *blockdev.Lease, off int64, n int, m blockdev.Mode) (bool, error) {
	if !v.ranges.TryWrite(off, int64(n)) {
		return false, nil
	}
	// Once more, now that a shrinking resize would see this range: one may have come in between.
	err := v.checkMode(off, int64(n), m)
	ok := false
	if err == nil {
		ok, err = v.own(off, int64(n), m)
	}
	if !ok {
		v.ranges.EndWrite(off, int64(n))
		return false, err
	}
	l.Segs = append(l.Segs, v.mem[off:off+int64(n):off+int64(n)])
	l.Direct, l.Owner = true, v
	return true, nil
}

// inPlace reports whether writes are received into the mapping. That of a file is not for it: the kernel
// makes a page read-only there when it has written it back, and the next store dirties the whole folio around
// it, megabytes at times; and a page of a hole brings in as much as is read ahead (ADR 218).
func (m *mapped) inPlace() bool { return m.cfg.Info.InPlace }

// own makes [off, off+n) storable through the mapping. It reports false
// without an error where pool memory serves better.
func (m *mapped) own(off, n int64, mode blockdev.Mode) (bool, error) {
	if m.pages.writable(off, n) {
		return true, nil
	}
	if m.cfg.Volatile {
		// Storing allocates memory, which neither waits for a disk nor finds
		// a file system full.
		m.pages.set(off, n, pageOwned)
		return true, nil
	}
	if mode != blockdev.Wait {
		return false, blockdev.ErrWouldBlock
	}
	return m.reserve(off, n)
}

// CommitMayBlock implements blockdev.Lender.
func (v *Volume) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
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
