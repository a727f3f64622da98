package nvmetcp

import (
	"encoding/binary"
	"fmt"
)

// FES is the fatal error status of a TermReq.
type FES uint16

// Fatal errors.
const (
	FESInvalidHeader FES = 1
	FESSequence      FES = 2
	FESHeaderDigest  FES = 3
	FESOutOfRange    FES = 4
	FESDataLimit     FES = 5 // of the data, or of R2Ts
	FESUnsupported   FES = 6
)

// String describes the error.
func (f FES) String() string {
	switch f {
	case FESInvalidHeader:
		return "invalid PDU header field"
	case FESSequence:
		return "PDU sequence error"
	case FESHeaderDigest:
		return "header digest error"
	case FESOutOfRange:
		return "data transfer out of range"
	case FESDataLimit:
		return "data transfer limit exceeded"
	case FESUnsupported:
		return "unsupported parameter"
	}
	return fmt.Sprintf("fatal error %d", uint16(f))
}

// MaxTermData is how much of the offending PDU a TermReq repeats at most, bytes.
const MaxTermData = 128

// TermReq says why its sender ends the connection.
//
//	  +--------+--------+--------+--------+
//	 8| FES             | FEI, low        |
//	12| FEI, high       | reserved (10)   |
//	24/ header of the offending PDU       /
//	  +--------+--------+--------+--------+
type TermReq struct {
	FES    FES
	FEI    uint32
	Header []byte // of the offending PDU, up to MaxTermData bytes
}

// AppendTo adds the PDU; t says which end sends it.
func (r *TermReq) AppendTo(dst []byte, t Type) []byte {
	head := r.Header[:min(len(r.Header), MaxTermData)]
	at := len(dst)
	dst = append(dst, make([]byte, TermLen)...)
	b := dst[at:]
	put(b, t, 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[4:], uint32(TermLen+len(head)))
	binary.LittleEndian.PutUint16(b[8:], uint16(r.FES))
	binary.LittleEndian.PutUint32(b[10:], r.FEI)
	return append(dst, head...)
}

// ParseTermReq reads a whole TermReq whose common header has been checked.
// Header lies in b.
func ParseTermReq(b []byte) (TermReq, error) {
	if len(b) < TermLen || len(b) > TermLen+MaxTermData {
		return TermReq{}, fmt.Errorf("nvmetcp: TermReq of %d bytes", len(b))
	}
	return TermReq{FES(binary.LittleEndian.Uint16(b[8:])), binary.LittleEndian.Uint32(b[10:]), b[TermLen:]}, nil
}
