package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/rdma/internal/mem"
)

// RecvBuf is a receive work request in a queue, or taken from one.
type RecvBuf struct {
	ID    uint64
	Size  uint64
	Segs  [][]byte
	LKeys []uint32
}

// Add appends a piece of memory.
func (b *RecvBuf) Add(p []byte, lkey uint32) {
	if len(p) > 0 {
		b.Segs = append(b.Segs, p)
		b.LKeys = append(b.LKeys, lkey)
		b.Size += uint64(len(p))
	}
}

// swapIn moves src to b and leaves b's old backing arrays to src, so that neither
// side allocates.
func (b *RecvBuf) swapIn(src *RecvBuf) {
	*b, *src = *src, *b
	src.Segs = mem.Drop(src.Segs)
}

// RecvQueue is a queue of receive buffers. That of a queue pair is a ring: Sends
// arrive in the buffers in the order in which these were posted. A shared one is a
// stack: its users cannot know who takes which buffer, and the one that was used
// last is still in the processor's cache, while a walk through all of them would
// bring a cold buffer, and a cold page, to every message.
type RecvQueue struct {
	mu    sync.Mutex // guards what follows; a leaf
	ring  []RecvBuf
	head  int // 0 in a stack
	n     int
	stack int  // of a stack: slots that it may grow to
	ended bool // posts are flushed at once
}

// stackStep is by how many slots a stack grows.
const stackStep = 64

// Ring makes q a ring of n buffers.
func (q *RecvQueue) Ring(n int) { q.growLocked(n) }

// growLocked adds n slots, each with room for one piece of memory, so that a queue
// of such buffers allocates nothing even before every slot has been used.
func (q *RecvQueue) growLocked(n int) {
	more := make([]RecvBuf, n)
	segs, lkeys := make([][]byte, n), make([]uint32, n)
	for i := range more {
		more[i].Segs, more[i].LKeys = segs[i:i:i+1], lkeys[i:i:i+1]
	}
	q.ring = append(q.ring, more...)
}

// Lock and Unlock enclose a call of PostLocked and the filling of its buffer.
func (q *RecvQueue) Lock() { q.mu.Lock() }

// Unlock is described at Lock.
func (q *RecvQueue) Unlock() { q.mu.Unlock() }

// PostLocked adds an empty buffer, which the caller fills before Unlock. It is nil
// without an error when the queue has ended: the request is flushed.
func (q *RecvQueue) PostLocked(id uint64) (*RecvBuf, error) {
	if q.ended {
		return nil, nil
	}
	if q.n == len(q.ring) && q.n < q.stack {
		q.growLocked(min(stackStep, q.stack-q.n))
	}
	if q.n == len(q.ring) {
		return nil, fmt.Errorf("%w: %d receive buffers", ErrQueueFull, q.n)
	}
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.n++
	b := &q.ring[i]
	b.ID, b.Size = id, 0
	b.Segs, b.LKeys = b.Segs[:0], b.LKeys[:0]
	return b, nil
}

// Take moves the oldest buffer, of a stack the youngest, into b and tells how many
// are left; false when there is none.
func (q *RecvQueue) Take(b *RecvBuf) (left int, ok bool) {
	q.mu.Lock()
	if ok = q.n > 0; ok {
		q.n--
		left = q.n
		if q.stack > 0 {
			b.swapIn(&q.ring[q.n])
		} else {
			b.swapIn(&q.ring[q.head])
			if q.head++; q.head == len(q.ring) {
				q.head = 0
			}
		}
	}
	q.mu.Unlock()
	return left, ok
}

// Len is the number of buffers in the queue.
func (q *RecvQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// end makes later posts flush at once.
func (q *RecvQueue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
}

// SRQ is a receive queue that several queue pairs take from.
type SRQ struct {
	RecvQueue
	limit   atomic.Int64 // armed limit, 0 when not armed
	watched atomic.Bool  // it has been armed once
}

// Init makes s a queue of up to n buffers.
func (s *SRQ) Init(n int) { s.stack = n }

// Arm asks for one EventSRQLimit when fewer than n buffers are left. From the first time on,
// whoever finds the queue empty raises one as well.
func (s *SRQ) Arm(n int) {
	s.limit.Store(int64(n))
	s.watched.Store(true)
}

// low reports, once, that fewer buffers are left than armed.
func (s *SRQ) low(left int) bool {
	l := s.limit.Load()
	return l > 0 && int64(left) < l && s.limit.CompareAndSwap(l, 0)
}
