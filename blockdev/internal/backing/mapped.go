package backing

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// mapped is the part of a volume that is its store: the open file, the memory that it is
// mapped to, its length, and what is known of its pages. It claims no ranges and makes nothing
// durable; its callers see to it that the file stays open (Volume.opMu, or a range that is lent).
type mapped struct {
	cfg     Config
	sys     kernel
	fd      int
	mem     []byte // the mapping: the size now, and room to grow
	room    int64  // of reserved, bytes
	page    int64
	mask    int64 // block size - 1
	pool    *blockdev.Pool
	pages   *pages
	regions *regions
	asks    asks

	size   atomic.Int64 // bytes; 0 when closed
	closed atomic.Bool
	// limit is where ranges must end. It is less than size only while somebody has deciding, to find
	// out whether what lies beyond may go (a smaller size, or Close): whoever begins there waits for
	// that, and is not refused for what then does not happen. Nothing is waited for under deciding for
	// longer than storage takes to shrink.
	limit    atomic.Int64
	deciding sync.RWMutex
	// noPopulate is set when the kernel turns out to lack MADV_POPULATE_*
	// (before 5.14), noReserve when the file system has no fallocate either.
	noPopulate atomic.Bool
	noCached   atomic.Bool // the same of preadCached
	noReserve  atomic.Bool
	shortened  atomic.Bool // somebody has made the store shorter than size, when it was last looked at
}

// mapAll maps the store, and makes what is kept of its pages and regions.
func (m *mapped) mapAll() (err error) {
	cfg := &m.cfg
	if err = m.mapStore(cfg.FD, cfg.Info.Size, m.page, cfg.Info.ReadOnly); err != nil {
		return fmt.Errorf("blockdev: mapping %s (%d bytes): %w", cfg.Path, cfg.Info.Size, err)
	}
	if m.pages, err = newPages(int64(len(m.mem)), int(m.page), cfg.HolesKnown); err != nil {
		m.unmapStore()
		return fmt.Errorf("blockdev: %s: %w", cfg.Path, err)
	}
	if m.regions, err = newRegions(int64(len(m.mem))); err != nil {
		m.unmap()
		return fmt.Errorf("blockdev: %s: %w", cfg.Path, err)
	}
	return nil
}

// mapStore maps the store and, behind its end, address space for growing: a
// mapping may be longer than its file, and what is lent must never move.
func (m *mapped) mapStore(fd int, size, page int64, readOnly bool) (err error) {
	prot := unix.PROT_READ | unix.PROT_WRITE
	if readOnly {
		prot = unix.PROT_READ
	}
	exact := (size + page - 1) &^ (page - 1)
	m.room = reserved.take(exact)
	// File systems bound the length of files, processes that of address space.
	err = unix.ENOMEM // of one that is longer than an int
	for _, room := range []int64{m.room, min(exact, m.room), 0} {
		if n := exact + room; n < exact || n != int64(int(n)) {
			continue
		}
		if m.mem, err = m.sys.mmap(fd, 0, int(exact+room), prot, unix.MAP_SHARED|unix.MAP_NORESERVE); err == nil {
			reserved.put(m.room - room)
			m.room = room
			return nil
		}
	}
	reserved.put(m.room)
	return err
}

// unmap gives back the mapping and the tables about it.
func (m *mapped) unmap() error {
	err := errors.Join(m.unmapStore(), m.pages.close())
	if m.regions != nil {
		err = errors.Join(err, m.regions.close())
	}
	return err
}

func (m *mapped) unmapStore() error {
	reserved.put(m.room)
	return unix.Munmap(m.mem)
}

// lock keeps the pages of [off, end) in memory from the moment they are first
// used; nothing is read ahead. The kernel counts the whole range against the
// process's limit at once.
func (m *mapped) lock(off, end int64) error {
	off, end = m.floor(off), m.ceil(end)
	if off == end {
		return nil
	}
	err := m.sys.mlock(m.mem[off:end])
	if err == nil {
		return nil
	}
	limit := "unknown"
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		limit = fmt.Sprintf("%d bytes", r.Cur)
	}
	return fmt.Errorf("blockdev: %s: locking %d bytes in memory: %w; the limit of the process is %s (ulimit -l, LimitMEMLOCK= of a systemd unit): raise it, or do not lock the volume", m.cfg.Path, end-off, err, limit)
}

// check validates a range against the size now.
func (m *mapped) check(off, n int64) error { return m.checkMode(off, n, blockdev.Wait) }

// checkMode is check for a caller that may not wait for storage to shrink.
func (m *mapped) checkMode(off, n int64, mode blockdev.Mode) error {
	if !within(off, n, m.limit.Load()) {
		if err := m.beyond(off, n, mode); err != nil {
			return err
		}
	}
	if (off|n)&m.mask != 0 {
		return blockdev.ErrUnaligned
	}
	return nil
}

func within(off, n, size int64) bool { return off >= 0 && n >= 0 && off <= size && n <= size-off }

// beyond says whether a range that is beyond the limit is beyond the size, when that is decided.
func (m *mapped) beyond(off, n int64, mode blockdev.Mode) error {
	if mode == blockdev.Wait {
		m.deciding.RLock()
	} else if !m.deciding.TryRLock() {
		return blockdev.ErrWouldBlock
	}
	defer m.deciding.RUnlock()
	switch {
	case within(off, n, m.limit.Load()):
		return nil
	case m.closed.Load():
		return blockdev.ErrClosed
	}
	return blockdev.ErrOutOfRange
}

// decide hides what lies beyond end from those who begin, while take looks whether anybody is there
// and takes it away if nobody is. Without an error end is the size then. Preconditions: Volume.resizeMu.
func (m *mapped) decide(end int64, take func() error) error {
	m.deciding.Lock()
	defer m.deciding.Unlock()
	m.limit.Store(end)
	if err := take(); err != nil {
		m.limit.Store(m.size.Load())
		return err
	}
	m.size.Store(end)
	return nil
}

// grow makes the size n, which is more than it was.
func (m *mapped) grow(n int64) {
	m.size.Store(n)
	m.limit.Store(n)
}

// fail makes the error of a system call on a range.
func (m *mapped) fail(op string, off, n int64, cause error) error {
	return &blockdev.Error{Op: op, Store: m.cfg.Path, Off: off, Len: n, Kind: blockdev.KindOf(cause), Cause: cause}
}

// floor and ceil round to pages.
func (m *mapped) floor(n int64) int64 { return n &^ (m.page - 1) }
func (m *mapped) ceil(n int64) int64  { return (n + m.page - 1) &^ (m.page - 1) }
