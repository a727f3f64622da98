package blockdev

// Lease is memory lent by a Device for one command. The zero value is ready;
// the caller owns the struct and reuses it, so that nothing is allocated per
// command. Between a successful Lease call and Release the slices in Segs may
// be read (read lease) or filled (write lease) by any goroutine or system call.
// Go code touches Segs of a mapped device only under debug.SetPanicOnFault.
type Lease struct {
	Segs   [][]byte // the range in order; its backing array is kept across uses
	Off    int64    // start of the range, bytes
	Len    int      // length of the range, bytes
	Write  bool     // a write lease
	Direct bool     // Segs are the volume itself; false: pool memory

	// Owner is the device that lent it, nil when the lease is free.
	Owner Lender
	// Priv is the owner's per-lease state; it keeps its memory across uses.
	Priv LeaseState
}

// LeaseState is what a Lender keeps in a lease: staging buffers, and the leases of
// devices below it.
type LeaseState struct {
	Pool  [][]byte // staging buffers to give back
	Via   Lender   // the disk that lent into this lease itself (LVM)
	Shift int64    // where the range begins there, less Off, bytes
	Under []Lease  // leases on several lower devices (LVM)
	Aux   uint64   // a number of the owner's own
}

// Lender is the part of a device that takes leases back.
type Lender interface {
	// CommitLease makes a filled write lease the content of its range; with
	// fua it is durable when the call returns. It may block (see MayBlock).
	CommitLease(l *Lease, fua bool) error
	// CommitMayBlock reports whether CommitLease would do system calls that wait
	// for storage or for another lease.
	CommitMayBlock(l *Lease, fua bool) bool
	// ReleaseLease takes the memory back. It never blocks.
	ReleaseLease(l *Lease)
}

// Commit makes a filled write lease the content of its range; with fua it is durable when
// Commit returns. The caller still has to call Release. Errors are those of Device.WriteAt
// and, with fua, Device.FlushRange.
func (l *Lease) Commit(fua bool) error { return l.Owner.CommitLease(l, fua) }

// MayBlock reports whether Commit may wait for storage; the receive goroutine
// then hands it to a worker.
func (l *Lease) MayBlock(fua bool) bool { return l.Owner.CommitMayBlock(l, fua) }

// Release gives the memory back; a released or never filled lease is a no-op.
func (l *Lease) Release() {
	if o := l.Owner; o != nil {
		l.Owner = nil
		o.ReleaseLease(l)
	}
}
