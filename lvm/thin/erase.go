package thin

import (
	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// Erase implements blockdev.Eraser: the blocks that belong to this device alone
// are overwritten before the pool gets any of them back, which would hand them on
// as they are. Those of a snapshot stay, and are only taken out of this device.
func (d *Device) Erase(off, n int64) error { return d.EraseUntil(off, n, nil) }

// EraseUntil is Erase; a wait for space ends with blockdev.ErrStopped when stop,
// which may be nil, says so. The ends of the range may lie in shared blocks.
func (d *Device) EraseUntil(off, n int64, stop blockdev.Stop) error {
	if err := d.checkWrite(off, n); err != nil {
		return err
	}
	es, err := d.Extents(off, n)
	if err != nil {
		return err
	}
	for _, e := range es {
		if !e.Data {
			continue
		}
		if err := d.each(e.Off, e.Len, func(vb uint64, in, _, n int64) error { return d.eraseOwn(vb, in, n) }); err != nil {
			return err
		}
	}
	if d.p.cfg.NoDiscard {
		err = d.WriteZeroesUntil(off, n, false, stop) // what is shared
	} else {
		err = d.zero(off, n, true, stop)
	}
	if err != nil {
		return err
	}
	return d.FlushRange(off, n)
}

// eraseOwn overwrites a part of a block if no other device has it.
func (d *Device) eraseOwn(vb uint64, in, n int64) error {
	g := d.p.gens.enter()
	defer d.p.gens.leave(g)
	m, err := d.lookup(vb)
	if err != nil || !m.ok || m.shared {
		return err
	}
	return swap.Erase(d.p.cfg.Data, int64(m.data)*d.p.chunk+in, n)
}

var _ blockdev.Eraser = (*Device)(nil)
