package verbs

import "math/bits"

// SendQueue is the ring of the send queue. Its counters only grow, and wrap:
//
//	Head          Next          Tail
//	 | built,      | not built,  |
//	 | not ended   | or in part  |
//
// It is guarded by QP.Mu; Next is advanced by whoever transmits.
type SendQueue struct {
	ring             []WQE // power of two
	Head, Next, Tail uint32
	Hidden           uint32 // entries made by the engine itself
}

// Size makes room for n entries. The queue must be empty.
func (q *SendQueue) Size(n int) { q.ring = make([]WQE, roundUp(n)) }

// At is the entry with number i.
func (q *SendQueue) At(i uint32) *WQE { return &q.ring[i&uint32(len(q.ring)-1)] }

// Empty reports whether everything has ended.
func (q *SendQueue) Empty() bool { return q.Head == q.Tail }

// used is how many entries of users there are.
func (q *SendQueue) used() uint32 { return q.Tail - q.Head - q.Hidden }

// slot is the next free entry, emptied. It becomes one of the queue by Tail++.
func (q *SendQueue) slot() *WQE {
	if q.Head == q.Tail {
		// Nobody has a place in an empty ring: it begins anew, so that a connection
		// with little to do keeps few slots, and these in the cache.
		q.Head, q.Next, q.Tail = 0, 0, 0
	}
	e := q.At(q.Tail)
	e.Status, e.Done = StatusSuccess, false
	e.Segs, e.LKeys = e.Segs[:0], e.LKeys[:0]
	return e
}

// Hide queues an empty message without a completion.
func (q *SendQueue) Hide(op Opcode) {
	e := q.At(q.Tail)
	// Some RNICs refuse STag 0 even where it is not used.
	*e = WQE{Op: op, Flags: FlagHidden, Remote: RemoteAddr{STag: 1}, Segs: e.Segs[:0], LKeys: e.LKeys[:0]}
	q.Tail++
	q.Hidden++
}

// roundUp is the next power of two.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}
