package swap

import "softiser/blockdev"

// Through fills l with a lease on dev, kept below l in its own state, so that
// owner sees it come back. End it with EndThrough.
func Through(l *blockdev.Lease, owner blockdev.Lender, dev blockdev.Device, off int64, n int, m blockdev.Mode, write bool) error {
	if cap(l.Priv.Under) == 0 {
		l.Priv.Under = make([]blockdev.Lease, 1)
	}
	l.Priv.Under = l.Priv.Under[:1]
	u := &l.Priv.Under[0]
	var err error
	if write {
		err = dev.LeaseWrite(u, off, n, m)
	} else {
		err = dev.LeaseRead(u, off, n, m)
	}
	if err != nil {
		l.Priv.Under = l.Priv.Under[:0]
		return err
	}
	l.Segs = append(l.Segs[:0], u.Segs...)
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, write, u.Direct, owner
	return nil
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
