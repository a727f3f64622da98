package spc

import (
	"encoding/binary"
	"fmt"
)

// Capacity is the answer to READ CAPACITY(10) and (16) (SBC-3 §5.16):
//
//	READ CAPACITY(16)
//	+--+----------------------------------------------+
//	| 0| last LBA (8 bytes)                           |
//	| 8| block length (4 bytes)                       |
//	|12| P_TYPE << 1 | PROT_EN                        |
//	|13| blocks per physical block exponent (4 bits)  |
//	|14| LBPME(80h) LBPRZ(40h) | lowest aligned (14)  |
//	|16| reserved (16 bytes)                          |
//	+--+----------------------------------------------+
type Capacity struct {
	Blocks        uint64 // number of blocks, not the last address
	BlockSize     uint32
	PhysExponent  uint8 // 2^n logical blocks in a physical block
	Provisioned   bool  // LBPME: UNMAP or WRITE SAME with UNMAP
	ReadZeroes    bool  // LBPRZ
	LowestAligned uint16
}

// Lengths of the two answers.
const (
	Capacity10Len = 8
	Capacity16Len = 32
)

// Append10 adds the 8-byte form; FFFFFFFFh says that the 16-byte form is
// needed.
func (c *Capacity) Append10(dst []byte) []byte {
	last := c.Blocks - 1
	if last > 0xFFFFFFFF {
		last = 0xFFFFFFFF
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(last))
	return binary.BigEndian.AppendUint32(dst, c.BlockSize)
}

// Append16 adds the 32-byte form.
func (c *Capacity) Append16(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, c.Blocks-1)
	dst = binary.BigEndian.AppendUint32(dst, c.BlockSize)
	dst = append(dst, 0, c.PhysExponent&0xF)
	flags := c.LowestAligned & 0x3FFF
	if c.Provisioned {
		flags |= 0x8000
	}
	if c.ReadZeroes {
		flags |= 0x4000
	}
	dst = binary.BigEndian.AppendUint16(dst, flags)
	return append(dst, make([]byte, 16)...)
}

// ParseCapacity10 decodes the 8-byte form; ok is false when the device is too
// large for it.
func ParseCapacity10(b []byte) (c Capacity, ok bool, err error) {
	if len(b) < Capacity10Len {
		return c, false, fmt.Errorf("scsi: READ CAPACITY(10) data of %d bytes, want 8", len(b))
	}
	last := binary.BigEndian.Uint32(b)
	c.Blocks, c.BlockSize = uint64(last)+1, binary.BigEndian.Uint32(b[4:])
	return c, last != 0xFFFFFFFF, nil
}

// ParseCapacity16 decodes the 32-byte form, of which old devices send less.
func ParseCapacity16(b []byte) (Capacity, error) {
	if len(b) < 12 {
		return Capacity{}, fmt.Errorf("scsi: READ CAPACITY(16) data of %d bytes, want at least 12", len(b))
	}
	var full [16]byte
	copy(full[:], b)
	flags := binary.BigEndian.Uint16(full[14:])
	return Capacity{
		Blocks: binary.BigEndian.Uint64(full[:]) + 1, BlockSize: binary.BigEndian.Uint32(full[8:]),
		PhysExponent: full[13] & 0xF, Provisioned: flags&0x8000 != 0, ReadZeroes: flags&0x4000 != 0, LowestAligned: flags & 0x3FFF,
	}, nil
}
