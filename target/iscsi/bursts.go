package iscsi

import (
	"sync"

	"softiser/blockdev"
)

// burstPool lends buffers for unsolicited data. It counts what is out, so that
// tests see a leak.
type burstPool struct {
	memory *blockdev.Pool // of which what is out is reserved

	mu   sync.Mutex
	free [][]byte // guarded by mu
	out  int      // guarded by mu
}

// keepBursts is how many idle buffers are kept.
const keepBursts = 64

// get returns an empty buffer with room for n bytes; nil when the memory that all
// peers have together is used up.
func (p *burstPool) get(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b []byte
	l := len(p.free)
	if l > 0 && cap(p.free[l-1]) >= n {
		b = p.free[l-1]
		n = cap(b)
	}
	if !p.memory.Reserve(n) {
		return nil
	}
	p.out++
	if b == nil {
		return make([]byte, 0, n)
	}
	p.free = p.free[:l-1]
	return b[:0]
}

func (p *burstPool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	p.memory.Unreserve(cap(b))
	if len(p.free) < keepBursts {
		p.free = append(p.free, b)
	}
}

// burstsDue counts the tasks of a session whose unsolicited data is on its way.
type burstsDue struct {
	all      int
	stalling int // of these: tasks that hold up the order, see flagStall
}

// add counts a task; stalls is its flagStall.
func (b *burstsDue) add(stalls bool) {
	b.all++
	if stalls {
		b.stalling++
	}
}

// remove counts off a task that has come to the device server, or has ended. The caller
// delivers what is held.
func (b *burstsDue) remove(stalls bool) {
	b.all--
	if stalls {
		b.stalling--
	}
}

// dropBurstLocked gives the collected data of k back. The caller holds sess.mu.
func (k *task) dropBurstLocked() {
	if k.unsol.buf != nil {
		k.session().srv.bursts.put(k.unsol.buf)
		k.unsol.buf = nil
	}
}
