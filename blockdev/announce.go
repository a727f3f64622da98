package blockdev

// Announcer is a device that may be told what is going to be read: storage then works at all of
// it while somebody waits for a part.
type Announcer interface {
	// Announces reports whether telling does something.
	Announces() bool
	// Announce has storage begin to read [off, off+n), of which no more than that is wanted. It
	// waits for storage at most as long as it takes to hand that over. What goes wrong is left to
	// the lease.
	Announce(off int64, n int)
	// LeaseCached is LeaseRead that does not wait for storage, nor for another lease: it fails with
	// ErrWouldBlock instead. Unlike LeaseRead with NoWait it may copy what is in memory.
	LeaseCached(l *Lease, off int64, n int) error
}
