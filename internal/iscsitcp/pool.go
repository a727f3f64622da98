package iscsitcp

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"softiser/internal/iscsi"
)

// Receive buffers come in powers of two from 512 bytes up, shared by all
// connections: an idle connection holds none.
const (
	minBufferBits = 9
	maxBufferBits = 25 // AHS and the longest data segment: 1020 + 2^24-1
)

type buffer struct{ b []byte }

var (
	buffers    [maxBufferBits - minBufferBits + 1]sync.Pool
	buffersOut atomic.Int64
)

// BuffersOut returns how many receive buffers are in use in this process. It is
// 0 when every received PDU has been released.
func BuffersOut() int64 { return buffersOut.Load() }

// class is the index in buffers for n bytes.
func class(n int) int { return max(bits.Len(uint(n-1)), minBufferBits) - minBufferBits }

// bufferLen is the length of the buffer for n bytes.
func bufferLen(n int) int { return 1 << (class(n) + minBufferBits) }

func getBuffer(n int) *buffer {
	class := class(n)
	buffersOut.Add(1)
	if b, _ := buffers[class].Get().(*buffer); b != nil {
		return b
	}
	return &buffer{make([]byte, bufferLen(n))}
}

func putBuffer(b *buffer) {
	buffersOut.Add(-1)
	buffers[bits.Len(uint(len(b.b)-1))-minBufferBits].Put(b)
}

// inPDU is a received PDU on its way up.
type inPDU struct {
	pdu     iscsi.PDU
	buf     *buffer
	memory  iscsi.Memory     // of which the buffer is reserved; nil: it is not
	recycle func(*iscsi.PDU) // made once
}

var inPDUs sync.Pool

// newInPDU returns a PDU with room for n bytes of AHS and data.
func newInPDU(n int) *inPDU {
	p, _ := inPDUs.Get().(*inPDU)
	if p == nil {
		p = &inPDU{}
		p.recycle = p.free
	}
	p.pdu = iscsi.PDU{Recycle: p.recycle}
	if n > 0 {
		p.buf = getBuffer(n)
	}
	return p
}

// roomFree is how much of a PDU each connection has room for in any case: what a
// login or a small command needs.
const roomFree = 8192 + iscsi.MaxAHSLen

// inPDU is newInPDU for a PDU of the peer: a large one takes from what all peers
// have together. It reports whether there was room; without, the PDU has none.
func (r *receiver) inPDU(n int) (p *inPDU, room bool) {
	c := r.c
	if n <= roomFree || c.cfg.Memory == nil {
		return newInPDU(n), true
	}
	if !c.cfg.Memory.Reserve(bufferLen(n)) {
		return newInPDU(0), false
	}
	p = newInPDU(n)
	p.memory = c.cfg.Memory
	return p, true
}

// free is the PDU's Recycle.
func (p *inPDU) free(*iscsi.PDU) {
	if p.memory != nil {
		p.memory.Unreserve(len(p.buf.b))
		p.memory = nil
	}
	if p.buf != nil {
		putBuffer(p.buf)
		p.buf = nil
	}
	inPDUs.Put(p)
}
