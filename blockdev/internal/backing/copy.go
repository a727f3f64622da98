package backing

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// ReadAt implements blockdev.Device by pread.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if err := v.begin(); err != nil {
		return 0, err
	}
	defer v.opMu.RUnlock()
	if err := v.pread(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device by pwrite. It waits, up to the volume's
// patience, for direct leases of the range.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if v.cfg.Info.ReadOnly {
		return 0, blockdev.ErrReadOnly
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := v.begin(); err != nil {
		return 0, err
	}
	defer v.opMu.RUnlock()
	one := [1][]byte{p}
	if err := v.store(one[:], off, int64(len(p)), false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pread fills p or fails. The end of the file inside the device means that
// somebody truncated it.
func (v *Volume) pread(p []byte, off int64) error {
	for done := 0; done < len(p); {
		var k int
		err := retry(func() (err error) {
			k, err = v.sys.pread(v.fd, p[done:], off+int64(done))
			return err
		})
		if err == nil && k == 0 {
			err = io.ErrUnexpectedEOF
			v.noticeTruncation()
		}
		if err != nil {
			return v.fail("pread", off+int64(done), int64(len(p)-done), err)
		}
		done += k
	}
	return nil
}

// store copies bufs, n bytes in all, into the device at off.
func (v *Volume) store(bufs [][]byte, off, n int64, fua bool) error {
	flags := 0
	if v.mustSync(fua) {
		if v.poisoned.Load() {
			return blockdev.ErrPoisoned
		}
		flags = unix.RWF_DSYNC
	}
	end := v.exclusive(off, n)
	defer end()
	// The size may have changed since the lease was taken.
	if err := v.check(off, n); err != nil {
		return err
	}
	if err := v.pwrite(bufs, off, flags); err != nil {
		// What of the range is on the store now is unknown, and so are its
		// pages, unless nobody but this process can change them.
		if v.cfg.HolesKnown {
			v.pages.set(off, n, pageOwned)
		} else {
			v.pages.clear(v.floor(off), v.ceil(off+n)-v.floor(off), pageUnknown)
		}
		return err
	}
	v.pages.set(off, n, pageOwned)
	return nil
}

// exclusive claims the whole pages around a range, so that no direct lease
// shares a page whose state changes, and returns the function that ends it.
func (v *Volume) exclusive(off, n int64) (end func()) {
	first := v.floor(off)
	length := v.ceil(off+n) - first
	ticket, quiet := v.ranges.Exclusive(first, length, v.patience)
	if !quiet {
		v.stats.impatient.Add(1)
	}
	return func() { v.ranges.EndExclusive(first, length, ticket) }
}

// pwrite writes everything or fails.
func (v *Volume) pwrite(bufs [][]byte, off int64, flags int) error {
	var rest [][]byte // a copy, once a call was cut short
	for len(bufs) > 0 {
		// The kernel takes at most 1024 pieces at once.
		batch := bufs[:min(len(bufs), 1024)]
		want := total(batch)
		var k int
		err := retry(func() (err error) {
			k, err = v.sys.pwritev(v.fd, batch, off, flags)
			return err
		})
		if err == nil && k == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			if flags&unix.RWF_DSYNC != 0 && errors.Is(err, unix.EIO) {
				// The data may have been written back and lost: the same as a
				// failed fsync.
				v.poisoned.Store(true)
			}
			return v.fail("pwrite", off, want, err)
		}
		off += int64(k)
		if int64(k) == want {
			bufs = bufs[len(batch):]
			continue
		}
		if rest == nil {
			rest = append(rest, bufs...)
			bufs = rest
		}
		bufs = advance(bufs, k)
	}
	return nil
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// advance drops the first n bytes of bufs in place.
func advance(bufs [][]byte, n int) [][]byte {
	for n > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
