package backing

import "golang.org/x/sys/unix"

// Announces implements blockdev.Announcer.
func (v *Volume) Announces() bool { return v.cfg.Announces }

// Announce implements blockdev.Announcer.
func (v *Volume) Announce(off int64, n int) {
	if v.check(off, int64(n)) != nil || n == 0 || v.begin() != nil {
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

// InMemory implements blockdev.Announcer.
func (v *Volume) InMemory(off int64, n int) bool {
	if n == 0 || !v.ranges.TryRead(off, int64(n)) {
		return false
	}
	defer v.ranges.EndRead(off, int64(n))
	if v.check(off, int64(n)) != nil {
		return false
	}
	return v.pages.readable(off, int64(n)) || v.resident(off, int64(n))
}
