package swap

import "softiser/blockdev"

// Through fills l with a lease on dev, kept below l in its own state, so that
// owner sees it come back. End it with EndThrough.
func Through(l *blockdev.Lease, owner blockdev.Lender, dev blockdev.Device, off int64, n int, m blockdev.Mode, write bool) error {
	BeginThrough(l)
	if err := AddThrough(l, dev, off, n, m, write); err != nil {
		return err
	}
	l.Off, l.Len, l.Write, l.Owner = off, n, write, owner
	return nil
}

// BeginThrough begins a lease that several devices lend, each a part of it. AddThrough adds these in
// their order; then the caller says of l what it is, and whose. When one fails EndThrough gives the others back.
func BeginThrough(l *blockdev.Lease) {
	l.Priv.Under, l.Segs, l.Direct = l.Priv.Under[:0], l.Segs[:0], true
}

// AddThrough has dev lend the next part of l, which is at off there. The lease below l has the slices of an old
// one, if there is any.
func AddThrough(l *blockdev.Lease, dev blockdev.Device, off int64, n int, m blockdev.Mode, write bool) error {
	i := len(l.Priv.Under)
	if i < cap(l.Priv.Under) {
		l.Priv.Under = l.Priv.Under[:i+1]
	} else {
		l.Priv.Under = append(l.Priv.Under, blockdev.Lease{})
	}
	u := &l.Priv.Under[i]
	if err := Lend(u, dev, off, n, m, write); err != nil {
		l.Priv.Under = l.Priv.Under[:i]
		return err
	}
	l.Segs, l.Direct = append(l.Segs, u.Segs...), l.Direct && u.Direct
	return nil
}

// Lend is a LeaseWrite of dev, or else a LeaseRead.
func Lend(l *blockdev.Lease, dev blockdev.Device, off int64, n int, m blockdev.Mode, write bool) error {
	if write {
		return dev.LeaseWrite(l, off, n, m)
	}
	return dev.LeaseRead(l, off, n, m)
}

// EndThrough releases the leases below l.
func EndThrough(l *blockdev.Lease) {
	for i := range l.Priv.Under {
		l.Priv.Under[i].Release()
	}
	l.Priv.Under, l.Segs = l.Priv.Under[:0], l.Segs[:0]
}

// CommitThrough commits the leases below l.
func CommitThrough(l *blockdev.Lease, fua bool) error {
	for i := range l.Priv.Under {
		if err := l.Priv.Under[i].Commit(fua); err != nil {
			return err
		}
	}
	return nil
}

// BlocksThrough reports whether CommitThrough may wait for storage.
func BlocksThrough(l *blockdev.Lease, fua bool) bool {
	for i := range l.Priv.Under {
		if l.Priv.Under[i].MayBlock(fua) {
			return true
		}
	}
	return false
}
