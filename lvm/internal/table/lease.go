package table

import (
	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// LeaseRead implements blockdev.Device.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.info.Check(off, int64(n)); err != nil {
		return err
	}
	return d.lease(l, off, n, m, false)
}

// LeaseWrite implements blockdev.Device.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.info.CheckWrite(off, int64(n)); err != nil {
		return err
	}
	return d.lease(l, off, n, m, true)
}

// lease has the disk fill l where one piece holds the range. Otherwise it takes
// one lower lease for each piece.
func (d *Device) lease(l *blockdev.Lease, off int64, n int, m blockdev.Mode, write bool) error {
	swap.BeginThrough(l)
	at, left := off, int64(n)
	for i := -1; left > 0; {
		if i < 0 || at >= d.runs[i].start+d.runs[i].Len {
			i = d.find(at)
		}
		s, pos, k := d.runs[i].piece(at, left)
		if s.Disk && k == int64(n) {
			return d.whole(l, s.Dev, off, pos, n, m, write)
		}
		if err := swap.AddThrough(l, s.Dev, pos, int(k), m, write); err != nil {
			swap.EndThrough(l)
			return err
		}
		at, left = at+k, left-k
	}
	l.Off, l.Len, l.Write, l.Owner = off, n, write, d
	return nil
}

// whole is a lease that the disk fills; only its offset is another there.
func (d *Device) whole(l *blockdev.Lease, dev blockdev.Device, off, pos int64, n int, m blockdev.Mode, write bool) error {
	if err := swap.Lend(l, dev, pos, n, m, write); err != nil {
		return err
	}
	l.Priv.Via, l.Priv.Shift = l.Owner, pos-off
	l.Off, l.Owner = off, d
	return nil
}

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	if v := l.Priv.Via; v != nil {
		l.Off += l.Priv.Shift
		err := v.CommitLease(l, fua)
		l.Off -= l.Priv.Shift
		return err
	}
	return swap.CommitThrough(l, fua)
}

// CommitMayBlock implements blockdev.Lender.
func (d *Device) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	if v := l.Priv.Via; v != nil {
		l.Off += l.Priv.Shift
		blocks := v.CommitMayBlock(l, fua)
		l.Off -= l.Priv.Shift
		return blocks
	}
	return swap.BlocksThrough(l, fua)
}

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	if v := l.Priv.Via; v != nil {
		l.Priv.Via = nil
		l.Off += l.Priv.Shift
		v.ReleaseLease(l)
		return
	}
	swap.EndThrough(l)
}
