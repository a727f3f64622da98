package swap

import "softiser/blockdev"

// LeaseRead implements blockdev.Device.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	g := d.enter()
	if err := g.dev.LeaseRead(l, off, n, m); err != nil {
		g.leave()
		return err
	}
	l.Owner = g
	return nil
}

// LeaseWrite implements blockdev.Device.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	g := d.enter()
	if g.staged {
		i := g.dev.Info()
		g.leave()
		if err := blockdev.CheckRange(off, int64(n), i.Size, i.BlockSize); err != nil {
			return err
		}
		if i.ReadOnly {
			return blockdev.ErrReadOnly
		}
		if err := Stage(l, d.pool, &d.stage, off, n, m); err != nil {
			return err
		}
		d.stage.open.Add(1)
		return nil
	}
	if err := g.dev.LeaseWrite(l, off, n, m); err != nil {
		g.leave()
		return err
	}
	l.Owner = g
	return nil
}

// CommitLease implements blockdev.Lender.
func (g *gen) CommitLease(l *blockdev.Lease, fua bool) error { return g.lender.CommitLease(l, fua) }

// CommitBlocks implements blockdev.Lender.
func (g *gen) CommitBlocks(l *blockdev.Lease, fua bool) bool { return g.lender.CommitBlocks(l, fua) }

// ReleaseLease implements blockdev.Lender.
func (g *gen) ReleaseLease(l *blockdev.Lease) {
	g.lender.ReleaseLease(l)
	g.leave()
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	g := d.enter()
	defer g.leave()
	return g.dev.ReadAt(p, off)
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	d.gate.RLock()
	defer d.gate.RUnlock()
	g := d.enter()
	defer g.leave()
	return g.dev.WriteAt(p, off)
}

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error {
	d.gate.RLock()
	defer d.gate.RUnlock()
	g := d.enter()
	defer g.leave()
	return g.dev.Discard(off, n)
}

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	d.gate.RLock()
	defer d.gate.RUnlock()
	g := d.enter()
	defer g.leave()
	return g.dev.WriteZeroes(off, n, mayUnmap)
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error {
	g := d.enter()
	defer g.leave()
	return g.dev.Flush()
}

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error {
	g := d.enter()
	defer g.leave()
	return g.dev.FlushRange(off, n)
}

// Extents implements blockdev.Device.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) {
	g := d.enter()
	defer g.leave()
	return g.dev.Extents(off, n)
}
