package scsi

import (
	"softiser/blockdev"
	"softiser/target/volume"
)

// Placement says where the data of a WRITE is received.
type Placement = volume.Placement

// Placements.
const (
	PlacementDirect   = volume.PlacementDirect
	PlacementVerified = volume.PlacementVerified
)

// inlineCopy is the longest write that is copied on the receive goroutine, bytes.
// A longer one would keep the connection from receiving for longer than it takes to
// wake a worker.
const inlineCopy = 64 << 10

// commitWaits reports whether committing the lease of a WRITE is a worker's job.
func (t *Task) commitWaits() bool {
	fua := t.fua()
	if !t.lu.vol.Verified() || fua || t.Lease.Len > inlineCopy {
		return t.Lease.MayBlock(fua)
	}
	return !writesAtOnce(t.lu.disk, &t.probe, t.Lease.Off, t.Lease.Len)
}

// claimPage is a multiple of what devices round claims of a range to.
const claimPage = 4096

// writesAtOnce reports whether WriteAt would wait neither for storage nor for what is
// lent: a write lease that can be had without waiting, for which l is used, shows that
// the memory behind the blocks is there. WriteAt claims whole pages; beside a lease
// that shares one it would wait, and the data of that lease may be due on this very
// goroutine.
func writesAtOnce(vol blockdev.Device, l *blockdev.Lease, off int64, n int) bool {
	if (off|int64(n))&(claimPage-1) != 0 || vol.LeaseWrite(l, off, n, blockdev.NoWait) != nil {
		return false
	}
	at := l.Direct && !l.MayBlock(false)
	l.Release()
	return at
}
