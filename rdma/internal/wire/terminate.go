package wire

import (
	"encoding/binary"
	"fmt"
)

// Layer says which layer found the error that a Terminate reports (RFC 5040
// §4.8).
type Layer uint8

// Layers.
const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
	LayerLLP   Layer = 2 // MPA here
)

func (l Layer) String() string {
	switch l {
	case LayerRDMAP:
		return "RDMAP"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "MPA"
	}
	return fmt.Sprintf("layer %d", uint8(l))
}

// Error types within a layer (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8).
const (
	ETypeCatastrophic = 0 // RDMAP and DDP: local catastrophic error
	ETypeProtection   = 1 // RDMAP: remote protection error
	ETypeOperation    = 2 // RDMAP: remote operation error
	ETypeTagged       = 1 // DDP: tagged buffer error
	ETypeUntagged     = 2 // DDP: untagged buffer error
	ETypeMPA          = 0 // LLP: MPA error
)

// Cause is layer, error type and error code in one comparable word; the zero
// value is a real code (RDMAP, local catastrophic).
type Cause uint16

// MakeCause packs the three parts; e is the 4-bit error type.
func MakeCause(l Layer, e, code uint8) Cause {
	return Cause(uint16(l&15)<<12 | uint16(e&15)<<8 | uint16(code))
}

// Layer is the layer that found the error.
func (c Cause) Layer() Layer { return Layer(c >> 12) }

// EType is the error type within the layer.
func (c Cause) EType() uint8 { return uint8(c>>8) & 15 }

// Code is the error code within the type.
func (c Cause) Code() uint8 { return uint8(c) }

// Causes by name: RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8.
const (
	CauseLocal Cause = 0x00ff // RDMAP local catastrophic error

	CauseRemoteSTag       Cause = 0x0100
	CauseRemoteBounds     Cause = 0x0101
	CauseRemoteAccess     Cause = 0x0102
	CauseRemoteStream     Cause = 0x0103 // STag not associated with the stream
	CauseRemoteWrap       Cause = 0x0104
	CauseRemoteNoInval    Cause = 0x0109 // STag cannot be invalidated
	CauseRemoteUnspec     Cause = 0x01ff
	CauseRDMAPVersion     Cause = 0x0205
	CauseOpcode           Cause = 0x0206
	CauseStreamCatastroph Cause = 0x0207 // catastrophic error, localized to the stream
	CauseGlobalCatastroph Cause = 0x0208
	CauseOpNoInval        Cause = 0x0209
	CauseOpUnspec         Cause = 0x02ff

	CauseDDPLocal      Cause = 0x1000
	CauseSTag          Cause = 0x1100
	CauseBounds        Cause = 0x1101
	CauseStream        Cause = 0x1102
	CauseWrap          Cause = 0x1103
	CauseTaggedVersion Cause = 0x1104
	CauseQN            Cause = 0x1201
	CauseNoBuffer      Cause = 0x1202
	CauseMSNRange      Cause = 0x1203
	CauseMO            Cause = 0x1204
	CauseTooLong       Cause = 0x1205 // message too long for the buffer
	CauseVersion       Cause = 0x1206

	CauseLLPLost      Cause = 0x2001
	CauseCRC          Cause = 0x2002
	CauseMarker       Cause = 0x2003 // FPDU start and length disagree
	CauseBadFrame     Cause = 0x2004
	CauseMPALocal     Cause = 0x2005
	CauseInsufficient Cause = 0x2006 // insufficient IRD resources
	CauseNoRTR        Cause = 0x2007
)

var causeNames = map[Cause]string{
	CauseLocal:            "local catastrophic error",
	CauseRemoteSTag:       "invalid STag",
	CauseRemoteBounds:     "base or bounds violation",
	CauseRemoteAccess:     "access rights violation",
	CauseRemoteStream:     "STag not associated with the stream",
	CauseRemoteWrap:       "tagged offset wraps",
	CauseRemoteNoInval:    "STag cannot be invalidated",
	CauseRemoteUnspec:     "unspecified protection error",
	CauseRDMAPVersion:     "invalid RDMAP version",
	CauseOpcode:           "unexpected opcode",
	CauseStreamCatastroph: "catastrophic error on the stream",
	CauseGlobalCatastroph: "catastrophic error, global",
	CauseOpNoInval:        "STag cannot be invalidated",
	CauseOpUnspec:         "unspecified operation error",
	CauseDDPLocal:         "local catastrophic error",
	CauseSTag:             "invalid STag",
	CauseBounds:           "base or bounds violation",
	CauseStream:           "STag not associated with the stream",
	CauseWrap:             "tagged offset wraps",
	CauseTaggedVersion:    "invalid DDP version in a tagged segment",
	CauseQN:               "invalid queue number",
	CauseNoBuffer:         "no receive buffer",
	CauseMSNRange:         "message sequence number out of range",
	CauseMO:               "invalid message offset",
	CauseTooLong:          "message too long for the receive buffer",
	CauseVersion:          "invalid DDP version in an untagged segment",
	CauseLLPLost:          "TCP connection lost",
	CauseCRC:              "CRC mismatch",
	CauseMarker:           "FPDU start and length disagree",
	CauseBadFrame:         "invalid request or reply frame",
	CauseMPALocal:         "local catastrophic error",
	CauseInsufficient:     "insufficient IRD",
	CauseNoRTR:            "no matching RTR option",
}

