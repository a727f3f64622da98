package iser

import (
	"encoding/binary"
	"errors"
	"fmt"

	"softiser/internal/iscsi"
)

// HeaderLen is the length of the header in front of every BHS.
const HeaderLen = 28

// Version is the iSER version (RFC 7145 §9.3).
const Version = 10

// Message types and flags, the first byte of a header.
const (
	typeControl    = 0x10
	typeHello      = 0x20
	typeHelloReply = 0x30
	typeMask       = 0xf0

	flagWSV    = 0x08 // control: Write STag valid
	flagRSV    = 0x04 // control: Read STag valid
	flagReject = 0x01 // HelloReply: connection refused
)

// header is the iSER header of a control-type PDU (RFC 7145 §9.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-----------------------------------------------+
//	| 0001b |W|R|rsv|                 Reserved                      |
//	|       |S|S|   |                                               |
//	|       |V|V|   |                                               |
//	+---------------------------------------------------------------+
//	|                      Write STag or N/A                        |
//	+---------------------------------------------------------------+
//	|                  Write Base Offset or N/A                     |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                      Read STag or N/A                         |
//	+---------------------------------------------------------------+
//	|                   Read Base Offset or N/A                     |
//	|                                                               |
//	+---------------------------------------------------------------+
type header struct {
	stags
	wsv, rsv bool
}

// stags are the buffers of a command that its header advertises. They go through the
// layers above as the Ref of the command.
type stags struct {
	WriteSTag, ReadSTag uint32
	WriteBase, ReadBase uint64
}

func (s *stags) ref() iscsi.Ref {
	return iscsi.Ref{uint64(s.WriteSTag)<<32 | uint64(s.ReadSTag), s.WriteBase, s.ReadBase}
}

// stagsOf is the reverse of ref; there are none in a nil one.
func stagsOf(r *iscsi.Ref) stags {
	if r == nil {
		return stags{}
	}
	return stags{WriteSTag: uint32(r[0] >> 32), ReadSTag: uint32(r[0]), WriteBase: r[1], ReadBase: r[2]}
}

// append appends the header's bytes.
func (h *header) append(b []byte) []byte {
	f := byte(typeControl)
	if h.wsv {
		f |= flagWSV
	}
	if h.rsv {
		f |= flagRSV
	}
	b = append(b, f, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.WriteSTag)
	b = binary.BigEndian.AppendUint64(b, h.WriteBase)
	b = binary.BigEndian.AppendUint32(b, h.ReadSTag)
	return binary.BigEndian.AppendUint64(b, h.ReadBase)
}

// parse reads the header of a control-type PDU; fields without their valid bit
// are left zero. b has HeaderLen bytes.
func (h *header) parse(b []byte) {
	*h = header{wsv: b[0]&flagWSV != 0, rsv: b[0]&flagRSV != 0}
	if h.wsv {
		h.WriteSTag = binary.BigEndian.Uint32(b[4:])
		h.WriteBase = binary.BigEndian.Uint64(b[8:])
	}
	if h.rsv {
		h.ReadSTag = binary.BigEndian.Uint32(b[16:])
		h.ReadBase = binary.BigEndian.Uint64(b[20:])
	}
}

// hello is a Hello (from the initiator) or HelloReply (RFC 7145 §9.3, §9.4).
//
//	+---------------+---------------+---------------+---------------+
//	| 0010b |  Rsvd | MaxVer|MinVer |           iSER-IRD            |
//	+---------------+---------------+---------------+---------------+
//	| 0011b |Rsvd |R| MaxVer|CurVer |           iSER-ORD            |
//	+---------------+---------------+---------------+---------------+
//	|                    Reserved, 24 bytes                         |
//	+---------------------------------------------------------------+
type hello struct {
	reply  bool
	reject bool
	maxVer uint8
	ver    uint8 // MinVer, CurVer
	depth  uint16
}

func (h *hello) append(b []byte) []byte {
	f := byte(typeHello)
	if h.reply {
		f = typeHelloReply
	}
	if h.reject {
		f |= flagReject
	}
	b = append(b, f, h.maxVer<<4|h.ver&0xf)
	b = binary.BigEndian.AppendUint16(b, h.depth)
	return append(b, make([]byte, HeaderLen-4)...)
}

func (h *hello) parse(b []byte) {
	*h = hello{reply: b[0]&typeMask == typeHelloReply, maxVer: b[1] >> 4, ver: b[1] & 0xf, depth: binary.BigEndian.Uint16(b[2:])}
	h.reject = h.reply && b[0]&flagReject != 0
}

var errFormat = errors.New("iser: malformed message")

// split cuts a received control-type message into header, BHS, AHS and data. The
// data may be padded to a multiple of four or not.
func split(b []byte) (h header, bhs *iscsi.BHS, ahs, data []byte, err error) {
	if len(b) < HeaderLen+iscsi.BHSLen {
		return h, nil, nil, nil, fmt.Errorf("%w: %d bytes; header and BHS take %d", errFormat, len(b), HeaderLen+iscsi.BHSLen)
	}
	h.parse(b)
	bhs = (*iscsi.BHS)(b[HeaderLen:])
	rest := b[HeaderLen+iscsi.BHSLen:]
	a, n := bhs.AHSLen(), bhs.DataLen()
	if n > 0 && len(rest) == a && h.wsv && bhs.Opcode() == iscsi.OpSCSICommand {
		// libiscsi 1.19 announces immediate data, leaves it out of the message and
		// points Write Base Offset at its first byte: so nothing is immediate.
		bhs.SetDataLen(0)
		n = 0
	}
	if a > len(rest) || n > len(rest)-a || len(rest)-a-n > 3 {
		return h, nil, nil, nil, fmt.Errorf("%w: %s with %d bytes of AHS and %d of data in a message with room for %d", errFormat, bhs.Opcode(), a, n, len(rest))
	}
	return h, bhs, rest[:a:a], rest[a : a+n : a+n], nil
}

// Private data of the MPA frames: what Linux calls iser_cm_hdr, one byte of flags
// and three of zero.
const (
	cmNoZBVA = 0x80 // zero-based virtual addresses are not used
	cmNoInv  = 0x40 // Send with Invalidate is not supported, or not used
)

func privateData(invalidate bool) []byte {
	f := byte(cmNoZBVA)
	if !invalidate {
		f |= cmNoInv
	}
	return []byte{f, 0, 0, 0}
}

// allowsInvalidate reads the peer's private data. A peer that sends none does not
// know about remote invalidation.
func allowsInvalidate(p []byte) bool { return len(p) > 0 && p[0]&cmNoInv == 0 }
