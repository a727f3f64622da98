package backing

import (
	"errors"
	"sync"
	"sync/atomic"

	"softiser/internal/uring"
)

// parkedMost is how many calls of a volume may wait for its disk without holding a thread.
const parkedMost = 64

// parked are the calls of a volume that wait for its disk: short reads of what is not in memory,
// and syncs. A goroutine in a system call keeps a processor of Go's scheduler from the others until
// the runtime's monitor takes it away, so that on few processors few calls are under way, however
// many goroutines make some; io_uring parks the goroutine instead. One that is alone makes
// the system call itself, which is less work.
type parked struct {
	open  func(n int) (*uring.Files, error) // nil: every call is made by its goroutine
	under atomic.Int32                      // calls under way, by whichever way

	once  sync.Once
	files *uring.Files // nil before the first two at once, and where the system gives none
}

// begin enters a call that may wait for the disk, and returns by what to make it; nil: by a system
// call. end is called when it is over, whichever way it went.
func (p *parked) begin() *uring.Files {
	if p.under.Add(1) == 1 || p.open == nil {
		return nil
	}
	p.once.Do(func() { p.files, _ = p.open(parkedMost) }) // without one all goes on as it did
	return p.files
}

func (p *parked) end() { p.under.Add(-1) }

// close gives the ring back. Preconditions: no call is under way, and none follows.
func (p *parked) close() error {
	if p.files == nil {
		return nil
	}
	return p.files.Close()
}

// syncData makes n bytes from off durable, 0 and 0 all of the store: by the ring, or by call, which
// does the same. What either finds counts: the kernel tells of lost data once.
func (m *mapped) syncData(off, n int64, call func() error) error {
	ring := m.parked.begin()
	defer m.parked.end()
	if ring == nil || n > uring.SyncMost {
		return call()
	}
	if err := ring.SyncData(m.fd, off, n); !errors.Is(err, uring.ErrBusy) {
		return err
	}
	return call()
}
