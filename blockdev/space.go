package blockdev

import "errors"

// ErrStopped is returned by a wait for space that was given up by its Stop.
var ErrStopped = errors.New("blockdev: the wait for space was given up")

// Stop can end a wait; a context is one. Done is called only when a wait begins, so that an
// implementation may make the channel as late as then.
type Stop interface {
	// Done is closed when the wait is to end.
	Done() <-chan struct{}
}

// SpaceWaiter is a device on which writes may wait for space: a volume of a thin
// pool that is full. Its methods are those of Device, but the wait ends with
// ErrStopped when stop says so. The blocks that had no space then are as they
// were, and nothing is written to them later.
type SpaceWaiter interface {
	WriteAtUntil(p []byte, off int64, stop Stop) (int, error)
	WriteZeroesUntil(off, n int64, mayUnmap bool, stop Stop) error
	DiscardUntil(off, n int64, stop Stop) error
}

// SpaceLender is the part of a SpaceWaiter that commits leases.
type SpaceLender interface {
	// CommitLeaseUntil is CommitLease; a wait for space ends as stop says.
	CommitLeaseUntil(l *Lease, fua bool, stop Stop) error
}

// CommitUntil is Commit; a wait for space ends with ErrStopped when stop says so.
func (l *Lease) CommitUntil(fua bool, stop Stop) error {
	if o, ok := l.Owner.(SpaceLender); ok {
		return o.CommitLeaseUntil(l, fua, stop)
	}
	return l.Owner.CommitLease(l, fua)
}
