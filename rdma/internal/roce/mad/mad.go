package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes.
const (
	Len     = 256 // a MAD
	hdrLen  = 24
	dataLen = Len - hdrLen
)

// Well-known numbers of the general services interface (IBA vol. 1 §3.9.5, §10.2.5).
const (
	GSIQPN  = 1          // the queue pair that takes MADs
	GSIQKey = 0x80010000 // its Q_Key
)

// The constant part of the header.
const (
	baseVersion  = 1
	mgmtClass    = 7 // communication management
	classVersion = 2
	methodSend   = 3
)

// Attr is the attribute of a MAD, which says what message it carries (IBA vol. 1 §16.7.3).
type Attr uint16

// Attributes of the communication management class.
const (
	AttrREQ     Attr = 0x0010
	AttrMRA     Attr = 0x0011
	AttrREJ     Attr = 0x0012
	AttrREP     Attr = 0x0013
	AttrRTU     Attr = 0x0014
	AttrDREQ    Attr = 0x0015
	AttrDREP    Attr = 0x0016
	AttrSIDRREQ Attr = 0x0017
	AttrSIDRREP Attr = 0x0018
	AttrLAP     Attr = 0x0019
	AttrAPR     Attr = 0x001a
)

var attrNames = [...]string{
	"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// String names the attribute as the standard does.
func (a Attr) String() string {
	if i := int(a) - int(AttrREQ); i >= 0 && i < len(attrNames) {
		return attrNames[i]
	}
	return fmt.Sprintf("Attr(%#04x)", uint16(a))
}

// Message is one of the messages of connection management: *REQ, *REP, *RTU, *REJ,
// *MRA, *DREQ, *DREP, *SIDRREQ, *SIDRREP.
type Message interface {
	Attr() Attr
	put(b *[dataLen]byte) // b is all zeros
	get(b *[dataLen]byte)
}

// Errors of Parse. A MAD with one of them is dropped without an answer.
var (
	ErrLength      = errors.New("a MAD has 256 bytes")
	ErrNotCM       = errors.New("not a MAD of communication management, version 2")
	ErrUnsupported = errors.New("message of connection management that RoCE does not have")
)

// Append appends the MAD that carries m.
func Append(b []byte, tid uint64, m Message) []byte {
	b = append(b, baseVersion, mgmtClass, classVersion, methodSend, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, tid)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Attr()))
	b = append(b, 0, 0, 0, 0, 0, 0)
	var data [dataLen]byte
	m.put(&data)
	return append(b, data[:]...)
}

// Parse reads a MAD: its transaction ID and its message, which keeps nothing of b.
// Alternate paths (LAP, APR) are ErrUnsupported: RoCE has none, and Linux drops them.
func Parse(b []byte) (tid uint64, m Message, err error) {
	if len(b) != Len {
		return 0, nil, fmt.Errorf("%w, not %d", ErrLength, len(b))
	}
	if b[0] != baseVersion || b[1] != mgmtClass || b[2] != classVersion || b[3] != methodSend {
		return 0, nil, fmt.Errorf("%w: base version %d, class %d version %d, method %#02x", ErrNotCM, b[0], b[1], b[2], b[3])
	}
	a := Attr(binary.BigEndian.Uint16(b[16:]))
	switch a {
	case AttrREQ:
		m = new(REQ)
	case AttrMRA:
		m = new(MRA)
	case AttrREJ:
		m = new(REJ)
	case AttrREP:
		m = new(REP)
	case AttrRTU:
		m = new(RTU)
	case AttrDREQ:
		m = new(DREQ)
	case AttrDREP:
		m = new(DREP)
	case AttrSIDRREQ:
		m = new(SIDRREQ)
	case AttrSIDRREP:
		m = new(SIDRREP)
	default:
		return 0, nil, fmt.Errorf("%w: %v", ErrUnsupported, a)
	}
	m.get((*[dataLen]byte)(b[hdrLen:]))
	return binary.BigEndian.Uint64(b[8:]), m, nil
}

// put24 and get24 are for numbers of 24 bits: QPNs, PSNs.
func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

func get24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

// bit is v at the place i of a byte, counted from the least significant bit.
func bit(v bool, i int) byte {
	if v {
		return 1 << i
	}
	return 0
}

// Which says which message an MRA or REJ is about (IBA vol. 1 §12.6.6, §12.6.7).
type Which uint8

// Messages that an MRA or REJ can be about.
const (
	WhichREQ   Which = 0
	WhichREP   Which = 1
	WhichOther Which = 2 // REJ: none, or another; MRA: LAP
)

// String names the message.
func (w Which) String() string {
	switch w {
	case WhichREQ:
		return "REQ"
	case WhichREP:
		return "REP"
	case WhichOther:
		return "other"
	}
	return fmt.Sprintf("Which(%d)", uint8(w))
}
