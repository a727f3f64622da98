package lazy

import "softiser/blockdev"

// Info implements blockdev.Device. Without a store it is that of the last one, or what New
// was told.
func (d *Device) Info() blockdev.Info { return *d.info.Load() }

// LeaseRead implements blockdev.Device.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	s := d.enter()
	if s == nil {
		return d.absent()
	}
	return s.lent(l, s.dev.LeaseRead(l, off, n, m))
}

// LeaseWrite implements blockdev.Device.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	s := d.enter()
	if s == nil {
		return d.absent()
	}
	return s.lent(l, s.dev.LeaseWrite(l, off, n, m))
}

// lent makes the stay the owner of a lease, which it keeps in use until its release.
func (s *stay) lent(l *blockdev.Lease, err error) error {
	if err != nil {
		s.leave()
		return err
	}
	l.Owner = s
	return nil
}

// CommitLease implements blockdev.Lender.
func (s *stay) CommitLease(l *blockdev.Lease, fua bool) error { return s.lender.CommitLease(l, fua) }

// CommitMayBlock implements blockdev.Lender.
func (s *stay) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	return s.lender.CommitMayBlock(l, fua)
}

// ReleaseLease implements blockdev.Lender.
func (s *stay) ReleaseLease(l *blockdev.Lease) {
	s.lender.ReleaseLease(l)
	s.leave()
}

// use runs f with the store.
func (d *Device) use(f func(blockdev.Device) error) error {
	s := d.enter()
	if s == nil {
		return d.absent()
	}
	defer s.leave()
	return f(s.dev)
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	s := d.enter()
	if s == nil {
		return 0, d.absent()
	}
	defer s.leave()
	return s.dev.ReadAt(p, off)
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	s := d.enter()
	if s == nil {
		return 0, d.absent()
	}
	defer s.leave()
	return s.dev.WriteAt(p, off)
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error { return d.flush(blockdev.Device.Flush) }

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error {
	return d.flush(func(dev blockdev.Device) error { return dev.FlushRange(off, n) })
}

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error {
	return d.use(func(dev blockdev.Device) error { return dev.Discard(off, n) })
}

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	return d.use(func(dev blockdev.Device) error { return dev.WriteZeroes(off, n, mayUnmap) })
}

// Extents implements blockdev.Device.
func (d *Device) Extents(off, n int64) (all []blockdev.Extent, err error) {
	err = d.use(func(dev blockdev.Device) (err error) {
		all, err = dev.Extents(off, n)
		return err
	})
	return all, err
}

// Resize implements blockdev.Resizer, where the store is one.
func (d *Device) Resize(n int64) error {
	return d.use(func(dev blockdev.Device) error {
		if r, ok := dev.(blockdev.Resizer); ok {
			return r.Resize(n)
		}
		return blockdev.ErrNotSupported
	})
}

// OnResize implements blockdev.Device. A store whose size, or what it can do, is not what
// was told before counts as a resize.
func (d *Device) OnResize(f func(blockdev.Info)) (cancel func()) { return d.hooks.Add(f) }

// Close implements blockdev.Device: it closes the store, if there is one.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch s := d.cur.Load(); {
	case d.closed.Load():
		return blockdev.ErrClosed
	case d.leaving != nil:
		return blockdev.ErrInUse
	case s != nil:
		if err := s.end(); err != nil {
			return err
		}
		d.silence()
	}
	d.closed.Store(true)
	d.cur.Store(nil)
	return nil
}
