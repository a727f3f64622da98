package nvme

import (
	"encoding/binary"
	"fmt"
)

// DatasetManagement is the view of a Dataset Management command.
//
//	  +-------------+-----------------------------------------+
//	40|ranges - 1   | reserved                                |
//	44| AD 2, IDW 1, IDR 0                                    |
//	  +-------------------------------------------------------+
type DatasetManagement struct{ *SQE }

// DatasetManagement views s as a Dataset Management command.
func (s *SQE) DatasetManagement() DatasetManagement { return DatasetManagement{s} }

// NewDeallocate clears s and makes it deallocate n ranges, 1 to 256.
func (s *SQE) NewDeallocate(nsid uint32, n int) DatasetManagement {
	s.Init(OpDatasetManagement, nsid)
	s[40] = byte(n - 1)
	s.SetCDW(11, attrDeallocate)
	return DatasetManagement{s}
}

const attrDeallocate = 1 << 2

// Ranges returns how many ranges the data has, 1 to 256.
func (c DatasetManagement) Ranges() int { return int(c.SQE[40]) + 1 }

// Deallocate reports whether the ranges are to be deallocated; everything else is
// a hint.
func (c DatasetManagement) Deallocate() bool { return c.CDW(11)&attrDeallocate != 0 }

// DSMRangeLen is the length of a range of Dataset Management, bytes.
const DSMRangeLen = 16

// BlockRange is a range of blocks.
type BlockRange struct {
	LBA    uint64
	Blocks uint64
}

// Within reports whether the range lies inside a namespace of size blocks.
func (r BlockRange) Within(size uint64) bool { return r.LBA <= size && r.Blocks <= size-r.LBA }

// AppendDSMRange adds a range.
//
//	0| context attributes (4)
//	4| number of blocks (4)
//	8| first block (8)
func AppendDSMRange(dst []byte, r BlockRange) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(r.Blocks))
	return binary.LittleEndian.AppendUint64(dst, r.LBA)
}

// DSMRange returns range i of a command's data, which holds it.
func DSMRange(b []byte, i int) BlockRange {
	b = b[DSMRangeLen*i:]
	return BlockRange{LBA: binary.LittleEndian.Uint64(b[8:]), Blocks: uint64(binary.LittleEndian.Uint32(b[4:]))}
}

// Copy is the view of a Copy command.
//
//	  +-------------------------------------------------------+
//	40| first block of the destination (8)                    |
//	48|ranges - 1   |PRINFOR|format| ...          |LR|FUA|... |
//	  +-------------------------------------------------------+
type Copy struct{ *SQE }

// Copy views s as a Copy command.
func (s *SQE) Copy() Copy { return Copy{s} }

// NewCopy clears s and makes it copy n ranges, 1 to 256, of format 0 to slba.
func (s *SQE) NewCopy(nsid uint32, slba uint64, n int) Copy {
	s.Init(OpCopy, nsid)
	s.put64(10, slba)
	s[48] = byte(n - 1)
	return Copy{s}
}

// Destination returns the first block of the destination.
func (c Copy) Destination() uint64 { return c.u64(10) }

// Ranges returns how many source ranges the data has, 1 to 256.
func (c Copy) Ranges() int { return int(c.SQE[48]) + 1 }

// Format returns the format of the source ranges; 0 is the one that is known here.
func (c Copy) Format() uint8 { return c.SQE[49] & 0xF }

// FUA reports whether the copy is to be durable before the command completes.
func (c Copy) FUA() bool { return c.CDW(12)&flagFUA != 0 }

// ProtectionInfo returns both PRINFO fields.
func (c Copy) ProtectionInfo() uint8 { return c.SQE[49]>>4 | uint8(c.CDW(12)&prInfo>>26) }

// CopyRangeLen is the length of a source range of format 0, bytes.
const CopyRangeLen = 32

// AppendCopyRange adds a source range of 1 to 65536 blocks in format 0.
func AppendCopyRange(dst []byte, r BlockRange) []byte {
	dst, b := grow(dst, CopyRangeLen)
	binary.LittleEndian.PutUint64(b[8:], r.LBA)
	binary.LittleEndian.PutUint16(b[16:], uint16(r.Blocks-1))
	return dst
}

// ParseCopyRanges reads n source ranges of format 0.
func ParseCopyRanges(b []byte, n int) ([]BlockRange, error) {
	if len(b) < n*CopyRangeLen {
		return nil, fmt.Errorf("nvme: %d source ranges in %d bytes", n, len(b))
	}
	r := make([]BlockRange, n)
	for i := range r {
		e := b[CopyRangeLen*i:]
		r[i] = BlockRange{LBA: binary.LittleEndian.Uint64(e[8:]), Blocks: uint64(binary.LittleEndian.Uint16(e[16:])) + 1}
	}
	return r, nil
}
