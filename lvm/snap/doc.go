// Package snap serves classic snapshots in the persistent format of
// device-mapper's snapshot target: an origin, and any number of snapshots of
// it, each with a store of its own that holds what differs ("exceptions").
//
//	origin write ──► copy the old chunk into every store that lacks it ──► origin
//	snapshot read ─► the store's copy if there is one, else the origin
//	snapshot write ► copy the chunk into the store first, then write there
//
// The store, in chunks of a fixed size (n entries of 16 bytes fill one):
//
//	chunk 0    1        2 .. n+1       n+2      n+3 ..
//	+--------+--------+--------------+--------+--------------
//	| header | area 0 | data chunks  | area 1 | data chunks
//	+--------+--------+--------------+--------+--------------
//	header   magic "SnAp" 4, valid 4, version 4, chunk size in sectors 4
//	area     n entries {old chunk 8, new chunk 8}; new 0 ends the list
//
// Everything is little-endian. A chunk's copy is durable before its entry is
// written, and the entry before the origin is overwritten, so a power cut
// leaves the snapshot as it was. A store that runs out of room or fails is
// marked invalid for good: the origin goes on, the snapshot is lost.
package snap

import "errors"

// ErrInvalid marks a snapshot that overflowed or whose store failed.
var ErrInvalid = errors.New("snapshot is invalid: its store overflowed or failed")

// DefaultChunk is lvm2's default chunk size for snapshots, bytes.
const DefaultChunk = 4096

const (
	magic      = 0x70416e53
	version    = 1
	entrySize  = 16
	minChunk   = 512
	maxChunk   = 1 << 26
	firstChunk = 2 // first data chunk
)
