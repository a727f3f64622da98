package backing

import (
	"errors"
	"fmt"
	"sync/atomic"

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

// durability is the part of a volume that makes writes durable and knows whether it has succeeded.
type durability struct {
	mapped   *mapped
	record   string      // file of the cacheRecord; "" without one
	poisoned atomic.Bool // a sync has failed: none is believed any more
	syncs    syncs
}

// syncRange makes one range durable. msync(MS_SYNC) is fdatasync for a part of
// the file: pages written by pwrite count too, and others are left alone.
func (d *durability) syncRange(off, n int64) error {
	first, end := d.mapped.floor(off), min(d.mapped.ceil(off+n), int64(len(d.mapped.mem)))
	return d.sync("msync", off, n, func() error { return d.mapped.sys.msync(d.mapped.mem[first:end], unix.MS_SYNC) })
}

// sync runs the system call that makes a range durable, and says whether to believe
// it. One that fails, with whatever error, poisons the volume: the kernel may have
// marked the lost pages clean, so that the next one would succeed without them.
func (d *durability) sync(op string, off, n int64, call func() error) error {
	number := d.syncs.begin()
	if d.poisoned.Load() {
		d.syncs.end(number)
		return blockdev.ErrPoisoned
	}
	if err := d.mapped.truncated(off, n); err != nil {
		d.syncs.end(number)
		return errors.Join(err, d.forgetCache())
	}
	if err := retry(call); err != nil {
		err = errors.Join(d.mapped.fail(op, off, n, err), d.forgetCache())
		d.poisoned.Store(true)
		d.syncs.end(number)
		return err
	}
	d.syncs.endAndWait(number)
	if d.poisoned.Load() {
		// Another sync has failed meanwhile. Linux reports an error once: it may have been about our data.
		return blockdev.ErrPoisoned
	}
	return nil
}

// forgetCache makes sure that who opens the store next does not take its cache for
// the one that has just lost something.
func (d *durability) forgetCache() error {
	if d.record == "" {
		return nil
	}
	if err := dropRecord(d.record); err != nil {
		return fmt.Errorf("blockdev: %s: a write was lost, and whoever opens the volume next will not know: remove %s yourself: %w", d.mapped.cfg.Path, d.record, err)
	}
	return nil
}

// mustSync reports whether a write has to be durable when it completes.
func (d *durability) mustSync(fua bool) bool {
	return (fua || d.mapped.cfg.WriteThrough) && !d.mapped.cfg.Volatile
}

// leave flushes the store for the last time, if the next opening is to know how that
// went.
func (d *durability) leave(size int64) error {
	if d.record == "" {
		return nil
	}
	if err := d.sync("fdatasync", 0, size, func() error { return d.mapped.sys.fdatasync(d.mapped.fd) }); err != nil {
		// The failed sync has tried to remove the record already; try once more.
		return errors.Join(err, dropRecord(d.record))
	}
	return leaveCache(d.record, d.mapped.cfg.Info.CacheID)
}
