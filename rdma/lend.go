package rdma

import (
	"sync"
	"sync/atomic"
)

// lendList is what a queue pair knows of the memory of directMin bytes and more
// that its peer may be about to fill: windows for RDMA Writes, sinks of our Reads.
// The receiver chooses by it how to read, see peekLen and guess.
type lendList struct {
	n, bytes atomic.Int64 // pieces of memory, and their length
	sinks    atomic.Int64 // of n: sinks
	open     atomic.Int64 // length of the list

	// mu guards the list of AccessScratch windows in which nothing has been placed
	// yet, in the order in which they were bound: a target that answers in order
	// fills them in that order. It is taken with region.mu held; inside it a region.mu
	// is only tried (see the lock order at region).
	mu         sync.Mutex
	head, tail *region
}

// lendLink is a region's place in the list.
type lendLink struct {
	prev, next *region
	listed     atomic.Bool // changes under lendList.mu
}

// lendLocked counts the memory as lent to the peer of r.qp. Preconditions: r.mu is
// held.
func (r *region) lendLocked() {
	if !r.lends() {
		return
	}
	l := &r.qp.lent
	l.n.Add(1)
	l.bytes.Add(int64(r.size))
	if r.access&accessSink != 0 {
		l.sinks.Add(1)
	}
	if r.access&(AccessScratch|AccessRemoteWrite) != AccessScratch|AccessRemoteWrite {
		return
	}
	l.mu.Lock()
	if r.prev = l.tail; r.prev == nil {
		l.head = r
	} else {
		r.prev.next = r
	}
	l.tail = r
	r.listed.Store(true)
	l.open.Add(1)
	l.mu.Unlock()
}

// takeBackLocked undoes lendLocked. Preconditions: r.mu is held.
func (r *region) takeBackLocked() {
	if !r.lends() {
		return
	}
	l := &r.qp.lent
	l.n.Add(-1)
	l.bytes.Add(-int64(r.size))
	if r.access&accessSink != 0 {
		l.sinks.Add(-1)
	}
	l.placed(r)
}

func (r *region) lends() bool {
	return r.qp != nil && r.size >= directMin && r.access&(AccessRemoteWrite|accessSink) != 0
}

// placed takes r off the list: it holds data now, or is gone.
func (l *lendList) placed(r *region) {
	if r.listed.Load() {
		l.mu.Lock()
		l.dropLocked(r)
		l.mu.Unlock()
	}
}

func (l *lendList) dropLocked(r *region) {
	if !r.listed.Load() {
		return
	}
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	r.listed.Store(false)
	l.open.Add(-1)
}
