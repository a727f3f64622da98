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
	mapped  *mapped
	record  string                         // file of the cacheRecord, ours or, without a CacheID, an earlier one; "" without one
	poison  atomic.Pointer[blockdev.Error] // a sync has failed, which no other sync is believed after; nil: none
	syncs   syncs                          // on the volume's own description
	cursors cursors                        // further ones

	abandoned atomic.Bool // by Abandon
}

// Abandon implements blockdev.Abandoner. The record of the cache stays as it is.
func (d *durability) Abandon() { d.abandoned.Store(true) }

// syncRange makes one range durable. msync(MS_SYNC) is fdatasync for a part of
// the file: pages written by pwrite count too, and others are left alone.
func (d *durability) syncRange(off, n int64) error {
	m := d.mapped
	first, end := m.floor(off), min(m.ceil(off+n), int64(len(m.mem)))
	c := d.cursors.take(m)
	if c != nil {
		defer d.cursors.put(c)
		if c.proved {
			if mem := c.see(m, first, end); mem != nil {
				return d.syncAlone(mem, off, n)
			}
		}
	}
	err := d.sync("msync", off, n, func() error { return m.sys.msync(m.mem[first:end], unix.MS_SYNC) })
	if c != nil && err == nil {
		c.proved = true
	}
	return err
}

// syncAlone syncs a range by the mapping of a cursor that is proved. Its success is about the
// range whatever others find meanwhile.
func (d *durability) syncAlone(mem []byte, off, n int64) error {
	if err := d.poisoned(); err != nil {
		return err
	}
	if err := d.mapped.truncated(off, n); err != nil {
		return errors.Join(err, d.forgetCache())
	}
	if err := retry(func() error { return d.mapped.sys.msync(mem, unix.MS_SYNC) }); err != nil {
		return d.failed("msync", off, n, err)
	}
	return nil
}

// sync runs the system call that makes a range durable, and says whether to believe
// it. It is about the volume's own description, which others use at the same time.
func (d *durability) sync(op string, off, n int64, call func() error) error {
	number := d.syncs.begin()
	if err := d.poisoned(); err != nil {
		d.syncs.end(number)
		return err
	}
	if err := d.mapped.truncated(off, n); err != nil {
		d.syncs.end(number)
		return errors.Join(err, d.forgetCache())
	}
	if err := retry(call); err != nil {
		err = d.failed(op, off, n, err)
		d.syncs.end(number)
		return err
	}
	d.syncs.endAndWait(number)
	// If another sync has failed meanwhile, Linux, which reports an error once, may have meant our data.
	return d.poisoned()
}

// failed makes the error of a sync. Whatever it is, it poisons the volume: the kernel may have
// marked the lost pages clean, so that the next sync would succeed without them.
func (d *durability) failed(op string, off, n int64, cause error) error {
	err := errors.Join(d.mapped.fail(op, off, n, cause), d.forgetCache())
	d.poison.CompareAndSwap(nil, &blockdev.Error{Op: op, Store: d.mapped.cfg.Path, Off: off, Len: n, Kind: blockdev.ErrPoisoned, Cause: cause})
	return err
}

// poisoned returns what every sync fails with since one has failed, which tells of that one: nobody else
// may have been told why. nil: none has.
func (d *durability) poisoned() error {
	if p := d.poison.Load(); p != nil {
		return p
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
	if d.record == "" || d.abandoned.Load() {
		return nil
	}
	if err := d.sync("fdatasync", 0, size, func() error { return d.mapped.sys.fdatasync(d.mapped.fd) }); err != nil {
		// The failed sync has tried to remove the record already; try once more.
		return errors.Join(err, dropRecord(d.record))
	}
	if d.mapped.cfg.Info.CacheID == "" {
		return nil // nothing was lost, as the earlier record has it
	}
	return leaveCache(d.record, d.mapped.cfg.Info.CacheID)
}
