package spc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrListLength says that a parameter list contradicts its own length fields
// or ends early.
var ErrListLength = errors.New("scsi: parameter list is too short or its lengths contradict")

// Range is a run of blocks.
type Range struct {
	LBA    uint64
	Blocks uint32
}

// AppendUnmapList adds the parameter list of UNMAP (SBC-3 §5.28):
//
//	+--+--------------------------------+
//	| 0| data length (2) = n - 2        |
//	| 2| block descriptor length (2)    |
//	| 4| reserved (4)                   |
//	| 8| {LBA (8), blocks (4), 0 (4)} … |
//	+--+--------------------------------+
func AppendUnmapList(dst []byte, rs []Range) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(6+16*len(rs)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(16*len(rs)))
	dst = append(dst, 0, 0, 0, 0)
	for _, r := range rs {
		dst = binary.BigEndian.AppendUint64(dst, r.LBA)
		dst = binary.BigEndian.AppendUint32(dst, r.Blocks)
		dst = append(dst, 0, 0, 0, 0)
	}
	return dst
}

// UnmapDescriptors checks the header of an UNMAP list and returns the number of
// its block descriptors.
func UnmapDescriptors(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, ErrListLength
	}
	data, desc := int(binary.BigEndian.Uint16(b)), int(binary.BigEndian.Uint16(b[2:]))
	// A length that is no multiple of 16 describes whole descriptors only.
	desc -= desc % 16
	if data+2 < 8+desc || len(b) < 8+desc {
		return 0, ErrListLength
	}
	return desc / 16, nil
}

// UnmapDescriptor returns block descriptor i of a list that UnmapDescriptors
// has checked.
func UnmapDescriptor(b []byte, i int) Range {
	d := b[8+16*i:]
	return Range{binary.BigEndian.Uint64(d), binary.BigEndian.Uint32(d[8:])}
}

// Provisioning status of GET LBA STATUS.
const (
	LBAMapped      = 0
	LBADeallocated = 1
	LBAAnchored    = 2
)

// LBAStatus is one descriptor of GET LBA STATUS (SBC-3 §5.4).
type LBAStatus struct {
	Range
	Status byte
}

// AppendLBAStatus adds the parameter data: length (4), reserved (4), then 16
// bytes {LBA (8), blocks (4), status, 0, 0, 0} for each run.
func AppendLBAStatus(dst []byte, runs []LBAStatus) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+16*len(runs)))
	dst = append(dst, 0, 0, 0, 0)
	for _, r := range runs {
		dst = binary.BigEndian.AppendUint64(dst, r.LBA)
		dst = binary.BigEndian.AppendUint32(dst, r.Blocks)
		dst = append(dst, r.Status&0xF, 0, 0, 0)
	}
	return dst
}

// ParseLBAStatus decodes the runs that arrived whole.
func ParseLBAStatus(b []byte) ([]LBAStatus, error) {
	if len(b) < 8 {
		return nil, fmt.Errorf("scsi: GET LBA STATUS data of %d bytes is shorter than its header", len(b))
	}
	n := int64(binary.BigEndian.Uint32(b)) - 4
	b = b[8:]
	if n < int64(len(b)) {
		b = b[:max(n, 0)]
	}
	var runs []LBAStatus
	for ; len(b) >= 16; b = b[16:] {
		runs = append(runs, LBAStatus{Range{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])}, b[12] & 0xF})
	}
	return runs, nil
}
