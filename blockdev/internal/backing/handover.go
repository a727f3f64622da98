package backing

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// HandOver implements blockdev.HandsOver.
func (v *Volume) HandOver() (blockdev.Opened, error) {
	v.resizeMu.Lock()
	defer v.resizeMu.Unlock()
	if err := v.begin(); err != nil {
		return blockdev.Opened{}, err
	}
	defer v.opMu.RUnlock()
	fd, err := unix.FcntlInt(uintptr(v.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return blockdev.Opened{}, fmt.Errorf("blockdev: %s: duplicating the descriptor: %w", v.cfg.Path, err)
	}
	v.handed.Store(true)
	return blockdev.Opened{FD: fd, Size: v.size.Load(), ID: v.cfg.Info.ID, CacheID: v.cfg.Info.CacheID, Poisoned: v.poisoned() != nil}, nil
}

// adopt goes on with what another process knew: its record of the cache is this one's. The
// file of the record stays as it is.
func (v *Volume) adopt(o *blockdev.Opened) error {
	v.handed.Store(true)
	v.cfg.Info.CacheID = o.CacheID
	if o.Poisoned {
		v.poison.Store(&blockdev.Error{Op: "sync", Store: v.cfg.Path, Len: o.Size, Kind: blockdev.ErrPoisoned})
	}
	if name := v.cfg.cacheRecord(); name != "" && !o.Poisoned && (o.CacheID != "" || stands(name)) {
		v.record = name
	}
	if v.cfg.HolesKnown {
		return v.findData()
	}
	return nil
}

// findData tells the page table of a store whose holes are to be known where they are not.
func (m *mapped) findData() error {
	for off, size := int64(0), m.cfg.Info.Size; off < size; {
		data, err := unix.Seek(m.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole follows
		}
		if err != nil {
			return fmt.Errorf("blockdev: %s: looking for data: %w", m.cfg.Path, err)
		}
		hole, err := unix.Seek(m.fd, data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("blockdev: %s: looking for holes: %w", m.cfg.Path, err)
		}
		m.pages.set(data, min(hole, size)-data, pageOwned)
		off = hole
	}
	return nil
}
