package backing

import (
	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Flush implements blockdev.Device. fdatasync covers what was stored through
// the mapping as well as what was written.
func (v *Volume) Flush() error {
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	if v.cfg.Volatile || v.cfg.Info.ReadOnly {
		return nil
	}
	if v.poisoned.Load() {
		return blockdev.ErrPoisoned
	}
	size := v.size.Load()
	if err := v.truncated(0, size); err != nil {
		return err
	}
	return v.synced("fdatasync", 0, size, retry(func() error { return v.sys.fdatasync(v.fd) }))
}

// FlushRange implements blockdev.Device.
func (v *Volume) FlushRange(off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	if n == 0 || v.cfg.Volatile || v.cfg.Info.ReadOnly {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	return v.syncRange(off, n)
}

// syncRange makes one range durable. msync(MS_SYNC) is fdatasync for a part of
// the file: pages written by pwrite count too, and others are left alone.
func (v *Volume) syncRange(off, n int64) error {
	if v.poisoned.Load() {
		return blockdev.ErrPoisoned
	}
	if err := v.truncated(off, n); err != nil {
		return err
	}
	first, end := v.floor(off), min(v.ceil(off+n), int64(len(v.mem)))
	return v.synced("msync", off, n, retry(func() error { return v.sys.msync(v.mem[first:end], unix.MS_SYNC) }))
}

// synced poisons the volume if a flush failed: the kernel may have marked the
// lost pages clean, so that the next flush would succeed without them.
func (v *Volume) synced(op string, off, n int64, err error) error {
	if err == nil {
		if v.poisoned.Load() {
			// Another flush failed meanwhile and took the error with it.
			return blockdev.ErrPoisoned
		}
		return nil
	}
	v.poisoned.Store(true)
	return v.fail(op, off, n, err)
}
