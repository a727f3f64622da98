package backing

import (
	"errors"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// populateRead brings whole pages of data into memory and finds out whether
// they can be read at all.
func (v *Volume) populateRead(off, n int64) error {
	if !v.noPopulate.Load() {
		err := retry(func() error { return v.sys.madvise(v.mem[off:off+n], unix.MADV_POPULATE_READ) })
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EINVAL) {
			v.noPopulate.Store(true)
		}
	}
	// EFAULT says only that it failed; pread says why. Where the kernel cannot
	// populate, pread at least brings the pages into its cache.
	return v.readThrough(off, n)
}

// readThrough reads a range into scratch memory.
func (v *Volume) readThrough(off, n int64) error {
	n = min(n, v.size.Load()-off)
	var one [1][]byte
	for n > 0 {
		k := min(n, blockdev.MaxBuffer)
		bufs, err := v.pool.Get(one[:0], int(k), blockdev.Wait)
		if err != nil {
			return err
		}
		for _, b := range bufs {
			if err == nil {
				err = v.pread(b, off)
			}
			off += int64(len(b))
		}
		v.pool.Put(bufs)
		if err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// reserve makes [off, off+n) storable through the mapping: space is allocated
// and the pages are in memory, so that a full disk is an error of this command.
// It reports false where staging is better or the only way.
func (v *Volume) reserve(off, n int64) (bool, error) {
	aligned := (off|n)&(v.page-1) == 0
	end := off + n
	for off < end {
		state, k := v.pages.run(off, end)
		if state != pageOwned {
			first := v.floor(off)
			length := min(v.ceil(off+k), int64(len(v.mem))) - first
			if state == pageUnknown && aligned && !v.cached(first, length) {
				hole, m, err := v.extent(first, first+length)
				if err != nil {
					return false, err
				}
				if !hole || m < length {
					// Cold data that is about to be overwritten as a whole:
					// mapping it would read it from the disk first.
					return false, nil
				}
			}
			if ok, err := v.populateWrite(first, length); !ok || err != nil {
				return false, err
			}
			v.pages.set(first, length, pageOwned)
		}
		off += k
	}
	return true, nil
}

// populateWrite allocates whole pages and brings them into memory.
func (v *Volume) populateWrite(off, n int64) (bool, error) {
	if !v.noPopulate.Load() {
		err := retry(func() error { return v.sys.madvise(v.mem[off:off+n], unix.MADV_POPULATE_WRITE) })
		if err == nil {
			return true, nil
		}
		if errors.Is(err, unix.EINVAL) {
			v.noPopulate.Store(true)
		}
	}
	if v.noReserve.Load() {
		return false, nil
	}
	size := v.size.Load()
	if err := v.truncated(off, min(n, size-off)); err != nil {
		return false, err
	}
	// fallocate says why EFAULT came, and on kernels that cannot populate it
	// is what reserves the space. The size of the file does not change.
	err := retry(func() error { return v.sys.fallocate(v.fd, unix.FALLOC_FL_KEEP_SIZE, off, min(n, size-off)) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		v.noReserve.Store(true)
		return false, nil
	}
	if err != nil {
		return false, v.fail("fallocate", off, n, err)
	}
	if v.noPopulate.Load() {
		return true, v.readThrough(off, n)
	}
	err = retry(func() error { return v.sys.madvise(v.mem[off:off+n], unix.MADV_POPULATE_WRITE) })
	if err == nil {
		return true, nil
	}
	// There is space, and yet storing to the pages fails, as on ext4 on a nearly full
	// disk. If they can be read, the write is staged, and its pwrite decides.
	return false, v.readThrough(off, n)
}

// cached reports whether the kernel has all pages of the range in memory.
func (v *Volume) cached(off, n int64) bool {
	var vec [256]byte
	for n > 0 {
		k := min(n, int64(len(vec))*v.page)
		if v.sys.mincore(v.mem[off:off+k], vec[:]) != nil {
			return false
		}
		for _, b := range vec[:(k+v.page-1)/v.page] {
			if b&1 == 0 {
				return false
			}
		}
		off, n = off+k, n-k
	}
	return true
}
