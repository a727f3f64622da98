package backing

import (
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
	"softiser/internal/sizeflag"
)

// Resize implements blockdev.Resizer. Growing is bounded by the room that was
// mapped when the volume was opened (room.go): mostly to four times its size then.
func (v *Volume) Resize(n int64) error {
	if v.cfg.Truncate == nil {
		return fmt.Errorf("blockdev: the size of %s cannot be changed from here; resize the device itself: %w", v.cfg.Path, blockdev.ErrNotSupported)
	}
	if v.cfg.Info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	if err := blockdev.CheckGeometry(n, v.cfg.Info.BlockSize, v.cfg.Info.PhysBlockSize); err != nil {
		return err
	}
	return v.hooks.Change(func() error { return v.resize(n) }, v.Info)
}

// resize changes the size within the address space that was reserved at opening. It does
// not shrink below a range that is in use (blockdev.ErrInUse).
func (v *Volume) resize(n int64) error {
	v.resizeMu.Lock()
	defer v.resizeMu.Unlock()
	if v.closed.Load() {
		return blockdev.ErrClosed
	}
	old := v.size.Load()
	if n > int64(len(v.mem)) {
		return fmt.Errorf("blockdev: %s can grow to %s while it is open; close and reopen it to reach %s", v.cfg.Path, sizeflag.Text(int64(len(v.mem))), sizeflag.Text(n))
	}
	// A store that somebody has shortened would read as zeroes where data was lost.
	if err := v.truncated(0, min(n, old)); err != nil {
		return err
	}
	if n >= old {
		if err := v.truncate(n); err != nil {
			return v.fail("resize", old, n-old, err)
		}
		if v.cfg.Lock {
			if err := v.lock(old, n); err != nil {
				v.truncate(old) // undo; should that fail, a longer file does no harm
				return err
			}
		}
		v.grow(n)
		return nil
	}
	// The new limit first, then the look at open ranges: every lease enters its
	// range first and looks at the limit then.
	return v.decide(n, func() error {
		if open := v.ranges.OpenBeyond(n); open != 0 {
			return fmt.Errorf("blockdev: %s: %s in use beyond the new end: %w", v.cfg.Path, english.Plural(int(open), "range is", "ranges are"), blockdev.ErrInUse)
		}
		if err := v.truncate(n); err != nil {
			return v.fail("resize", n, old-n, err)
		}
		v.pages.clear(v.ceil(n), int64(len(v.mem))-v.ceil(n), pageUnknown)
		v.regions.forget(n)
		return nil
	})
}

// truncate sets the length of the store.
func (m *mapped) truncate(n int64) error { return retry(func() error { return m.cfg.Truncate(n) }) }

// truncated reports an error if the store has become shorter than [off, off+n)
// behind the volume's back.
func (m *mapped) truncated(off, n int64) error {
	if m.cfg.StoreSize == nil {
		return nil
	}
	have, err := m.cfg.StoreSize()
	if err != nil {
		return m.fail("stat", off, n, err)
	}
	if have >= off+n {
		return nil
	}
	// A resize may have cut it off since the caller looked at the size. Now none does, and the
	// store is always longer before the size is.
	m.deciding.RLock()
	size := m.size.Load()
	have, err = m.cfg.StoreSize()
	m.deciding.RUnlock()
	if err != nil {
		return m.fail("stat", off, n, err)
	}
	if have >= min(off+n, size) {
		return nil
	}
	m.forget(have)
	return m.fail("stat", off, n, fmt.Errorf("the backing store is only %d bytes long now: %w", have, io.ErrUnexpectedEOF))
}

// mayWrite refuses what would write behind the end of a store that somebody has shortened: that would make it
// longer again, and what was lost read as zeroes. Where the length may have to be asked of a server, as NFS does after it
// has written everything back, the watcher alone looks.
func (m *mapped) mayWrite(off, n int64) error {
	if m.cfg.Truncate == nil || !m.cfg.Local && !m.shortened.Load() {
		return nil // of a raw device the kernel refuses it
	}
	return m.truncated(off, n)
}

// noticeTruncation drops what was known beyond the store's end, so that leases
// there take the slow way and get an error.
func (m *mapped) noticeTruncation() {
	if m.cfg.StoreSize == nil {
		return
	}
	if have, err := m.cfg.StoreSize(); err == nil {
		m.forget(have)
	}
}

func (m *mapped) forget(beyond int64) {
	size := m.size.Load()
	m.shortened.Store(beyond < size)
	beyond = max(m.floor(beyond), 0)
	if beyond < size {
		m.pages.clear(beyond, m.ceil(size)-beyond, pageUnknown)
		m.regions.forget(beyond)
	}
}

// poll looks at the store for the watcher: a store that has grown makes the
// volume grow if it follows, one that was truncated is noticed.
func (v *Volume) poll() {
	if !v.pollSize(false) {
		return
	}
	_ = v.hooks.Change(func() error {
		if !v.pollSize(true) {
			return errAsBefore
		}
		return nil
	}, v.Info)
}

var errAsBefore = errors.New("blockdev: the volume has not grown")

// pollSize is poll for one look: it reports whether the volume is to grow, or with grow that it has grown.
func (v *Volume) pollSize(grow bool) bool {
	v.resizeMu.Lock()
	defer v.resizeMu.Unlock()
	if v.closed.Load() {
		return false
	}
	have, err := v.cfg.StoreSize()
	if err != nil {
		return false
	}
	size := v.size.Load()
	if have < size {
		v.forget(have)
		return false
	}
	v.shortened.Store(false)
	have &^= v.mask
	if !v.cfg.Follow || have <= size || have > int64(len(v.mem)) {
		return false
	}
	if !grow {
		return true
	}
	if v.cfg.Lock && v.lock(size, have) != nil {
		return false // it is tried again: the limit of the process may be raised
	}
	v.grow(have)
	return true
}
