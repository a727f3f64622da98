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

func getBuffer(n int) *buffer {
	class := max(bits.Len(uint(n-1)), minBufferBits) - minBufferBits
	buffersOut.Add(1)
	if b, _ := buffers[class].Get().(*buffer); b != nil {
		return b
	}
	return &buffer{make([]byte, 1<<(class+minBufferBits))}
}

func putBuffer(b *buffer) {
	buffersOut.Add(-1)
	buffers[bits.Len(uint(len(b.b)-1))-minBufferBits].Put(b)
}

// inPDU is a received PDU on its way up.
type inPDU struct {
	pdu     iscsi.PDU
	buf     *buffer
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

// free is the PDU's Recycle.
func (p *inPDU) free(*iscsi.PDU) {
	if p.buf != nil {
		putBuffer(p.buf)
		p.buf = nil
	}
	inPDUs.Put(p)
}
