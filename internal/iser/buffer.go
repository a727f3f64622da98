package iser

import (
	"sync"
	"sync/atomic"
)

// Messages longer than an op's inline memory (logins, text, unsolicited data) are
// built in buffers shared by all connections.
var (
	buffers    sync.Pool // of *buffer
	shells     sync.Pool // of *buffer without memory
	buffersOut atomic.Int64
)

const sendBufLen = recvBufLen + 4

type buffer struct{ b []byte }

// BuffersOut returns how many send buffers are in use in this process.
func BuffersOut() int64 { return buffersOut.Load() }

// getBuffer returns an empty slice with room for n ≤ sendBufLen bytes.
func getBuffer(n int) []byte {
	buffersOut.Add(1)
	p, _ := buffers.Get().(*buffer)
	if p == nil {
		return make([]byte, 0, max(n, sendBufLen))
	}
	b := p.b
	p.b = nil
	shells.Put(p)
	return b[:0]
}

func putBuffer(b []byte) {
	buffersOut.Add(-1)
	p, _ := shells.Get().(*buffer)
	if p == nil {
		p = &buffer{}
	}
	p.b = b
	buffers.Put(p)
}
