package spc

import "encoding/binary"

// Offloaded data transfer (SBC-3 §5.7, §5.46; SPC-4 §6.18): POPULATE TOKEN makes a
// ROD token that stands for blocks of one logical unit, RECEIVE ROD TOKEN
// INFORMATION fetches it, WRITE USING TOKEN on another one (or the same) copies
// what it stands for without moving data over the wire.

// ROD types.
const (
	RODAccessUponReference = 0x00010000
	RODZero                = 0xFFFF0001 // stands for zeroes, of any length
)

// RODTokenLen is the length of a token.
const RODTokenLen = 512

// PopulateToken is the parameter list of POPULATE TOKEN:
//
//	+--+-------------------------------------------+
//	| 0| data length (2) = total - 2               |
//	| 2| RTV(02h) IMMED(01h)                       |
//	| 4| inactivity time-out, seconds (4)          |
//	| 8| ROD type (4), with RTV                    |
//	|14| range descriptor length (2)               |
//	|16| {LBA (8), blocks (4), 0 (4)} …            |
//	+--+-------------------------------------------+
type PopulateToken struct {
	Immed   bool
	TypeSet bool
	Type    uint32
	Timeout uint32
	Ranges  []Range
}

// ParsePopulateToken decodes the list.
func ParsePopulateToken(b []byte) (p PopulateToken, err error) {
	if len(b) < 16 || int(binary.BigEndian.Uint16(b)) > len(b)-2 {
		return p, ErrListLength
	}
	p = PopulateToken{Immed: b[2]&1 != 0, TypeSet: b[2]&2 != 0, Timeout: binary.BigEndian.Uint32(b[4:]), Type: binary.BigEndian.Uint32(b[8:])}
	p.Ranges, err = parseRanges(b[14:])
	return p, err
}

// Append adds the list.
func (p *PopulateToken) Append(dst []byte) []byte {
	n := 16 * len(p.Ranges)
	be := binary.BigEndian
	dst = be.AppendUint16(dst, uint16(14+n))
	dst = append(dst, bit(p.TypeSet, 2)|bit(p.Immed, 1), 0)
	dst = be.AppendUint32(be.AppendUint32(dst, p.Timeout), p.Type)
	return appendRanges(append(dst, 0, 0), p.Ranges)
}

// WriteUsingToken is the parameter list of WRITE USING TOKEN: 0 data length (2),
// 2 IMMED, 8 offset into the ROD in blocks (8), 16 token (512), 534 range
// descriptor length (2), 536 ranges.
type WriteUsingToken struct {
	Immed  bool
	Offset uint64
	Token  []byte // part of the parsed list
	Ranges []Range
}

// ParseWriteUsingToken decodes the list.
func ParseWriteUsingToken(b []byte) (w WriteUsingToken, err error) {
	if len(b) < 536 || int(binary.BigEndian.Uint16(b)) > len(b)-2 {
		return w, ErrListLength
	}
	w = WriteUsingToken{Immed: b[2]&1 != 0, Offset: binary.BigEndian.Uint64(b[8:]), Token: b[16:528]}
	w.Ranges, err = parseRanges(b[534:])
	return w, err
}

// Append adds the list.
func (w *WriteUsingToken) Append(dst []byte) []byte {
	be := binary.BigEndian
	dst = be.AppendUint16(dst, uint16(534+16*len(w.Ranges)))
	dst = append(dst, bit(w.Immed, 1), 0, 0, 0, 0, 0)
	dst = be.AppendUint64(dst, w.Offset)
	var token [RODTokenLen]byte
	copy(token[:], w.Token)
	dst = append(dst, token[:]...)
	return appendRanges(append(dst, 0, 0, 0, 0, 0, 0), w.Ranges)
}

func appendRanges(dst []byte, rs []Range) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(16*len(rs)))
	for _, r := range rs {
		dst = binary.BigEndian.AppendUint64(dst, r.LBA)
		dst = binary.BigEndian.AppendUint32(dst, r.Blocks)
		dst = append(dst, 0, 0, 0, 0)
	}
	return dst
}

// parseRanges decodes a length (2) and the range descriptors behind it.
func parseRanges(b []byte) ([]Range, error) {
	n := int(binary.BigEndian.Uint16(b))
	if n%16 != 0 || n > len(b)-2 {
		return nil, ErrListLength
	}
	var rs []Range
	for b = b[2 : 2+n]; len(b) > 0; b = b[16:] {
		rs = append(rs, Range{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])})
	}
	return rs, nil
}

