// Package thin serves thin volumes and their snapshots in the metadata format
// of device-mapper's thin target, on a metadata device and a data device.
//
// The metadata is made of 4 KiB blocks. Block 0, the superblock, names the
// roots of everything else:
//
//	superblock ─┬─ mapping tree: device id → tree of (virtual block → data block, time)
//	            ├─ details tree: device id → mapped blocks, creation and snapshot time
//	            ├─ space map of the data device:     reference counts of its blocks
//	            └─ space map of the metadata device: reference counts of these blocks
//
// All trees are copy-on-write B-trees. A snapshot of a volume is one more
// reference to the root of its tree; nodes and data blocks that are referred to
// more than once are copied before they change. A transaction writes only
// blocks that the committed superblock does not use, flushes, and then writes
// the superblock: a power cut leaves the state of one transaction or the other.
//
// A data block is shared when it was mapped before the volume's last snapshot:
// each mapping carries the pool's time, which every snapshot advances.
package thin

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Errors that callers branch on, beside blockdev's.
var (
	ErrCorrupt    = errors.New("thin pool metadata is damaged")
	ErrNeedsCheck = errors.New("thin pool metadata is marked as needing a check: run thin_check or thin_repair")
	ErrNoDevice   = errors.New("no such thin device")
	ErrExists     = errors.New("thin device exists")
)

const (
	blockSize = 4096
	// MaxMetadata is the largest metadata device that is used, in blocks.
	MaxMetadata = 255 * ((1 << 14) - 64)
	maxDevice   = 1<<24 - 1
	maxTime     = 1<<24 - 1 // of a mapping
)

// Checksum seeds: each type of block has its own.
const (
	xorSuper  = 160774
	xorNode   = 121107
	xorBitmap = 240779
	xorIndex  = 160478
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is CRC32C without the final inversion, over all but the first four
// bytes, XORed with the seed of the block's type.
func checksum(b []byte, xor uint32) uint32 { return ^crc32.Checksum(b[4:], castagnoli) ^ xor }
