package scsi

import "sync"

// bufClasses are the sizes of pooled parameter and staging buffers. Longer
// ones, which only rare commands need, are allocated.
var bufClasses = [...]int{4 << 10, 64 << 10, 1 << 20}

// bufPool lends buffers and counts what is out.
type bufPool struct {
	mu   sync.Mutex
	free [len(bufClasses)][][]byte
	out  int
}

// keepPerClass bounds the memory that an idle pool holds: 32 buffers a class,
// 4 of the largest.
func keepPerClass(c int) int {
	if c == len(bufClasses)-1 {
		return 4
	}
	return 32
}

func (p *bufPool) get(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out++
	for c, size := range bufClasses {
		if n > size {
			continue
		}
		if f := p.free[c]; len(f) > 0 {
			b := f[len(f)-1]
			p.free[c] = f[:len(f)-1]
			return b
		}
		return make([]byte, size)
	}
	return make([]byte, n)
}

func (p *bufPool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	for c, size := range bufClasses {
		if cap(b) == size && len(p.free[c]) < keepPerClass(c) {
			p.free[c] = append(p.free[c], b[:size])
			return
		}
	}
}

// stageFree is the staging buffer that every command may have, bytes.
const stageFree = 8 << 10

// stageBuf is getBuf for n bytes that the initiator is to fill, for which there must be
// room in what all initiators have together. It reports false when there is none. A
// little is free for every command: what has come with one and is to be joined with
// the rest is no longer over iSER, and the window bounds how many there are.
func (t *Task) stageBuf(n int) bool {
	t.putBuf()
	if n > stageFree {
		if !t.dev.cfg.Staging.Reserve(n) {
			return false
		}
		t.reserved = n
	}
	t.getBuf(n)
	return true
}

// getBuf lends t a buffer of at least n bytes, in t.buf with its full length.
func (t *Task) getBuf(n int) []byte {
	t.putBuf()
	t.buf = t.dev.bufs.get(n)
	return t.buf
}

func (t *Task) putBuf() {
	if t.buf != nil {
		t.dev.bufs.put(t.buf)
		t.buf = nil
		t.dev.cfg.Staging.Unreserve(t.reserved)
		t.reserved = 0
	}
}
