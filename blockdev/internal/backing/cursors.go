package backing

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Linux notes for each open file description which write-back errors have been reported to it
// (errseq_t). Those who share one have to wait for each other, see syncs. So a sync of a range
// gets a description to itself, a cursor, as far as there are some: what it reports was reported
// to nobody else, and what it does not report has not happened since it was opened. What had
// happened before is shown by the first sync that begins after that on the volume's own
// description, and succeeds there:
//
//	open cursor --> sync by the volume's own: proved --> syncs by the cursor
//
// Nothing is written by a cursor. It has the store mapped because msync is the call that syncs
// a range alone.
type cursors struct {
	mu   sync.Mutex // guards what follows; a leaf
	free []*cursor  // the one that was used last is at the end
	n    int        // open
	off  bool       // none can be had
}

// cursor is an open file description of the store that one sync uses at a time.
type cursor struct {
	fd     int
	proved bool // nothing had been lost when it was opened
	off    int64
	window []byte // [off, off+len(window)) of the store; nil: none
}

const (
	// cursorsMost is how many cursors a volume has at most, cursorsAll all volumes together (see
	// mostCursors). The syncs beyond share the volume's own description.
	cursorsMost = 64
	cursorsAll  = 512
	// cursorWindow is how much of the store a cursor has mapped, bytes: address space only.
	cursorWindow = 16 << 30
)

// openCursors are those of all volumes.
var openCursors atomic.Int64

// mostCursors is how many there may be: half of the descriptors that sessions leave to what is no
// connection, a sixteenth of what the process may have.
var mostCursors = sync.OnceValue(func() int64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int64(min(r.Cur/32, cursorsAll))
})

// take returns a cursor that the caller has to itself until put; nil: there is none.
func (s *cursors) take(m *mapped) *cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := len(s.free); k > 0 {
		c := s.free[k-1]
		s.free = s.free[:k-1]
		return c
	}
	if !m.cfg.Local || s.off || s.n == cursorsMost {
		return nil
	}
	if openCursors.Add(1) > mostCursors() {
		openCursors.Add(-1)
		return nil
	}
	fd, err := m.sys.reopen(m.fd)
	if err != nil {
		openCursors.Add(-1)
		s.off = true
		return nil
	}
	s.n++
	return &cursor{fd: fd}
}

// put gives a cursor back. What the sync has found is known to everybody.
func (s *cursors) put(c *cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, c)
}

// close closes all cursors. Preconditions: none is in use.
func (s *cursors) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.free {
		c.unmap()
		unix.Close(c.fd) // nothing was written by it: it has no news
	}
	openCursors.Add(-int64(len(s.free)))
	s.free, s.n, s.off = nil, 0, true
}

// see returns the mapping of [first, end) of a store that could be mapped up to limit; nil: it
// cannot be had. Kernels that report an error once for all descriptions (before 4.13) do not know
// MAP_SHARED_VALIDATE (4.15) either.
func (c *cursor) see(m *mapped, first, end int64) []byte {
	if first < c.off || end > c.off+int64(len(c.window)) || c.window == nil {
		c.unmap()
		off := first &^ (cursorWindow/2 - 1)
		n := min(int64(len(m.mem))-off, cursorWindow)
		if end > off+n {
			return nil
		}
		// Without PROT_WRITE nothing can be stored by it. It is a shared mapping only if the descriptor is
		// writable: msync does nothing otherwise.
		window, err := m.sys.mmap(c.fd, off, int(n), unix.PROT_READ, unix.MAP_SHARED_VALIDATE|unix.MAP_NORESERVE)
		if err != nil {
			return nil
		}
		m.sys.madvise(window, unix.MADV_DONTDUMP)
		c.off, c.window = off, window
	}
	return c.window[first-c.off : end-c.off]
}

func (c *cursor) unmap() {
	if c.window != nil {
		unix.Munmap(c.window)
		c.window = nil
	}
}

// reopen opens the file of a descriptor anew, for reading and writing.
func reopen(fd int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
}
