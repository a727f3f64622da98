package wire

import "encoding/binary"

// Lengths of the RDMAP headers behind the untagged DDP header.
const (
	ReadReqLen    = 28
	ImmLen        = 8
	AtomicReqLen  = 52
	AtomicRespLen = 12
)

// ReadReq is the RDMA Read Request header (RFC 5040 §4.4).
//
//	+---------------------------------------------------------------+
//	|                     Data Sink STag                            |
//	+---------------------------------------------------------------+
//	|                     Data Sink Tagged Offset (8)               |
//	+---------------------------------------------------------------+
//	|                     RDMA Read Message Size                    |
//	+---------------------------------------------------------------+
//	|                     Data Source STag                          |
//	+---------------------------------------------------------------+
//	|                     Data Source Tagged Offset (8)             |
//	+---------------------------------------------------------------+
type ReadReq struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32
	SrcSTag  uint32
	SrcTO    uint64
}

// Append appends the header to b.
func (h *ReadReq) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, h.SinkTO)
	b = binary.BigEndian.AppendUint32(b, h.Size)
	b = binary.BigEndian.AppendUint32(b, h.SrcSTag)
	return binary.BigEndian.AppendUint64(b, h.SrcTO)
}

// Parse reads the header from the first ReadReqLen bytes of b.
func (h *ReadReq) Parse(b []byte) {
	_ = b[ReadReqLen-1]
	h.SinkSTag = binary.BigEndian.Uint32(b)
	h.SinkTO = binary.BigEndian.Uint64(b[4:])
	h.Size = binary.BigEndian.Uint32(b[12:])
	h.SrcSTag = binary.BigEndian.Uint32(b[16:])
	h.SrcTO = binary.BigEndian.Uint64(b[20:])
}

// AtomicOp is the AOpCode of an Atomic Request (RFC 7306 §5.1).
type AtomicOp uint8

// Atomic operations. 1 is reserved.
const (
	FetchAdd AtomicOp = 0
	CmpSwap  AtomicOp = 2
)

// Atomic is the Atomic Request header (RFC 7306 §5.1).
//
//	+---------------------------------------------------------------+
//	|                 Reserved (28 bits)                    |AOpCode|
//	+---------------------------------------------------------------+
//	|                      Request Identifier                       |
//	+---------------------------------------------------------------+
//	|                          Remote STag                          |
//	+---------------------------------------------------------------+
//	|                     Remote Tagged Offset (8)                  |
//	+---------------------------------------------------------------+
//	|                     Add or Swap Data (8)                      |
//	+---------------------------------------------------------------+
//	|                     Add or Swap Mask (8)                      |
//	+---------------------------------------------------------------+
//	|                     Compare Data (8)                          |
//	+---------------------------------------------------------------+
//	|                     Compare Mask (8)                          |
//	+---------------------------------------------------------------+
type Atomic struct {
	Op          AtomicOp
	ID          uint32
	STag        uint32
	TO          uint64
	Data        uint64 // value to add or to swap in
	Mask        uint64 // FetchAdd: top bits of fields; CmpSwap: bits to swap
	Compare     uint64
	CompareMask uint64
}

// Append appends the header to b.
func (h *Atomic) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.Op))
	b = binary.BigEndian.AppendUint32(b, h.ID)
	b = binary.BigEndian.AppendUint32(b, h.STag)
	b = binary.BigEndian.AppendUint64(b, h.TO)
	b = binary.BigEndian.AppendUint64(b, h.Data)
	b = binary.BigEndian.AppendUint64(b, h.Mask)
	b = binary.BigEndian.AppendUint64(b, h.Compare)
	return binary.BigEndian.AppendUint64(b, h.CompareMask)
}

// Parse reads the header from the first AtomicReqLen bytes of b.
func (h *Atomic) Parse(b []byte) {
	_ = b[AtomicReqLen-1]
	h.Op = AtomicOp(binary.BigEndian.Uint32(b) & 15)
	h.ID = binary.BigEndian.Uint32(b[4:])
	h.STag = binary.BigEndian.Uint32(b[8:])
	h.TO = binary.BigEndian.Uint64(b[12:])
	h.Data = binary.BigEndian.Uint64(b[20:])
	h.Mask = binary.BigEndian.Uint64(b[28:])
	h.Compare = binary.BigEndian.Uint64(b[36:])
	h.CompareMask = binary.BigEndian.Uint64(b[44:])
}

// AtomicReply is the Atomic Response header (RFC 7306 §5.2).
//
//	+---------------------------------------------------------------+
//	|                  Original Request Identifier                  |
//	+---------------------------------------------------------------+
//	|                  Original Remote Data Value (8)               |
//	+---------------------------------------------------------------+
type AtomicReply struct {
	ID    uint32
	Value uint64
}

// Append appends the header to b.
func (h *AtomicReply) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.ID)
	return binary.BigEndian.AppendUint64(b, h.Value)
}

// Parse reads the header from the first AtomicRespLen bytes of b.
func (h *AtomicReply) Parse(b []byte) {
	_ = b[AtomicRespLen-1]
	h.ID = binary.BigEndian.Uint32(b)
	h.Value = binary.BigEndian.Uint64(b[4:])
}

// Apply returns what the word becomes that held old (RFC 7306 §5.1.1, §5.1.2).
// A set bit of a FetchAdd mask is the top bit of a field, out of which no carry
// passes; a CmpSwap compares and swaps the bits of its masks only.
func (h *Atomic) Apply(old uint64) uint64 {
	if h.Op == CmpSwap {
		if (old^h.Compare)&h.CompareMask != 0 {
			return old
		}
		return old&^h.Mask | h.Data&h.Mask
	}
	// Add without the top bits, so that no carry leaves a field; then add those
	// without carry.
	low := (old &^ h.Mask) + (h.Data &^ h.Mask)
	return low ^ (old^h.Data)&h.Mask
}
