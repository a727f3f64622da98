package iwarp

import (
	"sync"
	"sync/atomic"

	"softiser/rdma/internal/mem"
)

// lendList is what a queue pair knows of the memory of directMin bytes and more
// that its peer may be about to fill: windows for RDMA Writes, sinks of our Reads.
// The receiver chooses by it how to read, see peekLen and guess.
type lendList struct {
	sum   atomic.Int64 // pieces of memory times lentPiece, and their length, in one number
	sinks atomic.Int64 // pieces that are sinks

	// mu guards the list of AccessScratch windows in which nothing has been placed
	// yet, in the order in which they were bound: a target that answers in order
	// fills them in that order. It is taken with a region locked; inside it another one
	// is only tried (see the lock order in gate.go).
	mu         sync.Mutex
	head, tail *mem.Region
}

// lentPiece counts a piece in lendList.sum: the bytes below it are enough for 16 TiB.
const lentPiece = 1 << 44

// lent is how many pieces of memory are lent, and their length.
func (l *lendList) lent() (n, bytes int64) {
	s := l.sum.Load()
	return s / lentPiece, s % lentPiece
}

// opened counts the memory of r as lent to the peer.
func (l *lendList) opened(r *mem.Region) {
	if !lends(r) {
		return
	}
	l.sum.Add(lentPiece + int64(r.Size()))
	if r.Access()&mem.Sink != 0 {
		l.sinks.Add(1)
	}
	if r.Access()&(mem.Scratch|mem.RemoteWrite) != mem.Scratch|mem.RemoteWrite {
		return
	}
	l.mu.Lock()
	if r.Link.Prev = l.tail; l.tail == nil {
		l.head = r
	} else {
		l.tail.Link.Next = r
	}
	l.tail = r
	r.Link.Listed.Store(true)
	l.mu.Unlock()
}

// closed undoes opened.
func (l *lendList) closed(r *mem.Region) {
	if !lends(r) {
		return
	}
	l.sum.Add(-lentPiece - int64(r.Size()))
	if r.Access()&mem.Sink != 0 {
		l.sinks.Add(-1)
	}
	l.placed(r)
}

// lends reports whether the peer may fill r, and with so much that it matters.
func lends(r *mem.Region) bool {
	return r.Size() >= directMin && r.Access()&(mem.RemoteWrite|mem.Sink) != 0
}

// placed takes r off the list: it holds data now, or is gone.
func (l *lendList) placed(r *mem.Region) {
	if r.Link.Listed.Load() {
		l.mu.Lock()
		l.dropLocked(r)
		l.mu.Unlock()
	}
}

func (l *lendList) dropLocked(r *mem.Region) {
	k := &r.Link
	if !k.Listed.Load() {
		return
	}
	if k.Prev == nil {
		l.head = k.Next
	} else {
		k.Prev.Link.Next = k.Next
	}
	if k.Next == nil {
		l.tail = k.Prev
	} else {
		k.Next.Link.Prev = k.Prev
	}
	k.Prev, k.Next = nil, nil
	k.Listed.Store(false)
}
