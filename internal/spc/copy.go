package spc

import "encoding/binary"

// CopyHeader is the header of the EXTENDED COPY (LID1) parameter list (SPC-4
// §6.4.2):
//
//	+--+--------------------------------------------------+
//	| 0| list identifier                                  |
//	| 1| STR(20h) | LIST ID USAGE(18h) | priority (3)     |
//	| 2| CSCD (target) descriptor list length (2)         |
//	| 8| segment descriptor list length (4)               |
//	|12| inline data length (4)                           |
//	|16| target descriptors, segment descriptors, data    |
//	+--+--------------------------------------------------+
type CopyHeader struct {
	ListID                        uint8
	ListIDUsage                   uint8 // 0: results are held, 2: not held, 3: no list identifier
	TargetLen, SegmentLen, Inline uint32
}

// CopyHeaderLen is the length of CopyHeader on the wire.
const CopyHeaderLen = 16

// Append adds the header.
func (h *CopyHeader) Append(dst []byte) []byte {
	dst = append(dst, h.ListID, h.ListIDUsage&3<<3)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.TargetLen))
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, h.SegmentLen)
	return binary.BigEndian.AppendUint32(dst, h.Inline)
}

// ParseCopyHeader decodes the header of a list that may be longer.
func ParseCopyHeader(b []byte) (CopyHeader, error) {
	if len(b) < CopyHeaderLen {
		return CopyHeader{}, ErrListLength
	}
	return CopyHeader{
		ListID: b[0], ListIDUsage: b[1] >> 3 & 3, TargetLen: uint32(binary.BigEndian.Uint16(b[2:])),
		SegmentLen: binary.BigEndian.Uint32(b[8:]), Inline: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

// Descriptor types of EXTENDED COPY.
const (
	CopyTargetIdent  = 0xE4 // identification descriptor target
	CopyBlockToBlock = 0x02 // segment: block to block, in blocks
	CopyBlockOffset  = 0x0A // segment: block to block, in bytes
)

// CopyTargetLen is the length of an identification descriptor target:
//
//	+--+------------------------------------------------------+
//	| 0| E4h                                                  |
//	| 1| LU ID type | NUL | device type                       |
//	| 4| designator: code set, type, 0, length, up to 20 bytes|
//	|28| PAD(04h) | block length (3 bytes)                    |
//	+--+------------------------------------------------------+
const CopyTargetLen = 32

// AppendCopyTarget adds a target descriptor for a block device.
func AppendCopyTarget(dst []byte, d Designator, blockSize uint32) []byte {
	i := len(dst)
	dst = append(dst, CopyTargetIdent, 0, 0, 0)
	dst = d.Append(dst)
	for len(dst) < i+28 {
		dst = append(dst, 0)
	}
	return append(dst[:i+28], 0, byte(blockSize>>16), byte(blockSize>>8), byte(blockSize))
}

// CopySegment is a block to block segment descriptor:
//
//	 type 02h                               type 0Ah
//	+--+------------------------------+    +--+------------------------------+
//	| 0| 02h | DC(02h) CAT(01h)       |    | 0| 0Ah | CAT                    |
//	| 2| length 0018h                 |    | 2| length 001Ch                 |
//	| 4| source, destination index    |    | 4| source, destination index    |
//	|10| blocks (2)                   |    | 8| bytes (4)                    |
//	|12| source LBA (8)               |    |12| source LBA (8)               |
//	|20| destination LBA (8)          |    |20| destination LBA (8)          |
//	|  |                              |    |28| source, destination offset   |
//	+--+------------------------------+    +--+------------------------------+
type CopySegment struct {
	Type           uint8
	DC             bool // blocks are those of the destination
	Src, Dst       uint16
	Blocks         uint16 // type 02h
	Bytes          uint32 // type 0Ah
	SrcLBA, DstLBA uint64
	SrcOff, DstOff uint16 // type 0Ah, bytes
}

// Append adds the segment descriptor.
func (s *CopySegment) Append(dst []byte) []byte {
	n := uint16(0x18)
	if s.Type == CopyBlockOffset {
		n = 0x1C
	}
	be := binary.BigEndian
	dst = be.AppendUint16(append(dst, s.Type, bit(s.DC, 2)), n)
	dst = be.AppendUint16(be.AppendUint16(dst, s.Src), s.Dst)
	if s.Type == CopyBlockOffset {
		dst = be.AppendUint32(dst, s.Bytes)
	} else {
		dst = be.AppendUint16(append(dst, 0, 0), s.Blocks)
	}
	dst = be.AppendUint64(be.AppendUint64(dst, s.SrcLBA), s.DstLBA)
	if s.Type == CopyBlockOffset {
		dst = be.AppendUint16(be.AppendUint16(dst, s.SrcOff), s.DstOff)
	}
	return dst
}

// ParseCopySegment decodes the segment descriptor at the front of b; n is its
// length. known is false for other types, whose n is right all the same.
func ParseCopySegment(b []byte) (s CopySegment, n int, known bool, err error) {
	if len(b) < 4 {
		return s, 0, false, ErrListLength
	}
	n = 4 + int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b) {
		return s, 0, false, ErrListLength
	}
	s.Type, s.DC = b[0], b[1]&2 != 0
	be := binary.BigEndian
	switch {
	case s.Type == CopyBlockToBlock && n == 28:
		s.Blocks = be.Uint16(b[10:])
	case s.Type == CopyBlockOffset && n == 32:
		s.Bytes = be.Uint32(b[8:])
		s.SrcOff, s.DstOff = be.Uint16(b[28:]), be.Uint16(b[30:])
	case s.Type == CopyBlockToBlock, s.Type == CopyBlockOffset:
		return s, n, true, ErrListLength
	default:
		return s, n, false, nil
	}
	s.Src, s.Dst = be.Uint16(b[4:]), be.Uint16(b[6:])
	s.SrcLBA, s.DstLBA = be.Uint64(b[12:]), be.Uint64(b[20:])
	return s, n, true, nil
}
