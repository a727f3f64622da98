package snap

import (
	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// Origin is the origin as its users see it: what is about to be overwritten is
// copied into the snapshots first. While a snapshot is merged back, it shows
// that snapshot.
type Origin struct{ s *Set }

// Origin returns the origin's device.
func (s *Set) Origin() *Origin { return &Origin{s} }

// Info implements blockdev.Device. While a snapshot is merged, what is written may be in the cache of
// its store's disk, too.
func (o *Origin) Info() blockdev.Info {
	i := o.s.base.Info()
	if o.s.merges.Load() {
		i.CacheID = ""
	}
	return i
}

func (o *Origin) check(off, n int64) error {
	i := o.s.base.Info()
	return i.Check(off, n)
}

func (o *Origin) checkWrite(off, n int64) error {
	i := o.s.base.Info()
	return i.CheckWrite(off, n)
}

// ReadAt implements blockdev.Device.
func (o *Origin) ReadAt(p []byte, off int64) (int, error) {
	if err := o.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	o.s.mu.RLock()
	defer o.s.mu.RUnlock()
	if m := o.s.merging; m != nil {
		return m.readLocked(p, off)
	}
	return o.s.base.ReadAt(p, off)
}

// WriteAt implements blockdev.Device.
func (o *Origin) WriteAt(p []byte, off int64) (int, error) {
	if err := o.checkWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	err := o.write(off, int64(len(p)), func(dev blockdev.Device, at, n, rel int64) error {
		_, err := dev.WriteAt(p[rel:rel+n], at)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// write calls f for the range after copying out. While merging, what the
// merging snapshot still holds is changed there.
func (o *Origin) write(off, n int64, f func(dev blockdev.Device, at, n, rel int64) error) error {
	s := o.s
	s.mu.RLock()
	merging := s.merging != nil
	s.mu.RUnlock()
	if !merging {
		s.preserve(off, n)
		if err := s.markLost(); err != nil {
			return err
		}
		return f(s.base, off, n, 0)
	}
	if err := s.lockSafe(off, n); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if s.merging == nil {
		return f(s.base, off, n, 0)
	}
	st := s.merging.st
	return st.pieces(off, n, func(to uint64, has bool, at, k int64) error {
		if !has {
			return f(s.base, at, k, at-off)
		}
		if err := f(st.dev, int64(to)*st.chunk+at%st.chunk, k, at-off); err != nil || !st.doubtful(at, k) {
			return err
		}
		// It is not known which of the two lists is on disk, so that after a restart either place may be read.
		return f(s.base, at, k, at-off)
	})
}

// LeaseRead implements blockdev.Device.
func (o *Origin) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	o.s.mu.RLock()
	merging := o.s.merging != nil
	o.s.mu.RUnlock()
	if !merging {
		return swap.Through(l, o, o.s.base, off, n, m, false)
	}
	if err := o.check(off, int64(n)); err != nil {
		return err
	}
	if m != blockdev.Wait {
		return blockdev.ErrWouldBlock
	}
	l.Priv.Under = l.Priv.Under[:0]
	return swap.StageRead(l, o.s.pool, o, o, off, n, m)
}

// LeaseWrite implements blockdev.Device. Chunks that snapshots lack are copied
// out before the origin's memory is lent.
func (o *Origin) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := o.checkWrite(off, int64(n)); err != nil {
		return err
	}
	s := o.s
	s.mu.RLock()
	merging, safe := s.merging != nil, s.safeLocked(off, int64(n))
	s.mu.RUnlock()
	switch {
	case merging:
		l.Priv.Under = l.Priv.Under[:0]
		return swap.Stage(l, s.pool, o, off, n, m)
	case (!safe || s.losing.Load()) && m != blockdev.Wait:
		return blockdev.ErrWouldBlock
	case !safe:
		s.preserve(off, int64(n))
	}
	if err := s.markLost(); err != nil {
		return err
	}
	return swap.Through(l, o, s.base, off, n, m, true)
}

// CommitLease implements blockdev.Lender.
func (o *Origin) CommitLease(l *blockdev.Lease, fua bool) error {
	if len(l.Priv.Under) > 0 {
		return swap.CommitThrough(l, fua)
	}
	return swap.WriteStaged(l, o, fua)
}

// CommitMayBlock implements blockdev.Lender.
func (o *Origin) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	return l.Len > 0 && (len(l.Priv.Under) == 0 || swap.BlocksThrough(l, fua))
}

// ReleaseLease implements blockdev.Lender.
func (o *Origin) ReleaseLease(l *blockdev.Lease) {
	if len(l.Priv.Under) > 0 {
		swap.EndThrough(l)
		return
	}
	swap.Unstage(l, o.s.pool)
}

// Flush implements blockdev.Device.
func (o *Origin) Flush() error {
	o.s.mu.RLock()
	m := o.s.merging
	o.s.mu.RUnlock()
	if m != nil {
		if err := m.st.dev.Flush(); err != nil {
			return err
		}
	}
	return o.s.base.Flush()
}

// FlushRange implements blockdev.Device.
func (o *Origin) FlushRange(off, n int64) error {
	if err := o.check(off, n); err != nil {
		return err
	}
	o.s.mu.RLock()
	m := o.s.merging
	o.s.mu.RUnlock()
	if m != nil {
		return o.Flush()
	}
	return o.s.base.FlushRange(off, n)
}

// Discard implements blockdev.Device.
func (o *Origin) Discard(off, n int64) error {
	if err := o.checkWrite(off, n); err != nil {
		return err
	}
	return o.write(off, n, func(dev blockdev.Device, at, n, _ int64) error {
		if dev != o.s.base { // the disk of a store that is merged need not do with it what the origin's does
			return dev.WriteZeroes(at, n, true)
		}
		return dev.Discard(at, n)
	})
}

// WriteZeroes implements blockdev.Device.
func (o *Origin) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := o.checkWrite(off, n); err != nil {
		return err
	}
	return o.write(off, n, func(dev blockdev.Device, at, n, _ int64) error { return dev.WriteZeroes(at, n, mayUnmap) })
}

// Erase implements blockdev.Eraser. What snapshots still show of the range stays in
// their stores.
func (o *Origin) Erase(off, n int64) error {
	if err := o.checkWrite(off, n); err != nil {
		return err
	}
	return o.write(off, n, func(dev blockdev.Device, at, n, _ int64) error { return swap.Erase(dev, at, n) })
}

// Extents implements blockdev.Device.
func (o *Origin) Extents(off, n int64) ([]blockdev.Extent, error) {
	o.s.mu.RLock()
	defer o.s.mu.RUnlock()
	if m := o.s.merging; m != nil {
		return m.extentsLocked(off, n)
	}
	return o.s.base.Extents(off, n)
}

// OnResize implements blockdev.Device; growing is announced further up.
func (o *Origin) OnResize(func(blockdev.Info)) func() { return func() {} }

// Close implements blockdev.Device; base and stores belong to their openers.
func (o *Origin) Close() error { return nil }
