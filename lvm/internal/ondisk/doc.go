// Package ondisk holds the binary structures that LVM2 keeps on a physical
// volume: the label, the PV header with its extension, and the header of a
// metadata area. It is a codec: bytes in, values out, no I/O.
//
//	sector 0        1                     8 (4 KiB)                    2048 (1 MiB)
//	+---------------+---------------------+----------------------------+-----------
//	|               | label + PV header   | metadata area: mda header, | extents
//	|               | (sectors 0-3, any)  | then a ring of text        | 0, 1, ...
//	+---------------+---------------------+----------------------------+-----------
//
// Everything is little-endian. Checksums are the reflected CRC-32 polynomial
// with LVM's own start value and without the final inversion ([CRC]).
package ondisk

import (
	"errors"
	"hash/crc32"
)

// Sizes that the format fixes, bytes.
const (
	SectorSize   = 512
	ScanSectors  = 4 // a label lives in one of the first four sectors
	LabelSector  = 1 // where lvm2 writes it
	MDAHeaderLen = 512
	MDAStart     = 4096    // first metadata area: at the page size
	MDADefault   = 1044480 // its default size, so that extents start at 1 MiB
)

// Errors of the parsers.
var (
	ErrNoLabel  = errors.New("no LVM2 label")
	ErrChecksum = errors.New("checksum mismatch")
	ErrFormat   = errors.New("malformed LVM2 structure")
)

const crcInit = 0xf597a6cf

// CRC is LVM's checksum: "123456789" gives 0x4991cf02.
func CRC(p []byte) uint32 { return ^crc32.Update(^uint32(crcInit), crc32.IEEETable, p) }
