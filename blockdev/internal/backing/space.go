package backing

import (
	"errors"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Discard implements blockdev.Device.
func (v *Volume) Discard(off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	if v.cfg.Info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	if !v.cfg.Info.Discard {
		return blockdev.ErrNotSupported
	}
	if v.cfg.Prealloc {
		return v.WriteZeroes(off, n, false) // the space stays reserved
	}
	if n == 0 {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	return v.zero("discard", off, n, v.cfg.Punch, v.cfg.Info.ZeroesOnTrim)
}

// WriteZeroes implements blockdev.Device.
func (v *Volume) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	if v.cfg.Info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	if n == 0 {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	if mayUnmap && v.cfg.Info.Discard && v.cfg.Info.ZeroesOnTrim && !v.cfg.Prealloc {
		return v.zero("discard", off, n, v.cfg.Punch, true)
	}
	if v.cfg.Zero != nil {
		err := v.zero("zeroing", off, n, v.cfg.Zero, false)
		if !errors.Is(err, blockdev.ErrNotSupported) {
			return err
		}
	}
	return v.overwrite(off, n) // the slow way
}

// zero runs a deallocating or zeroing call under an exclusive claim.
func (v *Volume) zero(op string, off, n int64, call func(off, n int64) error, hole bool) error {
	if v.mustSync(false) {
		if err := v.poisoned(); err != nil {
			return err
		}
	}
	c := v.exclusive(off, n)
	defer c.end()
	if err := v.check(off, n); err != nil {
		return err
	}
	if err := v.mayWrite(off, n); err != nil {
		return err
	}
	// Pages that are cut by an edge keep their state: they still hold data.
	// The others are unknown while the call runs, so that a lease that was
	// there already cannot make them look like data.
	if !v.cfg.HolesKnown {
		v.pages.clear(off, n, pageUnknown)
	}
	err := retry(func() error { return call(off, n) })
	if !c.quiet { // a peer may still fill them: what it stores is to be found there
		v.pages.clear(off, n, pageData)
	}
	switch {
	case err != nil:
		return v.fail(op, off, n, err)
	case !c.quiet:
	case hole:
		v.pages.clear(off, n, pageHole)
	case v.cfg.HolesKnown:
		v.pages.set(off, n, pageOwned)
	}
	if v.mustSync(false) {
		return v.syncRange(off, n)
	}
	return nil
}

// Extents implements blockdev.Device.
func (v *Volume) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := v.check(off, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return []blockdev.Extent{{Off: off, Data: true}}, nil
	}
	if err := v.begin(); err != nil {
		return nil, err
	}
	defer v.opMu.RUnlock()
	var list []blockdev.Extent
	add := func(e blockdev.Extent) {
		if k := len(list); k > 0 && list[k-1].Data == e.Data {
			list[k-1].Len += e.Len
		} else {
			list = append(list, e)
		}
	}
	end := off + n
	for off < end {
		hole, k, err := v.extent(off, end)
		if err != nil {
			return nil, err
		}
		// A block that is partly data is data.
		stop := off + k
		if hole {
			stop &^= v.mask
		} else {
			stop = min((stop+v.mask)&^v.mask, end)
		}
		if stop == off {
			hole, stop = false, off+v.mask+1
		}
		add(blockdev.Extent{Off: off, Len: stop - off, Data: !hole})
		off = stop
	}
	return list, nil
}

// extent reports whether a hole or data begins at off, and how long it is
// within [off, end).
func (m *mapped) extent(off, end int64) (hole bool, n int64, err error) {
	if !m.cfg.SeekHoles {
		return false, end - off, nil
	}
	data, err := m.seek(off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		// Nothing but a hole up to the end of the file, or off is beyond it.
		if err := m.truncated(off, min(end, m.size.Load())-off); err != nil {
			return false, 0, err
		}
		return true, end - off, nil
	}
	if err != nil {
		return false, 0, m.fail("SEEK_DATA", off, end-off, err)
	}
	if data > off {
		return true, min(data, end) - off, nil
	}
	next, err := m.seek(off, unix.SEEK_HOLE)
	if err != nil {
		return false, 0, m.fail("SEEK_HOLE", off, end-off, err)
	}
	// The end of the file counts as a hole; pages are data to their end. Of the region there
	// nothing is noted unless it is whole: the file may grow by a hole.
	if next >= m.size.Load() {
		next = max(end, next)
	}
	first := off &^ (regionSize - 1)
	if hole, err := m.seek(first, unix.SEEK_HOLE); err != nil || hole < off {
		first = off
	}
	m.regions.filled(first, next)
	return false, min(next, end) - off, nil
}

func (m *mapped) seek(off int64, whence int) (n int64, err error) {
	err = retry(func() (err error) {
		n, err = m.sys.seek(m.fd, off, whence)
		return err
	})
	return n, err
}
