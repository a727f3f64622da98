package volume

import (
	"context"
	"fmt"
	"sync/atomic"

	"softiser/blockdev"
)

// Placement says where the data of a WRITE is received.
type Placement uint8

const (
	// PlacementDirect receives into the volume itself where that is memory, so that nothing is copied;
	// files and devices are as with PlacementVerified.
	// When the initiator is lost in the middle of a WRITE, a logical block may be
	// half new and half old, and bytes whose CRC was wrong may be in the volume;
	// who reads these blocks before the WRITE has ended sees them as they come.
	PlacementDirect Placement = iota
	// PlacementVerified receives into pool memory and copies to the volume what
	// has arrived whole and with a good CRC. No logical block is torn by the loss
	// of an initiator or of this process, and no reader sees one in between.
	PlacementVerified
)

var placementNames = [...]string{PlacementDirect: "direct", PlacementVerified: "verified"}

// String returns the name used in configurations.
func (p Placement) String() string {
	if int(p) < len(placementNames) {
		return placementNames[p]
	}
	return fmt.Sprintf("Placement(%d)", uint8(p))
}

// UnmarshalText reads the name of a placement; nothing stands for direct.
func (p *Placement) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*p = PlacementDirect
		return nil
	}
	for v, name := range placementNames {
		if string(text) == name {
			*p = Placement(v)
			return nil
		}
	}
	return fmt.Errorf("placement %q is not known; it is direct or verified", text)
}

// MarshalText returns the name.
func (p Placement) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// WriteLender lends the memory that the data of WRITEs is received into: the
// device, or a verifier in front of it.
type WriteLender interface {
	LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error
}

// verifier lends pool memory for a volume. What has been received there is copied
// when the lease is committed, which happens once all of it has passed its checks:
//
//	wire --> pool memory --(all there, CRC good)--> WriteAt --> volume
//
// WriteAt keeps readers out of the blocks that it copies, and the kernel copies a
// block without a gap in which the process could be killed.
type verifier struct {
	blocks *badBlocks
	pool   *blockdev.Pool
	copied atomic.Uint64 // bytes
}

// LeaseWrite lends pool memory for [off, off+n).
func (v *verifier) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	return v.pool.Lend(l, v, off, n, true, m)
}

// CommitLease implements blockdev.Lender: it copies.
func (v *verifier) CommitLease(l *blockdev.Lease, fua bool) error {
	return v.CommitLeaseUntil(l, fua, context.Background())
}

// CommitLeaseUntil implements blockdev.SpaceLender.
func (v *verifier) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	off := l.Off
	for _, p := range l.Segs {
		if err := v.blocks.write(p, off, stop); err != nil {
			return err
		}
		off += int64(len(p))
	}
	if err := v.blocks.mend(l.Off, int64(l.Len)); err != nil {
		return err
	}
	v.copied.Add(uint64(l.Len))
	if fua {
		return v.blocks.medium.dev.FlushRange(l.Off, int64(l.Len))
	}
	return nil
}

// CommitMayBlock implements blockdev.Lender. Whether the copy would really wait is found out
// by placing.CommitWaits.
func (v *verifier) CommitMayBlock(*blockdev.Lease, bool) bool { return true }

// ReleaseLease implements blockdev.Lender.
func (v *verifier) ReleaseLease(l *blockdev.Lease) {
	v.pool.TakeBack(l)
}

// inlineCopy is the longest write that is copied on a receive goroutine, bytes. A longer
// one would keep the connection from receiving for longer than it takes to wake a worker.
const inlineCopy = 64 << 10

// placing is the part of a volume that says where the data of its writes is received.
type placing struct {
	blocks   *badBlocks
	lender   WriteLender // the device, or stager
	stager   *verifier   // receives what is not to be received into the device
	verifier *verifier   // nil: placement is direct
}

// init makes it receive as a placement says, into pool where that is not the device itself.
func (p *placing) init(blocks *badBlocks, placement Placement, pool *blockdev.Pool) {
	p.blocks = blocks
	p.stager = &verifier{blocks: blocks, pool: pool}
	if p.lender = blocks.medium.dev; placement == PlacementVerified && blocks.medium.dev != nil {
		p.verifier = p.stager
		p.lender = p.verifier
	}
}

// CommitWaits reports whether committing l, a write lease of the volume's Lender, is a
// worker's job. probe is the caller's, and empty again afterwards.
func (p *placing) CommitWaits(l, probe *blockdev.Lease, fua bool) bool {
	if l.Direct || fua || l.Len > inlineCopy {
		return l.MayBlock(fua)
	}
	return !p.WritesAtOnce(probe, l.Off, l.Len)
}

// claimPage is a multiple of what devices round claims of a range to.
const claimPage = 4096

// WritesAtOnce reports whether WriteAt of [off, off+n), in bytes, would wait neither for storage
// nor for a lease. It tries a write lease in probe, without waiting: if that succeeds, the
// memory behind the blocks is there. It is false for marked blocks, as removing the marks
// waits, and for parts of pages if WriteAt claims whole ones: it would wait for a lease that
// shares a page, whose data may have to be received by this very goroutine.
func (p *placing) WritesAtOnce(probe *blockdev.Lease, off int64, n int) bool {
	if (off|int64(n))&(claimPage-1) != 0 && n > p.blocks.medium.dev.Info().ExactWrite || p.blocks.marked(off, int64(n)) || p.blocks.medium.dev.LeaseWrite(probe, off, n, blockdev.Probe) != nil {
		return false
	}
	at := probe.Direct && !probe.MayBlock(false)
	probe.Release()
	return at
}

// Lender lends the memory that the data of a write of [off, off+n) is received into, which
// may be part of one that Verified was asked about. Preconditions: the command has its blocks.
func (p *placing) Lender(off, n int64) WriteLender {
	if p.blocks.marked(off, n) {
		return p.stager // its commit makes them readable
	}
	return p.lender
}

// Verified reports whether Lender lends memory in front of the device for [off, off+n).
func (p *placing) Verified(off, n int64) bool {
	return p.verifier != nil || p.blocks.marked(off, n)
}
