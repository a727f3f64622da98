package verbs

import (
	"math/bits"
	"sync"
)

// SendQueue is the ring of the send queue. Its counters only grow, and wrap:
//
//	Head          Next          Tail
//	 | built,      | not built,  |
//	 | not ended   | or in part  |
//
// It is guarded by QP.Mu; Next is advanced by whoever transmits. Its memory comes in pieces, which
// are lent: a piece is taken when its first entry is needed, and Rest gives all back when the queue
// is empty. So an entry does not move while somebody points at it, and many connections that are at
// work in turns use the same few pieces, which stay in the processor's cache.
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

// sqPieces are those that no queue has at the moment. Their entries refer to nothing of users.
var sqPieces = sync.Pool{New: func() any {
	p := new([sqPiece]WQE)
	for i := range p {
		e := &p[i]
		e.Segs, e.LKeys = e.seg[:0], e.key[:0]
	}
	return p
}}

// At is the entry with number i, which is in the queue.
func (q *SendQueue) At(i uint32) *WQE {
	i &= q.mask
	return &q.ring[i/sqPiece][i%sqPiece]
}

// free is the entry behind the last one.
func (q *SendQueue) free() *WQE {
	if q.Head == q.Tail {
		// Nobody has a place in an empty ring: it begins anew, so that a connection
		// with little to do needs few pieces.
		q.Head, q.Next, q.Tail = 0, 0, 0
	}
	if p := &q.ring[(q.Tail&q.mask)/sqPiece]; *p == nil {
		*p = sqPieces.Get().(*[sqPiece]WQE)
	}
	return q.At(q.Tail)
}

// Rest gives the memory of the entries back if there are none. An engine calls it when it points
// at none any more, not even at one that has ended.
func (q *SendQueue) Rest() {
	if q.Head != q.Tail {
		return
	}
	for i, p := range q.ring {
		if p == nil {
			return // those behind it have not been needed since the ring was empty
		}
		q.ring[i] = nil
		sqPieces.Put(p)
	}
}

// Empty reports whether everything has ended.
func (q *SendQueue) Empty() bool { return q.Head == q.Tail }

// used is how many entries of users there are.
func (q *SendQueue) used() uint32 { return q.Tail - q.Head - q.Hidden }

// slot is the next free entry, emptied. It becomes one of the queue by Tail++.
func (q *SendQueue) slot() *WQE {
	e := q.free()
	e.Status, e.Done, e.End = StatusSuccess, false, 0
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
