package backing

import (
	"errors"
	"fmt"

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
	return v.sync("fdatasync", 0, v.size.Load(), func() error { return v.sys.fdatasync(v.fd) })
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
	first, end := v.floor(off), min(v.ceil(off+n), int64(len(v.mem)))
	return v.sync("msync", off, n, func() error { return v.sys.msync(v.mem[first:end], unix.MS_SYNC) })
}

// sync runs the system call that makes a range durable, and says whether to believe
// it. One that fails, with whatever error, poisons the volume: the kernel may have
// marked the lost pages clean, so that the next one would succeed without them.
func (v *Volume) sync(op string, off, n int64, call func() error) error {
	number := v.syncs.begin()
	if v.poisoned.Load() {
		v.syncs.end(number)
		return blockdev.ErrPoisoned
	}
	if err := v.truncated(off, n); err != nil {
		v.syncs.end(number)
		return errors.Join(err, v.forgetCache())
	}
	if err := retry(call); err != nil {
		err = errors.Join(v.fail(op, off, n, err), v.forgetCache())
		v.poisoned.Store(true)
		v.syncs.end(number)
		return err
	}
	v.syncs.endAndWait(number)
	if v.poisoned.Load() {
		// Another sync has failed meanwhile. Linux reports an error once: it may have been about our data.
		return blockdev.ErrPoisoned
	}
	return nil
}

// forgetCache makes sure that who opens the store next does not take its cache for
// the one that has just lost something.
func (v *Volume) forgetCache() error {
	if v.record == "" {
		return nil
	}
	if err := dropRecord(v.record); err != nil {
		return fmt.Errorf("blockdev: %s: a write was lost, and whoever opens the volume next will not know: remove %s yourself: %w", v.cfg.Path, v.record, err)
	}
	return nil
}
