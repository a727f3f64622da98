package table

import "softiser/blockdev"

// LeaseRead implements blockdev.Device.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n), false); err != nil {
		return err
	}
	return d.lease(l, off, n, m, false)
}

// LeaseWrite implements blockdev.Device.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n), true); err != nil {
		return err
	}
	return d.lease(l, off, n, m, true)
}

// lease takes one lower lease for each piece, in l.Priv.Under, whose memory is
// kept from use to use.
func (d *Device) lease(l *blockdev.Lease, off int64, n int, m blockdev.Mode, write bool) error {
	under, segs := l.Priv.Under[:0], l.Segs[:0]
	direct := true
	at, left := off, int64(n)
	for i := -1; left > 0; {
		if i < 0 || at >= d.runs[i].start+d.runs[i].Len {
			i = d.find(at)
		}
		dev, pos, k := d.runs[i].piece(at, left)
		if len(under) < cap(under) {
			under = under[:len(under)+1] // with the memory of its last use
		} else {
			under = append(under, blockdev.Lease{})
		}
		u := &under[len(under)-1]
		var err error
		if write {
			err = dev.LeaseWrite(u, pos, int(k), m)
		} else {
			err = dev.LeaseRead(u, pos, int(k), m)
		}
		if err != nil {
			for j := range under[:len(under)-1] {
				under[j].Release()
			}
			l.Priv.Under, l.Segs = under[:0], segs[:0]
			return err
		}
		direct = direct && u.Direct
		segs = append(segs, u.Segs...)
		at, left = at+k, left-k
	}
	l.Priv.Under, l.Segs = under, segs
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, write, direct, d
	return nil
}

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	for i := range l.Priv.Under {
		if err := l.Priv.Under[i].Commit(fua); err != nil {
			return err
		}
	}
	return nil
}

// CommitBlocks implements blockdev.Lender.
func (d *Device) CommitBlocks(l *blockdev.Lease, fua bool) bool {
	for i := range l.Priv.Under {
		if l.Priv.Under[i].MayBlock(fua) {
			return true
		}
	}
	return false
}

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	for i := range l.Priv.Under {
		l.Priv.Under[i].Release()
	}
	l.Priv.Under, l.Segs = l.Priv.Under[:0], l.Segs[:0]
}
