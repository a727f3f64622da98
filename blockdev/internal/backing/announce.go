package backing

import (
	"errors"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Announces implements blockdev.Announcer.
func (v *Volume) Announces() bool { return v.cfg.Local }

// Announce implements blockdev.Announcer.
func (v *Volume) Announce(off int64, n int) {
	if v.checkMode(off, int64(n), blockdev.NoWait) != nil || n == 0 || v.begin() != nil {
		return
	}
	defer v.opMu.RUnlock()
	first, end := v.floor(off), min(v.ceil(off+int64(n)), v.size.Load())
	if v.pages.readable(off, int64(n)) || v.stream(first) || first >= end {
		return
	}
	if !v.regions.full(first, end) {
		if hole, _, err := v.extent(first, end); hole || err != nil {
			return
		}
	}
	v.sys.fadvise(v.fd, first, end-first, unix.FADV_WILLNEED) //nolint:errcheck // nothing is lost but time
}

// LeaseCached implements blockdev.Announcer. What would be read by a copy is copied by a call that does
// not wait, and so says whether it is in memory; for all else the kernel is asked first.
func (v *Volume) LeaseCached(l *blockdev.Lease, off int64, n int) error {
	if err := v.checkMode(off, int64(n), blockdev.NoWait); err != nil {
		return err
	}
	switch {
	case n == 0:
		return blockdev.ErrWouldBlock
	case v.copies(off, int64(n)):
		return v.copyCached(l, off, n)
	case v.inMemory(off, int64(n)):
		return v.LeaseRead(l, off, n, blockdev.Wait)
	}
	return blockdev.ErrWouldBlock
}

// inMemory reports whether LeaseRead of that range would not wait for storage.
func (v *Volume) inMemory(off, n int64) bool {
	if !v.ranges.TryRead(off, n) {
		return false
	}
	defer v.ranges.EndRead(off, n)
	if v.checkMode(off, n, blockdev.NoWait) != nil {
		return false
	}
	return v.pages.readable(off, n) || v.resident(off, n)
}

// copies reports whether [off, off+n) is known to be data that is read by a copy, and the call is there
// that does so without waiting.
func (v *Volume) copies(off, n int64) bool {
	if v.noCached.Load() || !v.byCopy(off, n) || !v.regions.full(v.floor(off), min(v.ceil(off+n), v.size.Load())) {
		return false
	}
	state, k := v.pages.run(off, off+n)
	return state == pageUnknown && k == n
}

// copyCached is stageRead that waits for nothing: it fails with ErrWouldBlock instead.
func (v *Volume) copyCached(l *blockdev.Lease, off int64, n int) error {
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	ticket, ok := v.ranges.TryShared(off, int64(n))
	if !ok {
		return blockdev.ErrWouldBlock
	}
	defer v.ranges.EndShared(off, int64(n), ticket)
	bufs, err := v.pool.Get(l.Priv.Pool[:0], n, blockdev.NoWait)
	if err != nil {
		return blockdev.ErrWouldBlock
	}
	k, err := v.sys.preadCached(v.fd, bufs, off)
	if err != nil || k != n {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			v.noCached.Store(true) // this file system, or this kernel, has no such call
		}
		v.pool.Put(bufs)
		l.Priv.Pool = bufs[:0]
		return blockdev.ErrWouldBlock
	}
	v.lendCopy(l, off, n, bufs)
	return nil
}
