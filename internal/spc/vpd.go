package spc

import (
	"encoding/binary"
	"fmt"
)

// Vital product data pages.
const (
	VPDSupported      = 0x00
	VPDSerial         = 0x80
	VPDIdentification = 0x83
	VPDExtended       = 0x86
	VPDThirdPartyCopy = 0x8F
	VPDBlockLimits    = 0xB0
	VPDBlockDevice    = 0xB1
	VPDProvisioning   = 0xB2
)

// AppendVPD adds a VPD page with the common header:
//
//	+--+----------------------------+
//	| 0| qualifier | device type    |
//	| 1| page code                  |
//	| 2| page length (2 bytes)      |
//	| 4| page                       |
//	+--+----------------------------+
func AppendVPD(dst []byte, peripheral, page byte, payload []byte) []byte {
	dst = append(dst, peripheral, page, byte(len(payload)>>8), byte(len(payload)))
	return append(dst, payload...)
}

// VPDPayload checks the header of a page and returns what follows it.
func VPDPayload(b []byte, page byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("scsi: VPD page %02Xh of %d bytes is shorter than its header", page, len(b))
	}
	if b[1] != page {
		return nil, fmt.Errorf("scsi: asked for VPD page %02Xh, got %02Xh", page, b[1])
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b)-4 {
		return nil, fmt.Errorf("scsi: VPD page %02Xh says %d bytes, %d arrived", page, n, len(b)-4)
	}
	return b[4 : 4+n], nil
}

// BlockLimits is VPD page B0h (SBC-3 §6.6.4). Lengths are in blocks; 0 means
// that no limit is reported (for the UNMAP, COMPARE AND WRITE and atomic
// fields: not supported).
//
//	+--+------------------------------+--+----------------------------------+
//	| 4| WSNZ(01h)                    |28| optimal unmap granularity (4)    |
//	| 5| max COMPARE AND WRITE        |32| UGAVALID(80h) | alignment (4)    |
//	| 6| optimal granularity (2)      |36| max WRITE SAME length (8)        |
//	| 8| max transfer (4)             |44| max atomic length (4)            |
//	|12| optimal transfer (4)         |48| atomic alignment (4)             |
//	|16| max prefetch (4)             |52| atomic granularity (4)           |
//	|20| max unmap LBA count (4)      |56| max atomic with boundary (4)     |
//	|24| max unmap descriptors (4)    |60| max atomic boundary size (4)     |
//	+--+------------------------------+--+----------------------------------+
type BlockLimits struct {
	WSNonZero            bool
	MaxCompareAndWrite   uint8
	OptimalGranularity   uint16
	MaxTransfer          uint32
	OptimalTransfer      uint32
	MaxPrefetch          uint32
	MaxUnmapBlocks       uint32
	MaxUnmapDescriptors  uint32
	UnmapGranularity     uint32
	UnmapAlignmentValid  bool
	UnmapAlignment       uint32
	MaxWriteSame         uint64
	MaxAtomic            uint32
	AtomicAlignment      uint32
	AtomicGranularity    uint32
	MaxAtomicBoundary    uint32
	MaxAtomicBoundarySet uint32
}

// Append adds the 60-byte payload of the page.
func (l *BlockLimits) Append(dst []byte) []byte {
	be := binary.BigEndian
	dst = append(dst, bit(l.WSNonZero, 1), l.MaxCompareAndWrite)
	dst = be.AppendUint16(dst, l.OptimalGranularity)
	dst = be.AppendUint32(dst, l.MaxTransfer)
	dst = be.AppendUint32(dst, l.OptimalTransfer)
	dst = be.AppendUint32(dst, l.MaxPrefetch)
	dst = be.AppendUint32(dst, l.MaxUnmapBlocks)
	dst = be.AppendUint32(dst, l.MaxUnmapDescriptors)
	dst = be.AppendUint32(dst, l.UnmapGranularity)
	align := l.UnmapAlignment &^ (1 << 31)
	if l.UnmapAlignmentValid {
		align |= 1 << 31
	}
	dst = be.AppendUint32(dst, align)
	dst = be.AppendUint64(dst, l.MaxWriteSame)
	dst = be.AppendUint32(dst, l.MaxAtomic)
	dst = be.AppendUint32(dst, l.AtomicAlignment)
	dst = be.AppendUint32(dst, l.AtomicGranularity)
	dst = be.AppendUint32(dst, l.MaxAtomicBoundary)
	return be.AppendUint32(dst, l.MaxAtomicBoundarySet)
}

