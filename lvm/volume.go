package lvm

import (
	"sync/atomic"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// Volume is an open logical volume: a blockdev.Device whose leases are those
// of the disks below wherever that is possible. It stays valid while the
// volume is resized, moved, renamed, snapshotted or merged.
type Volume struct {
	dev    *swap.Device
	g      *Group
	n      *node
	closed atomic.Bool
	fills  bool // Fills
}

var (
	_ blockdev.Device      = (*Volume)(nil)
	_ blockdev.LowSpace    = (*Volume)(nil)
	_ blockdev.SpaceMeter  = (*Volume)(nil)
	_ blockdev.SpaceWaiter = (*Volume)(nil)
	_ blockdev.Eraser      = (*Volume)(nil)
)

// Name is the current name of the logical volume.
func (v *Volume) Name() string {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	return v.n.name
}

// Group is the volume group it belongs to.
func (v *Volume) Group() *Group { return v.g }

// Close flushes and closes the volume. It fails with ErrInUse while leases are
// open. That a snapshot is lost is no error of its end: Flush has it.
func (v *Volume) Close() error {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	if v.n.users == 1 && v.dev.Busy() {
		return blockdev.ErrInUse
	}
	v.closed.Store(true)
	v.n.filled = v.n.filled && !v.fills
	v.g.opened--
	err := v.n.settled(v.dev.Flush())
	if e := v.g.act.deactivate(v.n); err == nil {
		err = e
	}
	return err
}

// Info implements blockdev.Device.
func (v *Volume) Info() blockdev.Info { return v.dev.Info() }

// OnResize implements blockdev.Device.
func (v *Volume) OnResize(f func(blockdev.Info)) (cancel func()) { return v.dev.OnResize(f) }

// OnLowSpace implements blockdev.LowSpace: for a thin volume, f is told that its
// pool fills up.
func (v *Volume) OnLowSpace(f func()) (cancel func()) {
	if v.n.pool == nil {
		return func() {}
	}
	return v.n.pool.OnLowSpace(f)
}

// SpaceUsage implements blockdev.SpaceMeter: for a thin volume it is its pool's.
func (v *Volume) SpaceUsage() blockdev.SpaceUsage {
	if v.n.pool == nil {
		return blockdev.SpaceUsage{}
	}
	u := v.n.pool.Usage()
	return blockdev.SpaceUsage{Total: int64(u.DataBlocks) * u.Chunk, Used: int64(u.DataUsed) * u.Chunk, Unit: u.Chunk}
}

// OnSpaceChange implements blockdev.SpaceMeter.
func (v *Volume) OnSpaceChange(f func()) (cancel func()) {
	if v.n.pool == nil {
		return func() {}
	}
	return v.n.pool.OnChange(f)
}

// LeaseRead implements blockdev.Device.
func (v *Volume) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	return v.dev.LeaseRead(l, off, n, m)
}

// LeaseWrite implements blockdev.Device.
func (v *Volume) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := v.beforeWrite(m); err != nil {
		return err
	}
	return v.dev.LeaseWrite(l, off, n, m)
}

// ReadAt implements blockdev.Device.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	if v.closed.Load() {
		return 0, blockdev.ErrClosed
	}
	return v.dev.ReadAt(p, off)
}

// WriteAt implements blockdev.Device.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return 0, err
	}
	return v.dev.WriteAt(p, off)
}

// WriteAtUntil implements blockdev.SpaceWaiter.
func (v *Volume) WriteAtUntil(p []byte, off int64, stop blockdev.Stop) (int, error) {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return 0, err
	}
	return v.dev.WriteAtUntil(p, off, stop)
}

// Flush implements blockdev.Device.
func (v *Volume) Flush() error {
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	return v.dev.Flush()
}

// FlushRange implements blockdev.Device.
func (v *Volume) FlushRange(off, n int64) error {
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	return v.dev.FlushRange(off, n)
}

// Discard implements blockdev.Device.
func (v *Volume) Discard(off, n int64) error {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return err
	}
	return v.dev.Discard(off, n)
}

// DiscardUntil implements blockdev.SpaceWaiter.
func (v *Volume) DiscardUntil(off, n int64, stop blockdev.Stop) error {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return err
	}
	return v.dev.DiscardUntil(off, n, stop)
}

// Erase implements blockdev.Eraser. A thin volume has no hold on blocks that it gave
// back before, nor on those that it wrote anew because a snapshot had them.
func (v *Volume) Erase(off, n int64) error {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return err
	}
	return v.dev.Erase(off, n)
}

// WriteZeroes implements blockdev.Device.
func (v *Volume) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return err
	}
	return v.dev.WriteZeroes(off, n, mayUnmap)
}

// WriteZeroesUntil implements blockdev.SpaceWaiter.
func (v *Volume) WriteZeroesUntil(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := v.beforeWrite(blockdev.Wait); err != nil {
		return err
	}
	return v.dev.WriteZeroesUntil(off, n, mayUnmap, stop)
}

// Extents implements blockdev.Device.
func (v *Volume) Extents(off, n int64) ([]blockdev.Extent, error) {
	if v.closed.Load() {
		return nil, blockdev.ErrClosed
	}
	return v.dev.Extents(off, n)
}
