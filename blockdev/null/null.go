// Package null is a volume of any size that reads zeroes and forgets what is
// written. It shows what everything else costs.
//
// Reads are lent from one shared page of zeroes. Writes are lent pool memory:
// two writers must not share a sink, because the CRC of what was placed there
// is checked before the write completes.
package null

import (
	"fmt"
	"sync/atomic"

	"softiser/blockdev"
)

// Config describes a null volume. Zero fields have the defaults stated.
type Config struct {
	Name          string // for messages and the identity; "null"
	Size          int64  // bytes
	BlockSize     int    // 512
	PhysBlockSize int    // 4096
	ReadOnly      bool
	Rotational    bool           // report that seeks cost
	Pool          *blockdev.Pool // blockdev.DefaultPool
}

// Device is an open null volume.
type Device struct {
	info  blockdev.Info
	pool  *blockdev.Pool
	size  atomic.Int64
	open  atomic.Bool
	hooks blockdev.ResizeHooks
}

// Open makes a null volume.
func Open(cfg Config) (*Device, error) {
	if cfg.Name == "" {
		cfg.Name = "null"
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.PhysBlockSize == 0 {
		cfg.PhysBlockSize = max(4096, cfg.BlockSize)
	}
	if cfg.Pool == nil {
		cfg.Pool = blockdev.DefaultPool()
	}
	if err := blockdev.CheckGeometry(cfg.Size, cfg.BlockSize, cfg.PhysBlockSize); err != nil {
		return nil, fmt.Errorf("null volume %s: %w", cfg.Name, err)
	}
	d := &Device{
		pool: cfg.Pool,
		info: blockdev.Info{
			BlockSize:     cfg.BlockSize,
			PhysBlockSize: cfg.PhysBlockSize,
			ReadOnly:      cfg.ReadOnly,
			Discard:       true,
			ZeroesOnTrim:  true,
			Thin:          true,
			Rotational:    cfg.Rotational,
			Backend:       "null",
			ID:            "null:" + cfg.Name,
		},
	}
	d.size.Store(cfg.Size)
	d.open.Store(true)
	return d, nil
}

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info {
	info := d.info
	info.Size = d.size.Load()
	return info
}

func (d *Device) check(off, n int64) error {
	if !d.open.Load() {
		return blockdev.ErrClosed
	}
	return blockdev.CheckRange(off, n, d.size.Load(), d.info.BlockSize)
}

func (d *Device) checkWrite(off, n int64) error {
	if err := d.check(off, n); err != nil {
		return err
	}
	if d.info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	return nil
}

// LeaseRead implements blockdev.Device.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, _ blockdev.Mode) error {
	if err := d.check(off, int64(n)); err != nil {
		return err
	}
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, false, true, d
	l.Segs = blockdev.Zeroes(l.Segs[:0], int64(n))
	return nil
}

// LeaseWrite implements blockdev.Device.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.checkWrite(off, int64(n)); err != nil {
		return err
	}
	return d.pool.Lend(l, d, off, n, true, m)
}

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(*blockdev.Lease, bool) error { return nil }

// CommitMayBlock implements blockdev.Lender.
func (d *Device) CommitMayBlock(*blockdev.Lease, bool) bool { return false }

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	if l.Write {
		d.pool.TakeBack(l)
	}
	l.Segs = l.Segs[:0]
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	clear(p)
	return len(p), nil
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	if err := d.checkWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error { return d.check(0, 0) }

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error { return d.check(off, n) }

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error { return d.checkWrite(off, n) }

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, _ bool) error { return d.checkWrite(off, n) }

// Extents implements blockdev.Device: all of it is a hole.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := d.check(off, n); err != nil {
		return nil, err
	}
	return []blockdev.Extent{{Off: off, Len: n}}, nil
}

// OnResize implements blockdev.Device.
func (d *Device) OnResize(f func(blockdev.Info)) (cancel func()) { return d.hooks.Add(f) }

// Resize implements blockdev.Resizer. Leases lend no memory of the volume, so
// shrinking needs no care.
func (d *Device) Resize(n int64) error {
	if err := d.checkWrite(0, 0); err != nil {
		return err
	}
	if err := blockdev.CheckGeometry(n, d.info.BlockSize, d.info.PhysBlockSize); err != nil {
		return err
	}
	return d.hooks.Change(func() error { d.size.Store(n); return nil }, d.Info)
}

// Close implements blockdev.Device.
func (d *Device) Close() error {
	if !d.open.Swap(false) {
		return blockdev.ErrClosed
	}
	return nil
}
