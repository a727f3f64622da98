package backing

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// fetchMax is how long a read may be that is fetched by pread, bytes.
	fetchMax = 16 << 10
	// streamRun is how much in front of a read has to be known for it to be taken for part of a
	// stream, bytes. With less, reads in no order are taken for one now and then, and each reads a window.
	streamRun = 1 << 20
	// cachedMax is the longest range that a lease which may not wait asks the kernel about, bytes.
	cachedMax = 1 << 20
)

// short reports whether data that nothing is known of is read as pread does it, which is only what was
// asked for: others can be announced meanwhile. A fault on the mapping reads a window around the page,
// megabytes on some devices: that is for reads that go on behind others.
func (m *mapped) short(off, n int64) bool {
	return m.cfg.Local && !m.cfg.Volatile && n <= fetchMax && !m.stream(off)
}

// byCopy reports whether such data is lent as a copy: that costs less than the fault on the mapping,
// even if it is in memory. Copies are held by peers, and leave half of the pool to those who cannot do
// without.
func (m *mapped) byCopy(off, n int64) bool {
	return m.short(off, n) && m.pool.Out() < m.pool.Cap()/2
}

// bring has whole pages of data in memory when it returns.
func (m *mapped) bring(off, n int64) error {
	if m.short(off, n) {
		return m.readThrough(off, n)
	}
	if n > fetchMax && !m.inPlace() && !m.stream(off) {
		// What has been asked for a fault only waits for: it reads no window.
		m.sys.fadvise(m.fd, off, n, unix.FADV_WILLNEED) //nolint:errcheck // nothing is lost but time
	}
	return m.populateRead(off, n)
}

// stream reports whether a read at off goes on where others have been.
func (m *mapped) stream(off int64) bool {
	return off >= streamRun && m.pages.readable(off-streamRun, streamRun)
}

// resident reports whether the kernel has the pages of [off, off+n) in memory. It does not wait for
// storage, nor for a server that has it. Of a file that the process may not write to, the kernel does
// not tell.
func (m *mapped) resident(off, n int64) bool {
	if !m.cfg.Local || m.cfg.Info.ReadOnly {
		return false
	}
	first := m.floor(off)
	length := min(m.ceil(off+n), m.ceil(m.size.Load())) - first
	return 0 < length && length <= cachedMax && m.cached(first, length)
}

// known is resident for pages that are unknown, and notes what it finds. What a truncation has left of a
// large folio is still there behind the file's end.
func (m *mapped) known(off, n int64) bool {
	if !m.resident(off, n) || m.truncated(off, n) != nil {
		return false
	}
	m.pages.set(off, n, pageData)
	return true
}

// fetched is room for what readThrough reads, which nobody looks at. It is not the pool's:
// who has that may be waiting for the range that is lent meanwhile.
var fetched = sync.Pool{New: func() any { return new([fetchMax]byte) }}

// populateRead brings whole pages of data into memory and finds out whether
// they can be read at all.
func (m *mapped) populateRead(off, n int64) error {
	if !m.noPopulate.Load() {
		err := retry(func() error { return m.sys.madvise(m.mem[off:off+n], unix.MADV_POPULATE_READ) })
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EINVAL) {
			m.noPopulate.Store(true)
		}
	}
	// EFAULT says only that it failed; pread says why. Where the kernel cannot
	// populate, pread at least brings the pages into its cache.
	return m.readThrough(off, n)
}

// readThrough reads a range into scratch memory.
func (m *mapped) readThrough(off, n int64) error {
	end := min(off+n, m.size.Load())
	scratch := fetched.Get().(*[fetchMax]byte)
	defer fetched.Put(scratch)
	for off < end {
		k := min(end-off, fetchMax)
		if err := m.pread(scratch[:k], off); err != nil {
			return err
		}
		off += k
	}
	return nil
}

// reserve makes [off, off+n) storable through the mapping: space is allocated
// and the pages are in memory, so that a full file system is an error of this command.
// It reports false where staging is better or the only way.
func (m *mapped) reserve(off, n int64) (bool, error) {
	for end := off + n; off < end; {
		state, k := m.pages.run(off, end)
		if state != pageOwned {
			first := m.floor(off)
			length := min(m.ceil(off+k), int64(len(m.mem))) - first
			if ok, err := m.populateWrite(first, length); !ok || err != nil {
				return false, err
			}
			m.pages.set(first, length, pageOwned)
		}
		off += k
	}
	return true, nil
}

// populateWrite allocates whole pages and brings them into memory.
func (m *mapped) populateWrite(off, n int64) (bool, error) {
	if !m.noPopulate.Load() {
		err := retry(func() error { return m.sys.madvise(m.mem[off:off+n], unix.MADV_POPULATE_WRITE) })
		if err == nil {
			return true, nil
		}
		if errors.Is(err, unix.EINVAL) {
			m.noPopulate.Store(true)
		}
	}
	if m.noReserve.Load() {
		return false, nil
	}
	size := m.size.Load()
	if err := m.truncated(off, min(n, size-off)); err != nil {
		return false, err
	}
	// fallocate says why EFAULT came, and on kernels that cannot populate it
	// is what reserves the space. The size of the file does not change.
	err := retry(func() error { return m.sys.fallocate(m.fd, unix.FALLOC_FL_KEEP_SIZE, off, min(n, size-off)) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		m.noReserve.Store(true)
		return false, nil
	}
	if err != nil {
		return false, m.fail("fallocate", off, n, err)
	}
	if m.noPopulate.Load() {
		return true, m.readThrough(off, n)
	}
	err = retry(func() error { return m.sys.madvise(m.mem[off:off+n], unix.MADV_POPULATE_WRITE) })
	if err == nil {
		return true, nil
	}
	// There is space, and yet storing to the pages fails. If they can be read, the write is
	// staged, and its pwrite decides.
	return false, m.readThrough(off, n)
}

// cached reports whether the kernel has all pages of the range in memory.
func (m *mapped) cached(off, n int64) bool {
	var vec [256]byte
	for n > 0 {
		k := min(n, int64(len(vec))*m.page)
		if m.sys.mincore(m.mem[off:off+k], vec[:]) != nil {
			return false
		}
		for _, b := range vec[:(k+m.page-1)/m.page] {
			if b&1 == 0 {
				return false
			}
		}
		off, n = off+k, n-k
	}
	return true
}
