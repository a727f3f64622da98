package nvme

import (
	"fmt"
	"math/bits"
)

// Bits of Namespace.NSFEAT, and of that of the structure that is independent of command sets (CNS 08h).
const (
	FeatThin        uint8 = 1 << 0
	FeatOwnAtomics  uint8 = 1 << 1 // NAWUN, NAWUPF and NACWU count
	FeatDULBE       uint8 = 1 << 2
	FeatNoReuse     uint8 = 1 << 3 // identifiers are never used again
	FeatGranularity uint8 = 1 << 4 // NPWG, NPWA, NPDG, NPDA and NOWS count
	FeatNoCache     uint8 = 1 << 5 // CNS 08h, VWCNP (NVMe 2.1): no volatile write cache, whatever Controller.VWC says
)

// Bits of Namespace.RESCAP: which reservations there are.
const (
	ReservationPTPL  uint8 = 1 << 0
	ReservationTypes uint8 = 0x7E // all six
	ReservationIEK13 uint8 = 1 << 7
)

// Values of Namespace.DLFEAT: what deallocated blocks are.
const (
	DeallocatedZeroes uint8 = 1
	ZeroesDeallocate  uint8 = 1 << 3 // Write Zeroes may deallocate
)

// Bits of other fields of Namespace.
const (
	NamespaceShared    uint8 = 1 << 0 // NMIC
	NamespaceProtected uint8 = 1 << 0 // NSATTR: write protected
)

// FormatProgress in Namespace.FPI says that the rest of it counts: how much of a format
// is still to be done, per cent.
const FormatProgress uint8 = 1 << 7

// LBAFormat is one way to divide a namespace into blocks.
type LBAFormat struct {
	Metadata uint16 // bytes of metadata per block
	Shift    uint8  // log2 of the block, bytes
	Relative uint8  // relative performance, 0 is best
}

// Namespace is what Identify tells of a namespace (CNS 00h). Fields have the
// names of the standard.
type Namespace struct {
	Size, Capacity, Use    uint64 // NSZE, NCAP, NUSE: blocks
	NSFEAT                 uint8
	Format                 uint8 // FLBAS: which of Formats is in use
	DPC                    uint8
	NMIC                   uint8
	RESCAP                 uint8
	FPI                    uint8
	DLFEAT                 uint8
	NAWUN, NAWUPF, NACWU   uint16 // blocks, less one
	NABSN, NABO, NABSPF    uint16
	NOIOB                  uint16
	Bytes                  uint64 // NVMCAP, low 8 bytes
	NPWG, NPWA, NPDG, NPDA uint16 // blocks, less one
	NOWS                   uint16
	MSSRL                  uint16 // blocks of one range of Copy
	MCL                    uint32 // blocks of one Copy
	MSRC                   uint8  // ranges of one Copy, less one
	ANAGroup               uint32
	NSATTR                 uint8
	NGUID                  [16]byte
	EUI64                  [8]byte
	// CacheEpoch, in the vendor's part, tells one life of the volatile cache from the next:
	// when it has changed, what had not been flushed is gone. Zero: it is not told.
	CacheEpoch [16]byte
	Formats    []LBAFormat // 1 to 64
}

// layout names the fields of the Identify Namespace data structure by their offsets (NVM
// Express 1.4, figure 245).
// epochTag, where the vendor's part of the structure begins, tells Namespace.CacheEpoch
// behind it from what other vendors keep there.
const (
	atVendor = 384
	epochTag = "CEP1"
)

// layout says at which byte of the structure each field lies.
func (n *Namespace) layout(l layout) {
	l.u64(0, &n.Size)
	l.u64(8, &n.Capacity)
	l.u64(16, &n.Use)
	l.u8(24, &n.NSFEAT)
	l.u8(26, &n.Format)
	l.u8(28, &n.DPC)
	l.u8(30, &n.NMIC)
	l.u8(31, &n.RESCAP)
	l.u8(32, &n.FPI)
	l.u8(33, &n.DLFEAT)
	l.u16(34, &n.NAWUN)
	l.u16(36, &n.NAWUPF)
	l.u16(38, &n.NACWU)
	l.u16(40, &n.NABSN)
	l.u16(42, &n.NABO)
	l.u16(44, &n.NABSPF)
	l.u16(46, &n.NOIOB)
	l.u64(48, &n.Bytes)
	l.u16(64, &n.NPWG)
	l.u16(66, &n.NPWA)
	l.u16(68, &n.NPDG)
	l.u16(70, &n.NPDA)
	l.u16(72, &n.NOWS)
	l.u16(74, &n.MSSRL)
	l.u32(76, &n.MCL)
	l.u8(80, &n.MSRC)
	l.u32(92, &n.ANAGroup)
	l.u8(99, &n.NSATTR)
	l.bytes(104, n.NGUID[:])
	l.bytes(120, n.EUI64[:])
	if tag := l.b[atVendor:][:len(epochTag)]; l.put && n.CacheEpoch != [16]byte{} {
		copy(tag, epochTag)
		l.bytes(atVendor+len(epochTag), n.CacheEpoch[:])
	} else if !l.put && string(tag) == epochTag {
		l.bytes(atVendor+len(epochTag), n.CacheEpoch[:])
	}
	for i := range n.Formats {
		f := &n.Formats[i]
		at := 128 + 4*i
		l.u16(at, &f.Metadata)
		l.u8(at+2, &f.Shift)
		l.u8(at+3, &f.Relative)
	}
}

// AppendTo adds the structure.
func (n *Namespace) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, IdentifyLen)
	n.layout(layout{b, true})
	b[25] = uint8(len(n.Formats) - 1)
	return dst
}

// ParseNamespace reads the structure.
func ParseNamespace(b []byte) (*Namespace, error) {
	if len(b) < IdentifyLen {
		return nil, fmt.Errorf("nvme: Identify Namespace of %d bytes, %d are asked for", len(b), IdentifyLen)
	}
	formats := int(b[25]) + 1
	if formats > 64 {
		return nil, fmt.Errorf("nvme: a namespace with %d LBA formats, 64 is the most", formats)
	}
	n := &Namespace{Formats: make([]LBAFormat, formats)}
	n.layout(layout{b, false})
	return n, nil
}

// FormatIndex returns which of Formats is in use. The index has its upper bits
// beside the lower ones since there may be more than 16 formats.
func (n *Namespace) FormatIndex() int { return int(n.Format&0xF | n.Format>>1&0x30) }

// BlockSize returns the size of a block, bytes, or an error when the format in use
// is none that can be used: blocks of 512 bytes to 64 KiB without metadata.
func (n *Namespace) BlockSize() (int, error) {
	i := n.FormatIndex()
	if i >= len(n.Formats) {
		return 0, fmt.Errorf("nvme: LBA format %d of %d is in use", i, len(n.Formats))
	}
	f := n.Formats[i]
	if f.Metadata != 0 {
		return 0, fmt.Errorf("nvme: %d bytes of metadata for each block", f.Metadata)
	}
	if f.Shift < 9 || f.Shift > 16 {
		return 0, fmt.Errorf("nvme: blocks of 2^%d bytes", f.Shift)
	}
	return 1 << f.Shift, nil
}

// Shift returns log2 of a power of two.
func Shift(n int) uint8 { return uint8(bits.TrailingZeros(uint(n))) }
