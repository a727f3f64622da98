package rdma

import (
	"fmt"
	"sync"
)

// recvBuf is a receive work request in a queue, or taken from one.
type recvBuf struct {
	id    uint64
	size  uint64
	segs  [][]byte
	lkeys []uint32
}

func (b *recvBuf) set(wr *RecvWR) {
	b.id, b.size = wr.ID, 0
	b.segs, b.lkeys = b.segs[:0], b.lkeys[:0]
	for i := range wr.SGL {
		if m := wr.SGL[i].Mem; len(m) > 0 {
			b.segs = append(b.segs, m)
			b.lkeys = append(b.lkeys, wr.SGL[i].LKey)
			b.size += uint64(len(m))
		}
	}
}

// swapIn moves src to b and leaves b's old backing arrays to src, so that neither
// side allocates.
func (b *recvBuf) swapIn(src *recvBuf) {
	*b, *src = *src, *b
	clear(src.segs)
	src.segs = src.segs[:0]
}

// rqueue is a queue of receive buffers. That of a queue pair is a ring: Sends
// arrive in the buffers in the order in which these were posted. A shared one is a
// stack: its users cannot know who takes which buffer, and the one that was used
// last is still in the processor's cache, while a walk through all of them would
// bring a cold buffer, and a cold page, to every message.
type rqueue struct {
	mu    sync.Mutex // guards what follows; a leaf
	ring  []recvBuf
	head  int // 0 in a stack
	n     int
	stack int  // of a stack: slots that it may grow to
	ended bool // posts are flushed at once
}

// stackStep is by how many slots a stack grows.
const stackStep = 64

// growLocked adds n slots, each with room for one piece of memory, so that a queue
// of such buffers allocates nothing even before every slot has been used.
func (q *rqueue) growLocked(n int) {
	more := make([]recvBuf, n)
	segs, lkeys := make([][]byte, n), make([]uint32, n)
	for i := range more {
		more[i].segs, more[i].lkeys = segs[i:i:i+1], lkeys[i:i:i+1]
	}
	q.ring = append(q.ring, more...)
}

func (q *rqueue) post(wr *RecvWR) (flushed bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return true, nil
	}
	if q.n == len(q.ring) && q.n < q.stack {
		q.growLocked(min(stackStep, q.stack-q.n))
	}
	if q.n == len(q.ring) {
		return false, fmt.Errorf("%w: %d receive buffers", ErrQueueFull, q.n)
	}
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i].set(wr)
	q.n++
	return false, nil
}

// take moves the oldest buffer, of a stack the youngest, into b and tells how many
// are left; false when there is none.
func (q *rqueue) take(b *recvBuf) (left int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return 0, false
	}
	q.n--
	if q.stack > 0 {
		b.swapIn(&q.ring[q.n])
		return q.n, true
	}
	b.swapIn(&q.ring[q.head])
	if q.head++; q.head == len(q.ring) {
		q.head = 0
	}
	return q.n, true
}

func (q *rqueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// end makes later posts flush at once.
func (q *rqueue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
}
