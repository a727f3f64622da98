package nvmetcp

import (
	"encoding/binary"
	"fmt"

	"softiser/internal/nvme"
)

// Type is the type of a PDU.
type Type uint8

// Types of PDUs.
const (
	TypeICReq       Type = 0x00
	TypeICResp      Type = 0x01
	TypeH2CTermReq  Type = 0x02
	TypeC2HTermReq  Type = 0x03
	TypeCapsuleCmd  Type = 0x04
	TypeCapsuleResp Type = 0x05
	TypeH2CData     Type = 0x06
	TypeC2HData     Type = 0x07
	TypeR2T         Type = 0x09
)

// row is what is fixed for a type of PDU.
type row struct {
	name     string
	hlen     uint8
	fromHost bool
	data     bool // may carry data
	digests  bool // carries digests once they are agreed on
}

var rows = [...]row{
	TypeICReq:       {name: "ICReq", hlen: ICLen, fromHost: true},
	TypeICResp:      {name: "ICResp", hlen: ICLen},
	TypeH2CTermReq:  {name: "H2CTermReq", hlen: TermLen, fromHost: true, data: true},
	TypeC2HTermReq:  {name: "C2HTermReq", hlen: TermLen, data: true},
	TypeCapsuleCmd:  {name: "CapsuleCmd", hlen: CapsuleCmdLen, fromHost: true, data: true, digests: true},
	TypeCapsuleResp: {name: "CapsuleResp", hlen: CapsuleRespLen, digests: true},
	TypeH2CData:     {name: "H2CData", hlen: DataLen, fromHost: true, data: true, digests: true},
	TypeC2HData:     {name: "C2HData", hlen: DataLen, data: true, digests: true},
	TypeR2T:         {name: "R2T", hlen: DataLen, digests: true},
}

func (t Type) row() *row {
	if int(t) < len(rows) && rows[t].hlen != 0 {
		return &rows[t]
	}
	return nil
}

// String returns the type's name.
func (t Type) String() string {
	if r := t.row(); r != nil {
		return r.name
	}
	return fmt.Sprintf("PDU type %02xh", uint8(t))
}

// Lengths of headers, bytes.
const (
	CHLen          = 8
	ICLen          = 128
	TermLen        = 24
	CapsuleCmdLen  = 72
	CapsuleRespLen = 24
	DataLen        = 24
	DigestLen      = 4
)

// Flags of a PDU.
type Flags uint8

// Flags.
const (
	FlagHDGST   Flags = 0x01 // a header digest is there
	FlagDDGST   Flags = 0x02 // a data digest is there
	FlagLast    Flags = 0x04 // H2CData, C2HData: the last of its R2T, or of its command
	FlagSuccess Flags = 0x08 // C2HData with LAST: the command has succeeded, no CapsuleResp follows
)

// CH is the common header.
//
//	 +--------+--------+--------+--------+
//	0| type   | flags  | hlen   | pdo    |
//	4| plen                              |
//	 +--------+--------+--------+--------+
type CH [CHLen]byte

// Type returns the PDU's type.
func (h *CH) Type() Type { return Type(h[0]) }

// Flags returns the PDU's flags.
func (h *CH) Flags() Flags { return Flags(h[1]) }

// HLen returns the length of the header, bytes, without its digest.
func (h *CH) HLen() int { return int(h[2]) }

// PDO returns where the data begins, bytes from the PDU's start.
func (h *CH) PDO() int { return int(h[3]) }

// PLen returns the length of the whole PDU, bytes.
func (h *CH) PLen() uint32 { return binary.LittleEndian.Uint32(h[4:]) }

// Digests is which digests a connection has agreed on.
type Digests uint8

// Digests.
const (
	DigestHeader Digests = 1
	DigestData   Digests = 2
)

// String returns "none", "header", "data" or "header and data".
func (d Digests) String() string {
	return [...]string{"none", "header", "data", "header and data"}[d&3]
}

// Fault is a breach of the protocol that ends the connection, after a TermReq.
// Where FES says so, FEI is the offset of the wrong field in the header or, of a
// header digest, the one that was received.
type Fault struct {
	FES FES
	FEI uint32
	Err error
}

func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns what is wrong.
func (f *Fault) Unwrap() error { return f.Err }

// Is makes every Fault an nvme.ErrBreach.
func (f *Fault) Is(target error) bool { return target == nvme.ErrBreach }

// Fields of the common header, for Fault.FEI.
const (
	atType  = 0
	atFlags = 1
	atHLen  = 2
	atPDO   = 3
	atPLen  = 4
)

