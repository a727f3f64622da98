package faulty

import (
	"softiser/blockdev"
)

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info { return d.lower.Info() }

// check keeps the rules away from ranges that the lower device would refuse.
func (d *Device) check(off, n int64) error {
	info := d.lower.Info()
	if info.Size == 0 {
		return blockdev.ErrClosed
	}
	return info.Check(off, n)
}

// LeaseRead implements blockdev.Device. The lease is that of the lower device:
// nothing has to be done when it ends.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n)); err != nil {
		return err
	}
	if m != blockdev.Wait && d.slow(Read, off, int64(n)) {
		return blockdev.ErrWouldBlock
	}
	if err := d.wait(d.judge(Read, off, int64(n))); err != nil {
		return err
	}
	return d.lower.LeaseRead(l, off, n, m)
}

// LeaseWrite implements blockdev.Device. It lends pool memory.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n)); err != nil {
		return err
	}
	if d.lower.Info().ReadOnly {
		return blockdev.ErrReadOnly
	}
	if m != blockdev.Wait && d.slow(Lease, off, int64(n)) {
		return blockdev.ErrWouldBlock
	}
	if err := d.wait(d.judge(Lease, off, int64(n))); err != nil {
		return err
	}
	return d.pool.Lend(l, d, off, n, true, m)
}

// CommitMayBlock implements blockdev.Lender.
func (d *Device) CommitMayBlock(l *blockdev.Lease, _ bool) bool { return l.Len != 0 }

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	v := d.judge(Write, l.Off, int64(l.Len))
	if err := d.wait(v); err != nil {
		return err
	}
	off := l.Off
	for _, s := range l.Segs {
		if err := d.write(s, off, v); err != nil {
			return err
		}
		off += int64(len(s))
	}
	if v.torn {
		return blockdev.ErrMedium
	}
	if fua {
		return d.FlushRange(l.Off, int64(l.Len))
	}
	return nil
}

// write writes p, or the part of it that the verdict lets through.
func (d *Device) write(p []byte, off int64, v verdict) error {
	switch {
	case v.lost:
		return nil
	case v.torn:
		bs := d.lower.Info().BlockSize
		for ; len(p) > 0; p, off = p[bs:], off+int64(bs) {
			if v.keep() {
				if _, err := d.lower.WriteAt(p[:bs], off); err != nil {
					return err
				}
			}
		}
		return nil
	}
	_, err := d.lower.WriteAt(p, off)
	return err
}

// ReleaseLease implements blockdev.Lender, for write leases.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	d.pool.TakeBack(l)
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if err := d.wait(d.judge(Read, off, int64(len(p)))); err != nil {
		return 0, err
	}
	return d.lower.ReadAt(p, off)
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	v := d.judge(Write, off, int64(len(p)))
	if err := d.wait(v); err != nil {
		return 0, err
	}
	if err := d.write(p, off, v); err != nil {
		return 0, err
	}
	if v.torn {
		return 0, blockdev.ErrMedium
	}
	return len(p), nil
}

// Flush implements blockdev.Device. A lost flush reports success and does
// nothing.
func (d *Device) Flush() error {
	info := d.lower.Info()
	v := d.judge(Flush, 0, info.Size)
	if err := d.wait(v); err != nil {
		return err
	}
	if v.lost && info.Size != 0 {
		return nil
	}
	return d.lower.Flush()
}

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	v := d.judge(Flush, off, n)
	if err := d.wait(v); err != nil {
		return err
	}
	if v.lost {
		return nil
	}
	return d.lower.FlushRange(off, n)
}

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	v := d.judge(Discard, off, n)
	if err := d.wait(v); err != nil || v.lost {
		return err
	}
	return d.lower.Discard(off, n)
}

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	v := d.judge(Discard, off, n)
	if err := d.wait(v); err != nil || v.lost {
		return err
	}
	return d.lower.WriteZeroes(off, n, mayUnmap)
}

// Erase implements blockdev.Eraser, if the lower device does. The rules take it for a
// Discard.
func (d *Device) Erase(off, n int64) error {
	e, ok := d.lower.(blockdev.Eraser)
	if !ok {
		return blockdev.ErrNotSupported
	}
	if err := d.check(off, n); err != nil {
		return err
	}
	v := d.judge(Discard, off, n)
	if err := d.wait(v); err != nil || v.lost {
		return err
	}
	return e.Erase(off, n)
}

// Extents implements blockdev.Device.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) { return d.lower.Extents(off, n) }

// OnResize implements blockdev.Device.
func (d *Device) OnResize(f func(blockdev.Info)) (cancel func()) { return d.lower.OnResize(f) }

// Resize implements blockdev.Resizer.
func (d *Device) Resize(n int64) error {
	if r, ok := d.lower.(blockdev.Resizer); ok {
		return r.Resize(n)
	}
	return blockdev.ErrNotSupported
}

// Close closes the lower device.
func (d *Device) Close() error { return d.lower.Close() }