// RODToken is the head of a ROD token (SPC-4 §6.6.6.2): type (4), 6 token length
// (2) = 1F8h, 8 identifier given by the copy manager (8), 16 descriptor of the
// creating logical unit (32), 48 number of bytes (16); 128 a secret that makes
// the token hard to guess.
type RODToken struct {
	Type    uint32
	ID      uint64
	Creator []byte // a target descriptor, CopyTargetLen bytes
	Bytes   uint64
	Secret  [32]byte
}

// Append adds the 512 bytes of the token.
func (r *RODToken) Append(dst []byte) []byte {
	i := len(dst)
	dst = append(dst, make([]byte, RODTokenLen)...)
	b := dst[i:]
	binary.BigEndian.PutUint32(b, r.Type)
	binary.BigEndian.PutUint16(b[6:], RODTokenLen-8)
	binary.BigEndian.PutUint64(b[8:], r.ID)
	copy(b[16:48], r.Creator)
	binary.BigEndian.PutUint64(b[56:], r.Bytes)
	copy(b[128:], r.Secret[:])
	return dst
}

// ParseRODToken decodes a token of 512 bytes.
func ParseRODToken(b []byte) (RODToken, error) {
	if len(b) != RODTokenLen || binary.BigEndian.Uint16(b[6:]) != RODTokenLen-8 {
		return RODToken{}, ErrListLength
	}
	r := RODToken{Type: binary.BigEndian.Uint32(b), ID: binary.BigEndian.Uint64(b[8:]), Creator: b[16:48], Bytes: binary.BigEndian.Uint64(b[56:])}
	copy(r.Secret[:], b[128:])
	return r, nil
}

// RODInfo is the answer to RECEIVE ROD TOKEN INFORMATION (SPC-4 §6.28):
//
//	+--+-----------------------------------------------+
//	| 0| available data (4)                            |
//	| 4| service action answered (5 bits)              |
//	| 5| copy operation status (7 bits)                |
//	| 6| operation counter (2)                         |
//	| 8| estimated status update delay, ms (4)         |
//	|12| extended copy completion status               |
//	|13| length of the sense data field                |
//	|14| sense data length                             |
//	|15| transfer count units                          |
//	|16| transfer count (8)                            |
//	|24| segments processed (2)                        |
//	|32| sense data, then ROD token descriptors length |
//	|  | (4) and the descriptor: 0 (2), token (512)    |
//	+--+-----------------------------------------------+
type RODInfo struct {
	Action   uint8
	Status   uint8
	Final    Status // status of the copy operation, once it is over
	Sense    []byte
	Transfer uint64 // blocks
	Token    []byte // nil: none
}

// Copy operation status.
const (
	CopyDone       = 0x01
	CopyFailed     = 0x02
	CopyForeground = 0x11 // in progress
	CopyBackground = 0x12
	CopyAborted    = 0x60 // terminated, by a preemption of the reservation, say
)

const transferBlocks = 0xF1 // transfer count unit: logical blocks

// Append adds the answer.
func (r *RODInfo) Append(dst []byte) []byte {
	i := len(dst)
	dst = append(dst, make([]byte, 32)...)
	b := dst[i:]
	b[4], b[5] = r.Action&0x1F, r.Status&0x7F
	if r.Status == CopyForeground || r.Status == CopyBackground {
		binary.BigEndian.PutUint32(b[8:], 100)
	}
	b[12] = byte(r.Final)
	b[13], b[14] = byte(len(r.Sense)), byte(len(r.Sense))
	b[15] = transferBlocks
	binary.BigEndian.PutUint64(b[16:], r.Transfer)
	dst = append(dst, r.Sense...)
	if r.Token != nil {
		dst = binary.BigEndian.AppendUint32(dst, 2+RODTokenLen)
		dst = append(append(dst, 0, 0), r.Token...)
	} else {
		dst = append(dst, 0, 0, 0, 0)
	}
	binary.BigEndian.PutUint32(dst[i:], uint32(len(dst)-i-4))
	return dst
}

// ParseRODInfo decodes an answer that arrived whole.
func ParseRODInfo(b []byte) (RODInfo, error) {
	if len(b) < 36 || len(b) < 36+int(b[13]) {
		return RODInfo{}, ErrListLength
	}
	r := RODInfo{Action: b[4] & 0x1F, Status: b[5] & 0x7F, Final: Status(b[12]), Transfer: binary.BigEndian.Uint64(b[16:])}
	n := 32 + int(b[13])
	r.Sense = b[32:n]
	if k := binary.BigEndian.Uint32(b[n:]); k >= 2+RODTokenLen && len(b) >= n+4+2+RODTokenLen {
		r.Token = b[n+6:][:RODTokenLen]
	}
	return r, nil
}
