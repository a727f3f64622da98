package blockdev

// Announcer is a device that can be told in advance what will be read, so that storage begins
// all of these reads while the caller waits for the first of them.
type Announcer interface {
	// Announces reports whether Announce has an effect.
	Announces() bool
	// Announce has storage begin to read exactly [off, off+n), in bytes, without read-ahead. It
	// blocks at most until storage has accepted the read. Errors are reported by the lease that
	// follows.
	Announce(off int64, n int)
	// LeaseCached is LeaseRead that does not wait for storage, nor for another lease: it fails with
	// ErrWouldBlock instead. Unlike LeaseRead with NoWait it may copy what is in memory.
	LeaseCached(l *Lease, off int64, n int) error
}
