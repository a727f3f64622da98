package wire

import "encoding/binary"

// Sizes in bytes.
const (
	LenField    = 2  // ULPDU_Length
	CRCLen      = 4  // CRC32C behind the pad
	TaggedLen   = 14 // DDP header of a tagged segment, control word included
	UntaggedLen = 18 // DDP header of an untagged segment, control word included
	MaxHdr      = LenField + UntaggedLen + AtomicReqLen
	MaxULPDU    = 64768 // RFC 5044 §5: largest ULPDU that MPA accepts to send
)

// Tagged is the DDP header of a tagged segment (RFC 5041 §4.2) behind the
// ULPDU_Length.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-------------------------------+
//	                                |            control            |
//	+-------------------------------+-------------------------------+
//	|                             STag                              |
//	+---------------------------------------------------------------+
//	|                                                               |
//	+                        Tagged Offset                          +
//	|                                                               |
//	+---------------------------------------------------------------+
type Tagged struct {
	Ctrl Control
	STag uint32
	TO   uint64
}

// Append appends the header to b.
func (h *Tagged) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(h.Ctrl))
	b = binary.BigEndian.AppendUint32(b, h.STag)
	return binary.BigEndian.AppendUint64(b, h.TO)
}

// Parse reads the header from the first TaggedLen bytes of b.
func (h *Tagged) Parse(b []byte) {
	_ = b[TaggedLen-1]
	h.Ctrl = Control(binary.BigEndian.Uint16(b))
	h.STag = binary.BigEndian.Uint32(b[2:])
	h.TO = binary.BigEndian.Uint64(b[6:])
}

// Untagged is the DDP header of an untagged segment (RFC 5041 §4.3).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-------------------------------+
//	                                |            control            |
//	+-------------------------------+-------------------------------+
//	|       RsvdULP: Invalidate STag (RFC 5040 §4.1), else 0        |
//	+---------------------------------------------------------------+
//	|                         Queue Number                          |
//	+---------------------------------------------------------------+
//	|                    Message Sequence Number                    |
//	+---------------------------------------------------------------+
//	|                        Message Offset                         |
//	+---------------------------------------------------------------+
type Untagged struct {
	Ctrl Control
	Inv  uint32 // STag to invalidate
	QN   uint32
	MSN  uint32
	MO   uint32
}

// Append appends the header to b.
func (h *Untagged) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(h.Ctrl))
	b = binary.BigEndian.AppendUint32(b, h.Inv)
	b = binary.BigEndian.AppendUint32(b, h.QN)
	b = binary.BigEndian.AppendUint32(b, h.MSN)
	return binary.BigEndian.AppendUint32(b, h.MO)
}

// Parse reads the header from the first UntaggedLen bytes of b.
func (h *Untagged) Parse(b []byte) {
	_ = b[UntaggedLen-1]
	h.Ctrl = Control(binary.BigEndian.Uint16(b))
	h.Inv = binary.BigEndian.Uint32(b[2:])
	h.QN = binary.BigEndian.Uint32(b[6:])
	h.MSN = binary.BigEndian.Uint32(b[10:])
	h.MO = binary.BigEndian.Uint32(b[14:])
}

// Pad is the number of pad bytes of an FPDU whose ULPDU has n bytes (RFC 5044
// §4.1): length field, ULPDU and pad together are a multiple of four.
func Pad(n int) int { return -(n + LenField) & 3 }

// FPDULen is the length of the whole FPDU of a ULPDU of n bytes.
func FPDULen(n int) int { return LenField + n + Pad(n) + CRCLen }
