package cm

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"softiser/rdma/internal/verbs"
)

// Who is not on the path must guess these numbers, so they come from the system's
// random source.

func random32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint32(b[:])
}

// NewPSN chooses a starting PSN.
func NewPSN() uint32 { return random32() & 0xffffff }

// NewGUID chooses the GUID of a channel adapter: one for each start of a process, so
// that its queue pair numbers are not taken for those of the process before it.
func NewGUID() uint64 { return uint64(random32())<<32 | uint64(random32()) | 1 }

// QPNs hands out numbers of queue pairs. The zero value is ready for use, by several
// goroutines.
type QPNs struct {
	mu    sync.Mutex
	taken map[uint32]struct{}
}

// maxQPNs bounds the search for a free number: half of the space of 24 bits.
const maxQPNs = 1 << 23

// Take chooses a number that is not in use, nor one of the reserved: 0 and 1 belong to
// management, 0xffffff to multicast (IBA vol. 1 §3.5.10).
func (q *QPNs) Take() (uint32, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.taken) >= maxQPNs {
		return 0, fmt.Errorf("%w: %d queue pair numbers", verbs.ErrLimit, maxQPNs)
	}
	if q.taken == nil {
		q.taken = make(map[uint32]struct{})
	}
	for {
		n := random32() & 0xffffff
		if _, used := q.taken[n]; !used && ordinaryQPN(n) {
			q.taken[n] = struct{}{}
			return n, nil
		}
	}
}

// Release makes n free again.
func (q *QPNs) Release(n uint32) {
	q.mu.Lock()
	delete(q.taken, n)
	q.mu.Unlock()
}

func ordinaryQPN(n uint32) bool { return n > 1 && n < 0xffffff }
