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
		if err := i.CheckWrite(off, int64(n)); err != nil {
			return err
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

// CommitMayBlock implements blockdev.Lender.
func (g *gen) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	return g.lender.CommitMayBlock(l, fua)
}

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

// enterToWrite enters the current generation and holds the gate for reading.
func (d *Device) enterToWrite() *gen {
	d.gate.RLock()
	return d.enter()
}

func (d *Device) leaveToWrite(g *gen) {
	g.leave()
	d.gate.RUnlock()
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) { return d.WriteAtUntil(p, off, nil) }

// WriteAtUntil implements blockdev.SpaceWaiter.
func (d *Device) WriteAtUntil(p []byte, off int64, stop blockdev.Stop) (int, error) {
	err := d.write(stop, func(dev blockdev.Device, stop blockdev.Stop) error { return writeAt(dev, p, off, stop) })
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func writeAt(dev blockdev.Device, p []byte, off int64, stop blockdev.Stop) (err error) {
	if w, ok := dev.(blockdev.SpaceWaiter); ok {
		_, err = w.WriteAtUntil(p, off, stop)
		return err
	}
	_, err = dev.WriteAt(p, off)
	return err
}

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error { return d.DiscardUntil(off, n, nil) }

// DiscardUntil implements blockdev.SpaceWaiter.
func (d *Device) DiscardUntil(off, n int64, stop blockdev.Stop) error {
	return d.write(stop, func(dev blockdev.Device, stop blockdev.Stop) error { return discard(dev, off, n, stop) })
}

func discard(dev blockdev.Device, off, n int64, stop blockdev.Stop) error {
	if w, ok := dev.(blockdev.SpaceWaiter); ok {
		return w.DiscardUntil(off, n, stop)
	}
	return dev.Discard(off, n)
}

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	return d.WriteZeroesUntil(off, n, mayUnmap, nil)
}

// WriteZeroesUntil implements blockdev.SpaceWaiter.
func (d *Device) WriteZeroesUntil(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	return d.write(stop, func(dev blockdev.Device, stop blockdev.Stop) error { return zero(dev, off, n, mayUnmap, stop) })
}

func zero(dev blockdev.Device, off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if w, ok := dev.(blockdev.SpaceWaiter); ok {
		return w.WriteZeroesUntil(off, n, mayUnmap, stop)
	}
	return dev.WriteZeroes(off, n, mayUnmap)
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
