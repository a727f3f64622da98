package spc

import (
	"encoding/binary"
	"fmt"
)

// A LUN on the wire has eight bytes (SAM-5 §4.7): four levels of two. A single
// level is used here: peripheral addressing (method 0, up to 255) or flat space
// addressing (method 1, up to 16383), the rest zero.
//
//	+-----------+----------------+
//	| method(2) | number (14)    | 0 0 0 0 0 0
//	+-----------+----------------+

// WellKnownReportLUNs is the address of the REPORT LUNS well-known logical unit.
const WellKnownReportLUNs = 0xC101 << 48

// EncodeLUN returns the wire form of a LUN number below 16384: peripheral
// addressing up to 255, flat space above.
func EncodeLUN(n uint16) uint64 {
	if n > 255 {
		return uint64(0x4000|n&0x3FFF) << 48
	}
	return uint64(n) << 48
}

// DecodeLUN returns the number of a single-level LUN; ok is false for
// everything else, which names no logical unit that can exist here.
func DecodeLUN(w uint64) (n uint16, ok bool) {
	if w&(1<<48-1) != 0 {
		return 0, false
	}
	v := uint16(w >> 48)
	switch v >> 14 {
	case 0: // peripheral: bus number 0 only
		return v, v < 256
	case 1:
		return v & 0x3FFF, true
	}
	return 0, false
}

// AppendLUNList adds the parameter data of REPORT LUNS: length (4), reserved
// (4), then eight bytes for each LUN.
func AppendLUNList(dst []byte, luns []uint64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(8*len(luns)))
	dst = append(dst, 0, 0, 0, 0)
	for _, l := range luns {
		dst = binary.BigEndian.AppendUint64(dst, l)
	}
	return dst
}

// ParseLUNList decodes what arrived of a REPORT LUNS list; total is the number
// of LUNs that the list has, which may be more.
func ParseLUNList(b []byte) (luns []uint64, total int, err error) {
	if len(b) < 8 {
		return nil, 0, fmt.Errorf("scsi: REPORT LUNS data of %d bytes is shorter than its header", len(b))
	}
	n := binary.BigEndian.Uint32(b)
	total = int(n / 8)
	b = b[8:]
	for i := 0; i < total && len(b) >= 8; i++ {
		luns = append(luns, binary.BigEndian.Uint64(b))
		b = b[8:]
	}
	return luns, total, nil
}
