package volume

import (
	"time"

	"softiser/blockdev"
	"softiser/internal/cores"
)

// Short reads of data that is not in memory go through a queue of their own where reads can be
// announced to the device (blockdev.Announcer). The first worker that is free announces all new
// reads, so that storage begins all of them. Then a few workers, half as many as Go has
// processors, wait for one read after the other, and answer those that are done together:
//
//	ToReader --> fresh --(announced)--> waiting --(its turn: lease)--> answered
//
// Thus the disk sees the queue depth of the initiator, while few threads wait: a thread in a
// system call keeps a processor of Go's scheduler until that is taken away from it, which
// costs more than the read. If a read is stuck, those behind it get workers after readStuck.
const (
	shortRead    = 16 << 10 // bytes
	announceMost = 32       // reads that a worker announces before it looks at the queue again
	readStuck    = 5 * time.Millisecond
)

// read is a read of the medium that a command waits for.
type read struct {
	from   blockdev.Announcer // nil: none
	blocks *badBlocks
	lease  *blockdev.Lease // the command's
	off    int64
	n      int
	lent   bool // a worker has filled the lease
}

// lend fills the lease if that takes no waiting, and reports whether it has.
func (r *read) lend() bool {
	r.lent = r.blocks.marks.Load() == nil && r.from.LeaseCached(r.lease, r.off, r.n) == nil
	return r.lent
}

// Lent reports whether the worker that calls Step now has filled the lease that ToReader was given.
func (o *Op) Lent() bool { return o.read.lent }

// reads are the short reads of a pool; pool.mu guards them.
type reads struct {
	fresh   opQueue // not announced
	waiting opQueue // announced
	called  bool    // a worker is to come for what is fresh
	readers int     // workers that wait for a read
	usual   int     // how many there may be unless one is stuck
	stuck   bool    // one is stuck: every worker may become a reader
	taken   uint64  // reads that readers have taken
	seen    uint64  // taken when the watch was set
	watched bool
	watch   *time.Timer // nil before it is needed
}

// init says how many readers there are.
func (r *reads) init() { r.usual = max(cores.Count()/2, 1) }

// announcer returns what d can be told; nil: nothing.
func announcer(d blockdev.Device) blockdev.Announcer {
	if a, ok := d.(blockdev.Announcer); ok && a.Announces() {
		return a
	}
	return nil
}

// drop takes an aborted command out of the queue.
func (r *reads) drop(o *Op) {
	if !r.fresh.remove(o) {
		r.waiting.remove(o)
	}
	if r.fresh.head == nil {
		r.called = false // who has been called finds nothing to announce
	}
	o.read = read{}
}

// mostReadersLocked is how many workers may wait for a read now.
func (p *pool) mostReadersLocked() int {
	if p.reads.stuck {
		return p.most
	}
	return min(p.reads.usual, p.most)
}

// readableLocked reports whether a worker may take a read.
func (p *pool) readableLocked() bool {
	return p.reads.waiting.head != nil && p.reads.readers < p.mostReadersLocked()
}
