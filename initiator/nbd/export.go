package nbd

import (
	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// LUN is the part of a blockio.Volume that an export needs.
type LUN interface {
	// SubmitBatch starts requests; each one's Done is called exactly once.
	SubmitBatch([]*blockio.Request)
	Info() blockdev.Info
	Extents(off, n int64) ([]blockdev.Extent, error)
	// NewFlusher makes a client a user of the volume that is told by itself of a lost cache.
	NewFlusher() *blockio.Flusher
}

// Export is one volume under one name.
type Export struct {
	Name        string // "" is the default export
	Description string
	ReadOnly    bool
	LUN         LUN
}

// Flags returns the transmission flags of e.
func (e *Export) Flags() TransmissionFlags {
	info := e.LUN.Info()
	f := FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagCanMultiConn
	if e.ReadOnly || info.ReadOnly {
		return f | FlagReadOnly
	}
	f |= FlagSendWriteZeroes | FlagSendFastZero
	if info.Discard {
		f |= FlagSendTrim
	}
	if info.Rotational {
		f |= FlagRotational
	}
	return f
}

// blockSizes returns the minimum, preferred and maximum size of a request. The
// minimum is the LUN's block: smaller requests are refused with EINVAL.
func (e *Export) blockSizes() (lo, preferred, hi uint32) {
	info := e.LUN.Info()
	bs := max(info.BlockSize, 1)
	return uint32(bs), uint32(max(4096, bs, min(info.PhysBlockSize, preferredSize))), maxPayload
}

// contains reports whether [off, off+n) lies inside the volume.
func contains(size int64, off uint64, n uint32) bool {
	return off <= uint64(size) && uint64(n) <= uint64(size)-off
}
