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
//
// # Thin metadata: counts in memory, trees on disk (ADR 85)
//
// Context. Every write to a new block changes counts and mappings, a pool may have hundreds of
// millions of them, and a power cut may come at any time.
//
// Decision.
//
//   - Reference counts of both devices are held in memory, one byte per block, loaded when the pool is
//     opened; the B-trees stay on disk with a cache of up to 256 MiB. At a commit the changed bitmaps
//     and large counts are written to new blocks. The metadata device's own counts change by being
//     stored; they settle before any bitmap is filled in. 1 TiB in 64 KiB chunks costs 16 MiB of
//     memory.
//   - A transaction writes only blocks that the committed superblock does not use, flushes, then
//     writes the superblock. Data is flushed before the metadata that points to it. A block that is
//     being filled is not yet allocated on disk.
//   - A write to a block that is unmapped or shared is staged, not lent: were the new block lent
//     before its mapping exists, a second write to the same block would have to wait for the first
//     peer to finish, which nothing may do.
//   - New blocks are filled completely before they are mapped, so a block never shows what it held
//     before, whatever fails.
//   - Sharing is decided by time, as the kernel does. Nodes stay at least a third full, which
//     thin_check insists on.
//   - 64 blocks of the metadata are kept from new mappings, so that discards and deletions work when
//     it is full.
//
// Consequences. A write to a block that is mapped costs a look-up; one to a new block waits for a
// transaction with many others. thin_check judges what we have written.
//
// # A full thin pool (ADR 86)
//
// Context. Volumes may be larger together than their pool. When it is full, a write has to fail or to
// wait, and whoever could extend the pool must not wait for it.
//
// Decision.
//
//   - errorwhenfull y: a write that needs a block fails at once with ErrNoSpace (27/07, SPACE
//     ALLOCATION FAILED WRITE PROTECT). n, lvm2's default: it waits until 60 s (dm-thin's
//     no_space_timeout) after the pool ran out of space, and then fails in the same way. It is never
//     acknowledged, and never dropped. Writes to blocks that are mapped and not shared go on all the
//     time.
//   - The 60 s count from when the pool ran out, not from when the write came, as dm-thin's do: a full
//     pool holds workers (of its own volumes only) once; from then on it refuses at once, until a
//     write finds space again.
//   - Growth, discards and deletions wake the writers up. What only open leases still hold comes free
//     silently, so they look again each second.
//   - Whoever waits holds nothing that an extension needs: a freeze of the volume (a snapshot, a
//     resize, a merge) has its waiting writes step aside, and they begin anew on what is there after
//     it. A lease whose commit waits leaves its generation, with its data (lvm/internal/swap,
//     space.go).
//   - Alarms are raised at 80, 85, 90, 95 and 100 % of data or metadata, dmeventd's marks, and when a
//     write finds no space. They are a log line and, for the volumes of the pool, blockdev.LowSpace,
//     which the SCSI layer turns into the unit attention 38/07. A mark counts anew only after the use
//     has fallen by ten percent. The count of refused writes is in the pool's usage.
//   - Initiators set thresholds of their own in the Logical Block Provisioning mode page (ADR 49):
//     blockdev.SpaceMeter tells the SCSI layer of each change.
//   - Full metadata is reported as such, in its own words: extending the data does not help then.
//
// Consequences. Without errorwhenfull an initiator waits for up to a minute, once, and then has the
// same error as with it. Nothing that was acknowledged is missing.
//
// # Thin pools: zeroes, failed changes, crafted metadata (ADR 93)
//
// Context. Pools may be made by lvm2 with options that we do not choose, changes of a pool fail between
// the group's metadata and the pool's, and what a disk holds may have been made by an attacker.
//
// Decision.
//
//   - A pool made with -Zn does not zero new blocks. Zeroes that a command asks for are written there,
//     never only unmapped: a write beside them would bring back what the block held for its last
//     owner. Info.ZeroesOnTrim (LBPRZ) is false for such pools.
//   - A change of a pool is in the group first, as a message. The group is never more than one change
//     ahead: what the pool refuses is taken back, and the next change first brings both to the same
//     transaction. A pool whose commit has failed takes no changes until it is opened again.
//   - A group that is several changes ahead with a message left is what failed changes used to leave.
//     Opening takes it back: volumes that the pool never made leave the group, devices whose volumes
//     have left it leave the pool, and both are told. Without a message, or with more differences than
//     changes, the metadata is from another time and the pool is refused. So is blank metadata of a
//     pool that has a transaction: it would become a new, empty pool.
//   - Metadata is not believed because its checksums are right. Keys ascend, every node keeps to the
//     span of keys that its parent gives it (so no walk reads a node twice), times fit the 24 bits of
//     a mapping, and a block that two leaves map is shared whatever its time says.
//   - A flush of a volume commits only if that volume has mapped something, so that it does not wait
//     for the commit of others.
//   - A wait for space ends when whoever waits says so (blockdev.SpaceWaiter, Lease.CommitUntil); what
//     was given up is never written.
//   - Erase overwrites the blocks that belong to the volume alone before the pool has them back. What
//     it gave back earlier, or wrote anew because a snapshot had it, is out of its reach.
//
// Consequences. A pool that cannot be made sense of is refused, with its reason, and needs lvm2's
// tools; no failed change has to be repaired by hand.
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
