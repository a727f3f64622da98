package spc

import (
	"encoding/binary"
	"errors"
)

// FormatFlags are bits of byte 1 of a FORMAT UNIT parameter list header.
type FormatFlags byte

// Bits of FormatFlags (SBC-3 §5.3.2.2).
const (
	FormatFOV   FormatFlags = 0x80 // the four bits that follow are valid
	FormatDPRY  FormatFlags = 0x40 // do not use the primary defect list
	FormatDCRT  FormatFlags = 0x20 // do not certify
	FormatSTPF  FormatFlags = 0x10 // stop if a defect list cannot be found
	FormatIP    FormatFlags = 0x08 // an initialization pattern follows
	FormatIMMED FormatFlags = 0x02 // status before the format is done
)

// FormatList is a FORMAT UNIT parameter list without defects.
type FormatList struct {
	Protection  byte // protection field usage
	Interval    byte // P_I_INFORMATION and protection interval exponent; long lists only
	Flags       FormatFlags
	Defects     uint32 // length of the defect list, bytes
	PatternAt   int    // offset of the pattern descriptor; 0: none
	Security    bool   // SI: the pattern is to be written to every block there is
	PatternType byte   // 0 default, 1 repeated
	Pattern     []byte
}

var errFormatList = errors.New("scsi: FORMAT UNIT parameter list is shorter than it says")

// ParseFormatList decodes a parameter list (SBC-3 §5.3.2), of which the short header
// has 4 bytes and the long one 8:
//
//	+--+-----------------------------------------------+    +--+------------------------------+
//	| 0| protection field usage (3 bits)               |    | 0| SI(20h)                      |
//	| 1| FOV DPRY DCRT STPF IP 0 IMMED vendor          |    | 1| pattern type                 |
//	| 2| defect list length (2); long: reserved,       |    | 2| pattern length (2)           |
//	|  | P_I_INFORMATION and interval, length (4)      |    | 4| pattern                      |
//	+--+-----------------------------------------------+    +--+------------------------------+
//	                       header, then with IP the pattern descriptor, then defects
//
// The pattern aliases b.
func ParseFormatList(b []byte, long bool) (FormatList, error) {
	var f FormatList
	head := 4
	if long {
		head = 8
	}
	if len(b) < head {
		return f, errFormatList
	}
	f.Protection, f.Flags = b[0]&7, FormatFlags(b[1])
	if long {
		f.Interval, f.Defects = b[3], binary.BigEndian.Uint32(b[4:])
	} else {
		f.Defects = uint32(binary.BigEndian.Uint16(b[2:]))
	}
	if f.Flags&FormatIP == 0 {
		return f, nil
	}
	d := b[head:]
	if len(d) < 4 {
		return f, errFormatList
	}
	n := int(binary.BigEndian.Uint16(d[2:]))
	if n > len(d)-4 {
		return f, errFormatList
	}
	f.PatternAt, f.Security, f.PatternType, f.Pattern = head, d[0]&0x20 != 0, d[1], d[4:4+n]
	return f, nil
}

// Append adds the list to dst, with the short header unless long is set.
func (f *FormatList) Append(dst []byte, long bool) []byte {
	if long {
		dst = append(dst, f.Protection, byte(f.Flags), 0, f.Interval)
		dst = binary.BigEndian.AppendUint32(dst, f.Defects)
	} else {
		dst = append(dst, f.Protection, byte(f.Flags))
		dst = binary.BigEndian.AppendUint16(dst, uint16(f.Defects))
	}
	if f.Flags&FormatIP == 0 {
		return dst
	}
	si := byte(0)
	if f.Security {
		si = 0x20
	}
	dst = binary.BigEndian.AppendUint16(append(dst, si, f.PatternType), uint16(len(f.Pattern)))
	return append(dst, f.Pattern...)
}
