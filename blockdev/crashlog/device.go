package crashlog

import (
	"bytes"

	"softiser/blockdev"
)

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info {
	info := d.info
	info.Size = int64(len(d.data))
	return info
}

// checkLocked validates a range.
func (d *Device) checkLocked(off, n int64) error {
	if d.closed {
		return blockdev.ErrClosed
	}
	return blockdev.CheckRange(off, n, int64(len(d.data)), d.info.BlockSize)
}

// do runs f on a legal range, under the lock.
func (d *Device) do(off, n int64, f func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(off, n); err != nil {
		return err
	}
	if n > 0 {
		f()
	}
	return nil
}

// writeLocked stores p and notes it. The history keeps p.
func (d *Device) writeLocked(p []byte, off int64) {
	copy(d.data[off:], p)
	d.events = append(d.events, event{off: off, n: int64(len(p)), data: p})
}

// LeaseRead implements blockdev.Device with a copy.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.lend(l, off, n, m, false); err != nil {
		return err
	}
	err := d.do(off, int64(n), func() {
		at := off
		for _, s := range l.Segs {
			at += int64(copy(s, d.data[at:]))
		}
	})
	if err != nil {
		l.Release()
	}
	return err
}

// LeaseWrite implements blockdev.Device with pool memory.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	return d.lend(l, off, n, m, true)
}

func (d *Device) lend(l *blockdev.Lease, off int64, n int, m blockdev.Mode, write bool) error {
	if err := d.do(off, int64(n), func() {}); err != nil {
		return err
	}
	return d.pool.Lend(l, d, off, n, write, m)
}

// CommitMayBlock implements blockdev.Lender. A real disk would make a commit
// wait, and what runs on top should be tested that way.
func (d *Device) CommitMayBlock(l *blockdev.Lease, _ bool) bool { return l.Len != 0 }

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	p := bytes.Join(l.Segs, nil)
	return d.do(l.Off, int64(l.Len), func() {
		d.writeLocked(p, l.Off)
		if fua {
			d.events = append(d.events, event{off: l.Off, n: int64(l.Len)})
		}
	})
}

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	d.pool.TakeBack(l)
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	if err := d.do(off, int64(len(p)), func() { copy(p, d.data[off:]) }); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	if err := d.do(off, int64(len(p)), func() { d.writeLocked(bytes.Clone(p), off) }); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error { return d.FlushRange(0, int64(len(d.data))) }

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error {
	return d.do(off, n, func() { d.events = append(d.events, event{off: off, n: n}) })
}

// Discard implements blockdev.Device. Until it is flushed it may be lost, as a
// write may.
func (d *Device) Discard(off, n int64) error { return d.WriteZeroes(off, n, true) }

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, _ bool) error {
	return d.do(off, n, func() { d.writeLocked(make([]byte, n), off) })
}

// Extents implements blockdev.Device: everything is data.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := d.do(off, n, func() {}); err != nil {
		return nil, err
	}
	return []blockdev.Extent{{Off: off, Len: n, Data: true}}, nil
}

// OnResize implements blockdev.Device; the size never changes.
func (d *Device) OnResize(func(blockdev.Info)) (cancel func()) { return func() {} }

// Close implements blockdev.Device. The history can still be replayed.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return blockdev.ErrClosed
	}
	d.closed = true
	return nil
}
