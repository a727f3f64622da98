package rdmamsg

import (
	"sync"
	"sync/atomic"
)

// sendBuffers are for messages longer than the memory inside of a Message.
type sendBuffers struct {
	size   int
	full   sync.Pool // of *buffer
	shells sync.Pool // of *buffer without memory
	out    atomic.Int64
}

type buffer struct{ b []byte }

// get returns an empty slice with room for n bytes.
func (s *sendBuffers) get(n int) []byte {
	s.out.Add(1)
	p, _ := s.full.Get().(*buffer)
	if p == nil || cap(p.b) < n {
		return make([]byte, 0, max(n, s.size))
	}
	b := p.b
	p.b = nil
	s.shells.Put(p)
	return b[:0]
}

func (s *sendBuffers) put(b []byte) {
	s.out.Add(-1)
	p, _ := s.shells.Get().(*buffer)
	if p == nil {
		p = &buffer{}
	}
	p.b = b
	s.full.Put(p)
}
