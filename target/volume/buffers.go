package volume

import (
	"slices"
	"sync"
)

// BufferSizes are the sizes of pooled parameter and staging buffers. Longer
// ones, which only rare commands need, are allocated.
var BufferSizes = [...]int{4 << 10, 64 << 10, 1 << 20}

// Buffers lends buffers and counts what is out. The zero value is ready.
type Buffers struct {
	mu   sync.Mutex // guards what follows
	free [len(BufferSizes)][][]byte
	out  int // buffers that are lent
}

// keepPerClass bounds the memory that an idle pool holds: 32 buffers a class,
// 4 of the largest.
func keepPerClass(c int) int {
	if c == len(BufferSizes)-1 {
		return 4
	}
	return 32
}

// BufferSize returns how long the buffer is that Get lends for n bytes.
func BufferSize(n int) int {
	for _, size := range BufferSizes {
		if n <= size {
			return size
		}
	}
	return n
}

// Get lends a buffer of at least n bytes, with its full length.
func (p *Buffers) Get(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out++
	size := BufferSize(n)
	if c := slices.Index(BufferSizes[:], size); c >= 0 && len(p.free[c]) > 0 {
		f := p.free[c]
		b := f[len(f)-1]
		p.free[c] = f[:len(f)-1]
		return b
	}
	return make([]byte, size)
}

// Put takes a buffer back.
func (p *Buffers) Put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	for c, size := range BufferSizes {
		if cap(b) == size && len(p.free[c]) < keepPerClass(c) {
			p.free[c] = append(p.free[c], b[:size])
			return
		}
	}
}

// Out returns how many buffers are lent, for leak checks.
func (p *Buffers) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}
