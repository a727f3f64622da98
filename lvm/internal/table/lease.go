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

// lease has the disk fill l where one piece holds the range. Otherwise it takes
// one lower lease for each piece, in l.Priv.Under, whose memory is kept from use
// to use.
func (d *Device) lease(l *blockdev.Lease, off int64, n int, m blockdev.Mode, write bool) error {
	under, segs := l.Priv.Under[:0], l.Segs[:0]
	direct := true
	at, left := off, int64(n)
	for i := -1; left > 0; {
		if i < 0 || at >= d.runs[i].start+d.runs[i].Len {
			i = d.find(at)
		}
		s, pos, k := d.runs[i].piece(at, left)
		if s.Disk && k == int64(n) {
			return d.whole(l, s.Dev, off, pos, n, m, write)
		}
		if len(under) < cap(under) {
			under = under[:len(under)+1] // an old element, whose slices are reused
		} else {
			under = append(under, blockdev.Lease{})
		}
		u := &under[len(under)-1]
		if err := lend(u, s.Dev, pos, int(k), m, write); err != nil {
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

// whole is a lease that the disk fills; only its offset is another there.
func (d *Device) whole(l *blockdev.Lease, dev blockdev.Device, off, pos int64, n int, m blockdev.Mode, write bool) error {
	if err := lend(l, dev, pos, n, m, write); err != nil {
		return err
	}
	l.Priv.Via, l.Priv.Shift = l.Owner, pos-off
	l.Off, l.Owner = off, d
	return nil
}

func lend(l *blockdev.Lease, dev blockdev.Device, off int64, n int, m blockdev.Mode, write bool) error {
	if write {
		return dev.LeaseWrite(l, off, n, m)
	}
	return dev.LeaseRead(l, off, n, m)
}

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	if v := l.Priv.Via; v != nil {
		l.Off += l.Priv.Shift
		err := v.CommitLease(l, fua)
		l.Off -= l.Priv.Shift
		return err
	}
	for i := range l.Priv.Under {
		if err := l.Priv.Under[i].Commit(fua); err != nil {
			return err
		}
	}
	return nil
}

// CommitBlocks implements blockdev.Lender.
func (d *Device) CommitBlocks(l *blockdev.Lease, fua bool) bool {
	if v := l.Priv.Via; v != nil {
		l.Off += l.Priv.Shift
		blocks := v.CommitBlocks(l, fua)
		l.Off -= l.Priv.Shift
		return blocks
	}
	for i := range l.Priv.Under {
		if l.Priv.Under[i].MayBlock(fua) {
			return true
		}
	}
	return false
}

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	if v := l.Priv.Via; v != nil {
		l.Priv.Via = nil
		l.Off += l.Priv.Shift
		v.ReleaseLease(l)
		return
	}
	for i := range l.Priv.Under {
		l.Priv.Under[i].Release()
	}
	l.Priv.Under, l.Segs = l.Priv.Under[:0], l.Segs[:0]
}
