package thin

import (
	"errors"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// LeaseRead implements blockdev.Device: mapped blocks are lent by the data
// device, the rest is a shared region of zeroes.
func (d *Device) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.check(off, int64(n)); err != nil {
		return err
	}
	g := d.p.gens.enter()
	err := d.direct(l, off, n, m, false)
	if err != nil {
		d.p.gens.leave(g)
		return err
	}
	l.Priv.Aux = g
	return nil
}

// LeaseWrite implements blockdev.Device: blocks that belong to this device
// alone are lent directly; others are staged, and provisioned by the commit.
func (d *Device) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := d.checkWrite(off, int64(n)); err != nil {
		return err
	}
	own := n > 0
	if err := d.p.rlock(m); err != nil {
		return err
	}
	err := d.each(off, int64(n), func(vb uint64, _, _, _ int64) error {
		x, err := d.findLocked(vb, m)
		own = own && x.ok && !x.shared
		return err
	})
	d.p.mu.RUnlock()
	if err != nil {
		return err
	}
	if own {
		g := d.p.gens.enter()
		if err = d.direct(l, off, n, m, true); err == nil {
			l.Priv.Aux = g
			return nil
		}
		d.p.gens.leave(g)
		if err != errNotOwn {
			return err
		}
	}
	l.Priv.Under = l.Priv.Under[:0]
	return swap.Stage(l, d.p.cfg.Pool, d, off, n, m)
}

// errNotOwn: a block was discarded or shared between two looks at it.
var errNotOwn = errors.New("thin: block is not the device's own")

// direct takes leases on the data device for the mapped pieces.
func (d *Device) direct(l *blockdev.Lease, off int64, n int, m blockdev.Mode, write bool) error {
	swap.BeginThrough(l)
	err := d.each(off, int64(n), func(vb uint64, in, _, k int64) error {
		x, err := d.find(vb, m)
		if err != nil {
			return err
		}
		if write && (!x.ok || x.shared) {
			return errNotOwn
		}
		if !x.ok {
			l.Segs = blockdev.Zeroes(l.Segs, k)
			return nil
		}
		return swap.AddThrough(l, d.p.cfg.Data, int64(x.data)*d.p.chunk+in, int(k), m, write)
	})
	if err != nil {
		swap.EndThrough(l)
		return err
	}
	l.Off, l.Len, l.Write, l.Owner = off, n, write, d
	return nil
}

// CommitLease implements blockdev.Lender.
func (d *Device) CommitLease(l *blockdev.Lease, fua bool) error {
	return d.CommitLeaseUntil(l, fua, nil)
}

// CommitLeaseUntil implements blockdev.SpaceLender.
func (d *Device) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	if len(l.Priv.Under) == 0 {
		return d.commitStaged(l, fua, stop)
	}
	if err := swap.CommitThrough(l, false); err != nil || !fua {
		return err
	}
	return d.FlushRange(l.Off, int64(l.Len)) // the mapping too
}

// commitStaged writes a staged lease block by block, so that what covers a block
// is one write although it lies in several buffers.
func (d *Device) commitStaged(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	left, fresh := l.Segs, true
	skip := 0 // bytes of left[0] that are written
	err := d.each(l.Off, int64(l.Len), func(vb uint64, in, _, n int64) error {
		var room [4][]byte
		ps := room[:0]
		ps, left, skip = swap.Cut(ps, left, skip, int(n))
		f, err := d.writeBlock(vb, in, ps, n, stop)
		fresh = fresh && f
		return err
	})
	if err != nil || !fua {
		return err
	}
	return d.flushRange(l.Off, int64(l.Len), fresh)
}

// CommitMayBlock implements blockdev.Lender.
func (d *Device) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	return l.Len > 0 && (fua || len(l.Priv.Under) == 0 || swap.BlocksThrough(l, fua))
}

// ReleaseLease implements blockdev.Lender.
func (d *Device) ReleaseLease(l *blockdev.Lease) {
	if l.Write && len(l.Priv.Under) == 0 {
		swap.Unstage(l, d.p.cfg.Pool)
		return
	}
	swap.EndThrough(l)
	d.p.gens.leave(l.Priv.Aux)
}
