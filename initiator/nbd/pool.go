package nbd

import (
	"fmt"
	"math/bits"
	"syscall"
)

// pool hands out page-aligned payload buffers in powers of two, all together
// at most limit bytes. Freed buffers are kept for the next request of their
// size and given back to the system when another size needs the room. The
// connection's lock guards it.
type pool struct {
	limit int
	held  int // bytes mapped
	out   int // buffers on loan
	free  [poolClasses][][]byte
}

const (
	minBuffer   = 12 // 4 KiB
	maxBuffer   = 25 // 32 MiB = maxPayload
	poolClasses = maxBuffer - minBuffer + 1
)

func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minBuffer) - minBuffer }

// get returns a buffer of at least n ≤ maxPayload bytes, nil when the limit is
// reached, or an error when the system has no memory.
func (p *pool) get(n int) ([]byte, error) {
	k := classOf(n)
	if f := p.free[k]; len(f) > 0 {
		b := f[len(f)-1]
		p.free[k] = f[:len(f)-1]
		p.out++
		return b, nil
	}
	size := 1 << (k + minBuffer)
	for i := range p.free {
		for p.held+size > p.limit && len(p.free[i]) > 0 {
			f := p.free[i]
			p.unmap(f[len(f)-1])
			p.free[i] = f[:len(f)-1]
		}
	}
	if p.held+size > p.limit {
		return nil, nil
	}
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("nbd: buffer of %d bytes: %w", size, err)
	}
	p.held += size
	p.out++
	return b, nil
}

// put takes a buffer back.
func (p *pool) put(b []byte) {
	k := classOf(cap(b))
	p.free[k] = append(p.free[k], b[:cap(b)])
	p.out--
}

func (p *pool) unmap(b []byte) {
	p.held -= cap(b)
	syscall.Munmap(b[:cap(b)])
}

// drop gives every free buffer back to the system.
func (p *pool) drop() {
	for i := range p.free {
		for _, b := range p.free[i] {
			p.unmap(b)
		}
		p.free[i] = nil
	}
}
