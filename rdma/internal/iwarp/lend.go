package iwarp

import (
	"sync"

	"softiser/rdma/internal/mem"
)

// lendList is what a queue pair knows of the memory of directMin bytes and more
// that its peer may be about to fill: windows for RDMA Writes, sinks of our Reads.
// The receiver chooses by it how to read, see peekLen and guess.
type lendList struct {
	// mu guards what follows. It is taken with a region locked; inside it another one
	// is only tried (see the lock order in gate.go).
	mu    sync.Mutex
	n     int    // pieces of memory
	bytes uint64 // their length
	sinks int    // of these pieces: sinks

	// The AccessScratch windows in which nothing has been placed yet, in the order in
	// which they were bound: a target that answers in order fills them in that order.
	// Those that a later one has overtaken are not in it: the answer takes its time, as
	// that of a slow volume beside a fast one, and guesses would wait for it.
	head, tail *mem.Region
}

// lent is how many pieces of memory are lent, how many of them are sinks, and their length.
func (l *lendList) lent() (n, sinks int, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n, l.sinks, l.bytes
}

// opened counts the memory of r as lent to the peer.
func (l *lendList) opened(r *mem.Region) {
	if !lends(r) {
		return
	}
	l.mu.Lock()
	l.n++
	l.bytes += r.Size()
	if r.Access()&mem.Sink != 0 {
		l.sinks++
	}
	if r.Access()&(mem.Scratch|mem.RemoteWrite) == mem.Scratch|mem.RemoteWrite {
		l.pushLocked(r)
	}
	l.mu.Unlock()
}

func (l *lendList) pushLocked(r *mem.Region) {
	if r.Link.Prev = l.tail; l.tail == nil {
		l.head = r
	} else {
		l.tail.Link.Next = r
	}
	l.tail = r
	r.Link.Listed = true
}

// closed undoes opened.
func (l *lendList) closed(r *mem.Region) {
	if !lends(r) {
		return
	}
	l.mu.Lock()
	l.n--
	l.bytes -= r.Size()
	if r.Access()&mem.Sink != 0 {
		l.sinks--
	}
	l.dropLocked(r)
	l.mu.Unlock()
}

// lends reports whether the peer may fill r, and with so much that it matters.
func lends(r *mem.Region) bool {
	return r.Size() >= directMin && r.Access()&(mem.RemoteWrite|mem.Sink) != 0
}

// placed takes r, which is held, off the list, and those that it has overtaken: there is data
// in it now.
func (l *lendList) placed(r *mem.Region) {
	if !lends(r) {
		return
	}
	l.mu.Lock()
	if r.Link.Listed {
		for l.head != r {
			l.dropLocked(l.head)
		}
		l.dropLocked(r)
	}
	l.mu.Unlock()
}

func (l *lendList) dropLocked(r *mem.Region) {
	k := &r.Link
	if !k.Listed {
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
	k.Listed = false
}