// ParseBlockLimits decodes the payload of page B0h; SBC-2 devices send 12
// bytes, SBC-3 devices 60.
func ParseBlockLimits(p []byte) (BlockLimits, error) {
	var l BlockLimits
	if len(p) < 12 {
		return l, fmt.Errorf("scsi: block limits page of %d bytes, want at least 12", len(p))
	}
	var full [60]byte
	copy(full[:], p)
	be := binary.BigEndian
	align := be.Uint32(full[28:])
	return BlockLimits{
		WSNonZero: full[0]&1 != 0, MaxCompareAndWrite: full[1], OptimalGranularity: be.Uint16(full[2:]),
		MaxTransfer: be.Uint32(full[4:]), OptimalTransfer: be.Uint32(full[8:]), MaxPrefetch: be.Uint32(full[12:]),
		MaxUnmapBlocks: be.Uint32(full[16:]), MaxUnmapDescriptors: be.Uint32(full[20:]),
		UnmapGranularity: be.Uint32(full[24:]), UnmapAlignmentValid: align>>31 == 1, UnmapAlignment: align &^ (1 << 31),
		MaxWriteSame: be.Uint64(full[32:]), MaxAtomic: be.Uint32(full[40:]), AtomicAlignment: be.Uint32(full[44:]),
		AtomicGranularity: be.Uint32(full[48:]), MaxAtomicBoundary: be.Uint32(full[52:]), MaxAtomicBoundarySet: be.Uint32(full[56:]),
	}, nil
}

// BlockDevice is VPD page B1h, block device characteristics (SBC-3 §6.6.2).
type BlockDevice struct {
	RotationRate uint16 // 1: no moving parts, else rotations per minute
	WABEREQ      uint8  // what READ finds after SANITIZE BLOCK ERASE: 0 not said, 1 data, 2 and 3 errors
	FUAB         bool   // SYNCHRONIZE CACHE honours FUA semantics of SBC-3
}

// Append adds the 60-byte payload of the page.
func (d *BlockDevice) Append(dst []byte) []byte {
	i := len(dst)
	dst = append(dst, make([]byte, 60)...)
	binary.BigEndian.PutUint16(dst[i:], d.RotationRate)
	dst[i+3] = d.WABEREQ & 3 << 6
	dst[i+4] = bit(d.FUAB, 0x02)
	return dst
}

// ParseBlockDevice decodes the payload of page B1h.
func ParseBlockDevice(p []byte) (BlockDevice, error) {
	if len(p) < 5 {
		return BlockDevice{}, fmt.Errorf("scsi: block device characteristics page of %d bytes, want at least 5", len(p))
	}
	return BlockDevice{binary.BigEndian.Uint16(p), p[3] >> 6, p[4]&0x02 != 0}, nil
}

// Provisioning is VPD page B2h, logical block provisioning (SBC-3 §6.6.6).
//
//	+--+--------------------------------------------------------------+
//	| 4| threshold exponent                                           |
//	| 5| LBPU(80h) LBPWS(40h) LBPWS10(20h) LBPRZ(04h) ANC_SUP(02h)    |
//	| 6| provisioning type (3 bits): 0 full, 1 resource, 2 thin       |
//	+--+--------------------------------------------------------------+
type Provisioning struct {
	Threshold   uint8
	Unmap       bool // LBPU: UNMAP works
	WriteSame16 bool // LBPWS: WRITE SAME(16) with UNMAP works
	WriteSame10 bool // LBPWS10
	ReadZeroes  bool // LBPRZ: unmapped blocks read as zeroes
	Anchor      bool // ANC_SUP
	Type        uint8
}

// Append adds the 4-byte payload of the page.
func (p *Provisioning) Append(dst []byte) []byte {
	return append(dst, p.Threshold,
		bit(p.Unmap, 0x80)|bit(p.WriteSame16, 0x40)|bit(p.WriteSame10, 0x20)|bit(p.ReadZeroes, 0x04)|bit(p.Anchor, 0x02),
		p.Type&7, 0)
}

// ParseProvisioning decodes the payload of page B2h.
func ParseProvisioning(p []byte) (Provisioning, error) {
	if len(p) < 4 {
		return Provisioning{}, fmt.Errorf("scsi: logical block provisioning page of %d bytes, want at least 4", len(p))
	}
	return Provisioning{p[0], p[1]&0x80 != 0, p[1]&0x40 != 0, p[1]&0x20 != 0, p[1]&0x1C != 0, p[1]&0x02 != 0, p[2] & 7}, nil
}