// Known reports whether an RFC has given the code a meaning.
func (c Cause) Known() bool { _, ok := causeNames[c]; return ok }

// Name is the RFC's word for the error, "" for one that has none.
func (c Cause) Name() string { return causeNames[c] }

func (c Cause) String() string {
	if s, ok := causeNames[c]; ok {
		return fmt.Sprintf("%s: %s (%d/%d/%02x)", c.Layer(), s, uint8(c.Layer()), c.EType(), c.Code())
	}
	return fmt.Sprintf("%s: error type %d, code %02x", c.Layer(), c.EType(), c.Code())
}

// Lengths of the Terminate header.
const (
	TermCtrlLen = 4 // control word alone
	MaxTermLen  = TermCtrlLen + 2 + UntaggedLen + ReadReqLen
)

// Header bits of the Terminate control word.
const (
	termM = 0x80 // DDP Segment Length is valid
	termD = 0x40 // DDP header included
	termR = 0x20 // RDMAP header included
)

// Term is the Terminate header (RFC 5040 §4.8).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+---------------+-+-+-+-------------------------+
//	| Layer | EType |  Error Code   |M|D|R|        Reserved         |
//	+-------+-------+---------------+-+-+-+-------------------------+
//	|  DDP Segment Length (if M)    |                               |
//	+-------------------------------+                               +
//	|  Terminated DDP header (if D), 14 or 18 bytes                 ~
//	+---------------------------------------------------------------+
//	|  Terminated RDMAP header (if R), 28 bytes                     ~
//	+---------------------------------------------------------------+
type Term struct {
	Cause  Cause
	HasLen bool
	SegLen uint16 // length of the offending DDP segment
	DDP    []byte // offending DDP header or nil
	RDMAP  []byte // offending Read Request header or nil
	// SIW: the peer uses the layout of the Linux siw driver, whose little-endian
	// bit fields swap the nibbles of byte 0 and put M, D, R at 01, 02, 04. There
	// the segment length counts the payload only.
	SIW bool
}

// Append appends the header in the form of the RFC, or of siw when t.SIW is set.
func (t *Term) Append(b []byte) []byte {
	m, d, r := byte(termM), byte(termD), byte(termR)
	first := byte(t.Cause >> 8)
	if t.SIW {
		m, d, r = 1, 2, 4
		first = first<<4 | first>>4
	}
	var bits byte
	if t.HasLen {
		bits |= m
	}
	if t.DDP != nil {
		bits |= d
	}
	if t.RDMAP != nil {
		bits |= r
	}
	b = append(b, first, t.Cause.Code(), bits, 0)
	if t.HasLen {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
	}
	b = append(b, t.DDP...)
	return append(b, t.RDMAP...)
}

// Parse reads a Terminate header leniently: both the RFC's layout and siw's are
// understood, a header that was cut short gives what is there. DDP and RDMAP
// alias b. The result is for diagnosis only, so what is ambiguous is guessed:
// a low nibble that names no error type, or header bits at siw's places, mean
// siw; otherwise the RFC's order is assumed.
func (t *Term) Parse(b []byte) error {
	*t = Term{}
	if len(b) < TermCtrlLen {
		return fmt.Errorf("rdma: Terminate header of %d bytes, want at least %d", len(b), TermCtrlLen)
	}
	first, bits := b[0], b[2]
	c := MakeCause(Layer(first>>4), first&15, b[1])
	swapped := MakeCause(Layer(first&15), first>>4, b[1])
	switch {
	case bits&0xe0 != 0:
	case bits&0x07 != 0:
		t.SIW = true
	default:
		_, rfc := causeNames[c]
		_, siw := causeNames[swapped]
		t.SIW = siw && !rfc
	}
	m, d, r := byte(termM), byte(termD), byte(termR)
	if t.SIW {
		m, d, r = 1, 2, 4
		c = swapped
	}
	t.Cause = c
	b = b[TermCtrlLen:]
	if bits&m != 0 && len(b) >= 2 {
		t.HasLen, t.SegLen = true, binary.BigEndian.Uint16(b)
		b = b[2:]
	}
	if bits&d != 0 && len(b) > 0 {
		n := UntaggedLen
		if b[0]&0x80 != 0 {
			n = TaggedLen
		}
		if len(b) >= n {
			t.DDP, b = b[:n:n], b[n:]
		}
	}
	if bits&r != 0 && len(b) >= ReadReqLen {
		t.RDMAP = b[:ReadReqLen:ReadReqLen]
	}
	return nil
}
