package target

import "sync"

// burstPool lends buffers for unsolicited data. It counts what is out, so that
// tests see a leak.
type burstPool struct {
	mu   sync.Mutex
	free [][]byte // guarded by mu
	out  int      // guarded by mu
}

// keepBursts is how many idle buffers are kept.
const keepBursts = 64

// get returns an empty buffer with room for n bytes.
func (p *burstPool) get(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out++
	if l := len(p.free); l > 0 && cap(p.free[l-1]) >= n {
		b := p.free[l-1]
		p.free = p.free[:l-1]
		return b[:0]
	}
	return make([]byte, 0, n)
}

func (p *burstPool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	if len(p.free) < keepBursts {
		p.free = append(p.free, b)
	}
}

func (p *burstPool) outstanding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}