func badField(at uint32, format string, args ...any) *Fault {
	return &Fault{FESInvalidHeader, at, fmt.Errorf("nvmetcp: "+format, args...)}
}

// Layout says where the parts of one PDU lie, bytes from its start.
type Layout struct {
	HLen    int    // end of the header
	Digest  int    // length of the header digest: 0 or 4
	PDO     int    // where the data begins; 0 without data
	Data    uint32 // length of the data
	DDigest int    // length of the data digest: 0 or 4
}

// Limits bounds what Check lets through.
type Limits struct {
	FromHost bool    // which end sends
	Digests  Digests // agreed on; none before ICResp
	MaxData  uint32  // bytes of data in one PDU
	Align    int     // what pdo is a multiple of: (xPDA + 1) * 4; 0: any multiple of 4
}

// Check checks a common header and returns where the parts of its PDU lie. No
// length of h is to be believed before.
func (h *CH) Check(l *Limits) (Layout, *Fault) {
	var p Layout
	t := h.Type()
	r := t.row()
	if r == nil || r.fromHost != l.FromHost {
		return p, badField(atType, "unexpected %s", t)
	}
	if h.HLen() != int(r.hlen) {
		return p, badField(atHLen, "%s with a header of %d bytes, it has %d", t, h.HLen(), r.hlen)
	}
	p.HLen = h.HLen()
	f := h.Flags()
	if r.digests && l.Digests&DigestHeader != 0 {
		p.Digest = DigestLen
	}
	if got := f&FlagHDGST != 0; got != (p.Digest != 0) {
		return p, badField(atFlags, "%s with flags %02xh, digests agreed on: %s", t, uint8(f), l.Digests)
	}
	head := uint32(p.HLen + p.Digest)
	plen := h.PLen()
	if plen < head {
		return p, badField(atPLen, "%s of %d bytes, its header has %d", t, plen, head)
	}
	if plen == head {
		if f&FlagDDGST != 0 && !r.data {
			return p, badField(atFlags, "%s with a data digest", t)
		}
		return p, nil
	}
	return h.checkData(l, r, p, head)
}

// checkData checks a PDU that is longer than its header.
func (h *CH) checkData(l *Limits, r *row, p Layout, head uint32) (Layout, *Fault) {
	t, plen := h.Type(), h.PLen()
	if !r.data {
		return p, badField(atPLen, "%s of %d bytes, it has %d", t, plen, head)
	}
	if !r.digests { // a TermReq: what follows is the start of a PDU
		if plen > TermLen+MaxTermData {
			return p, badField(atPLen, "%s of %d bytes, %d is the most", t, plen, TermLen+MaxTermData)
		}
		p.PDO, p.Data = p.HLen, plen-head
		return p, nil
	}
	if l.Digests&DigestData != 0 {
		p.DDigest = DigestLen
	}
	if got := h.Flags()&FlagDDGST != 0; got != (p.DDigest != 0) {
		return p, badField(atFlags, "%s with flags %02xh, digests agreed on: %s", t, uint8(h.Flags()), l.Digests)
	}
	p.PDO = h.PDO()
	align := max(l.Align, 4)
	if uint32(p.PDO) < head || p.PDO%align != 0 {
		return p, badField(atPDO, "%s with data at %d, behind a header of %d bytes and at a multiple of %d", t, p.PDO, head, align)
	}
	if rest := uint32(p.PDO + p.DDigest); plen <= rest {
		return p, badField(atPLen, "%s of %d bytes, its data begins at %d", t, plen, p.PDO)
	}
	p.Data = plen - uint32(p.PDO+p.DDigest)
	if p.Data > l.MaxData {
		return p, &Fault{FESDataLimit, 0, fmt.Errorf("nvmetcp: %s with %d bytes of data, %d are allowed", t, p.Data, l.MaxData)}
	}
	return p, nil
}

// put sets the common header of a PDU whose header begins at b. data is the
// length of its data; align is what pdo is a multiple of, 4 at least.
func put(b []byte, t Type, f Flags, d Digests, data uint32, align int) {
	r := t.row()
	head := int(r.hlen)
	if r.digests && d&DigestHeader != 0 {
		f |= FlagHDGST
		head += DigestLen
	}
	plen, pdo := uint32(head), 0
	if data > 0 {
		align = max(align, 4)
		pdo = (head + align - 1) / align * align
		plen = uint32(pdo) + data
		if d&DigestData != 0 {
			f |= FlagDDGST
			plen += DigestLen
		}
	}
	b[0], b[1], b[2], b[3] = byte(t), byte(f), r.hlen, byte(pdo)
	binary.LittleEndian.PutUint32(b[4:], plen)
}
