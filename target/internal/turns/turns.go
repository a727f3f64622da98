// Package turns has a few goroutines do the expensive work that peers can ask for before
// they have proved anything: how many peers ask, and how often, only makes those wait who
// ask most.
package turns

import (
	"net/netip"
	"sync"
)

// Pool does work for origins in turn: of those that wait, none is served twice before
// another has been served once, and none has all workers while others may come. Goroutines
// exist only while there is work. It is safe for concurrent use.
//
// It does not bound how much work waits. Whoever hands it in has at most one piece under
// way for each connection, and connections are bounded.
type Pool struct {
	workers int // at once, of all origins
	share   int // at once, of one

	mu      sync.Mutex
	running int                      // guarded by mu: goroutines
	origins map[netip.Prefix]*origin // guarded by mu: those that have work
	ring    []*origin                // guarded by mu: those with work that waits, who is next first
	done    uint64                   // guarded by mu
	most    int                      // guarded by mu: pieces that were under way at once
	busy    int                      // guarded by mu: pieces under way
}

type origin struct {
	name  netip.Prefix
	wait  []func()
	busy  int  // pieces of it under way
	queue bool // it is in the ring
}

// New makes a pool of at most so many workers, of which an origin has half.
func New(workers int) *Pool {
	workers = max(workers, 1)
	return &Pool{workers: workers, share: max(workers/2, 1), origins: map[netip.Prefix]*origin{}}
}

// Do has f called soon, on a goroutine of the pool.
func (p *Pool) Do(from netip.Prefix, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.origins[from]
	if o == nil {
		o = &origin{name: from}
		p.origins[from] = o
	}
	o.wait = append(o.wait, f)
	p.enqueueLocked(o)
	if p.running < p.workers && len(p.ring) > 0 {
		p.running++
		go p.work()
	}
}

// enqueueLocked puts an origin that may be served into the ring.
func (p *Pool) enqueueLocked(o *origin) {
	if !o.queue && len(o.wait) > 0 && o.busy < p.share {
		o.queue = true
		p.ring = append(p.ring, o)
	}
}

// work is a worker: it runs the oldest work of one owner after the other, until there is none.
func (p *Pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ring) > 0 {
		o := p.ring[0]
		p.ring = p.ring[1:]
		f := o.wait[0]
		o.wait[0] = nil
		o.wait, o.queue = o.wait[1:], false
		o.busy++
		p.busy++
		p.most = max(p.most, p.busy)
		p.enqueueLocked(o)
		p.mu.Unlock()
		f()
		p.mu.Lock()
		p.busy--
		p.done++
		o.busy--
		p.enqueueLocked(o)
		if o.busy == 0 && len(o.wait) == 0 {
			delete(p.origins, o.name)
		}
	}
	p.running--
}

// Stats are figures of a pool.
type Stats struct {
	Done    uint64 // pieces of work
	Waiting int    // pieces that have not begun
	Most    int    // pieces that were under way at once
	Workers int    // how many may be
}

// Stats returns the figures.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Done: p.done, Most: p.most, Workers: p.workers}
	for _, o := range p.origins {
		s.Waiting += len(o.wait)
	}
	return s
}
