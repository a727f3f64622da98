package verbs

import "math/bits"

// SendQueue is the ring of the send queue. Its counters only grow, and wrap:
//
//	Head          Next          Tail
//	 | built,      | not built,  |
//	 | not ended   | or in part  |
//
// It is guarded by QP.Mu; Next is advanced by whoever transmits. Its memory comes in pieces when
// entries are first used, and stays: an entry does not move while somebody points at it.
type SendQueue struct {
	ring             []*[sqPiece]WQE
	mask             uint32 // entries less one; their number is a power of two
	Head, Next, Tail uint32
	Hidden           uint32 // entries made by the engine itself
}

// Size makes room for n entries. The queue must be empty.
func (q *SendQueue) Size(n int) {
	n = roundUp(n)
	q.ring, q.mask = make([]*[sqPiece]WQE, (n+sqPiece-1)/sqPiece), uint32(n-1)
}

// sqPiece is how many entries get their memory together.
const sqPiece = 8

// At is the entry with number i, which is in the queue.
func (q *SendQueue) At(i uint32) *WQE {
	i &= q.mask
	return &q.ring[i/sqPiece][i%sqPiece]
}

// free is the entry behind the last one.
func (q *SendQueue) free() *WQE {
	if p := &q.ring[(q.Tail&q.mask)/sqPiece]; *p == nil {
		*p = new([sqPiece]WQE)
		for i := range *p {
			e := &(*p)[i]
			e.Segs, e.LKeys = e.seg[:0], e.key[:0]
		}
	}
	return q.At(q.Tail)
}

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
	e := q.free()
	e.Status, e.Done = StatusSuccess, false
	e.Segs, e.LKeys = e.Segs[:0], e.LKeys[:0]
	return e
}

// Hide queues an empty message without a completion.
func (q *SendQueue) Hide(op Opcode) {
	e := q.free()
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
