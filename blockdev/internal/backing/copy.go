package backing

import (
	"io"
	"sync"

	"softiser/blockdev"
)

// ReadAt implements blockdev.Device by pread. It waits for copies into the range
// that came before.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if err := v.begin(); err != nil {
		return 0, err
	}
	defer v.opMu.RUnlock()
	if len(p) == 0 {
		return 0, nil
	}
	n := int64(len(p))
	ticket, err := v.share(off, n)
	if err != nil {
		return 0, err
	}
	defer v.ranges.EndShared(off, n, ticket)
	if err := v.pread(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device by pwrite. It waits, up to the volume's
// patience, for direct leases of the range.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	if v.cfg.Info.ReadOnly {
		return 0, blockdev.ErrReadOnly
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := v.begin(); err != nil {
		return 0, err
	}
	defer v.opMu.RUnlock()
	one := pieces.Get().(*[1][]byte)
	one[0] = p
	err := v.store(one[:], off, int64(len(p)), false)
	one[0] = nil
	pieces.Put(one)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// pieces are the lists of one piece that WriteAt gives to vectored calls; a
// write allocates nothing.
var pieces = sync.Pool{New: func() any { return new([1][]byte) }}

// share claims a range that is going to be copied from. Copies into it that came before are
// waited for. Whoever gets it calls EndShared.
func (v *Volume) share(off, n int64) (ticket uint64, err error) {
	ticket = v.ranges.Shared(off, n)
	// Once more, now that a shrinking resize would see this range.
	if err := v.check(off, n); err != nil {
		v.ranges.EndShared(off, n, ticket)
		return 0, err
	}
	return ticket, nil
}

// pread fills p or fails. The end of the file inside the device means that
// somebody truncated it.
func (m *mapped) pread(p []byte, off int64) error {
	for done := 0; done < len(p); {
		var k int
		err := retry(func() (err error) {
			k, err = m.sys.pread(m.fd, p[done:], off+int64(done))
			return err
		})
		if err == nil && k == 0 {
			err = io.ErrUnexpectedEOF
			m.noticeTruncation()
		}
		if err != nil {
			return m.fail("pread", off+int64(done), int64(len(p)-done), err)
		}
		done += k
	}
	return nil
}

// store copies bufs, n bytes in all, into the device at off. What has to be durable
// is synced by a call of its own rather than by RWF_DSYNC: with that, nobody could
// tell a full disk, which has lost nothing, from data of others that could not be
// written back.
func (v *Volume) store(bufs [][]byte, off, n int64, fua bool) error {
	if !v.mustSync(fua) {
		return v.put(bufs, off, n)
	}
	if err := v.poisoned(); err != nil {
		return err
	}
	if err := v.put(bufs, off, n); err != nil {
		return err
	}
	return v.syncRange(off, n)
}

// put is store without the sync.
func (v *Volume) put(bufs [][]byte, off, n int64) error {
	if v.placeable(off, n) {
		c := newClaim(v, off, n) // no page changes its state, so no lease of another part of one is waited for
		done, err := c.place(bufs)
		if c.end(); done || err != nil {
			return err
		}
	}
	defer v.exclusive(off, n).end()
	// The size may have changed since the lease was taken.
	if err := v.check(off, n); err != nil {
		return err
	}
	if err := v.mayWrite(off, n); err != nil {
		return err
	}
	if err := v.pwrite(bufs, off); err != nil {
		// The write may have been done in part, so the state of the pages is unknown, unless
		// only this process can change them (memory volumes).
		if v.cfg.HolesKnown {
			v.pages.set(off, n, pageOwned)
		} else {
			v.pages.clear(v.floor(off), v.ceil(off+n)-v.floor(off), pageUnknown)
		}
		return err
	}
	v.pages.set(off, n, pageOwned)
	return nil
}

// claim is a range that its holder has to itself.
type claim struct {
	v             *Volume
	first, length int64
	ticket        uint64
	quiet         bool // every lease of it was given back
}

// end gives the range back.
func (c claim) end() { c.v.ranges.EndExclusive(c.first, c.length, c.ticket) }

// place copies bufs into the pages of the range, which is as long. It reports false when they cannot be
// stored to any more.
func (c claim) place(bufs [][]byte) (done bool, err error) {
	if err := c.v.check(c.first, c.length); err != nil {
		return false, err
	}
	if err := c.v.mayWrite(c.first, c.length); err != nil {
		return false, err
	}
	return c.v.placeable(c.first, c.length) && c.v.place(bufs, c.first), nil
}

// exclusive claims the whole pages around a range, so that no direct lease
// shares a page whose state changes, until the claim is ended.
func (v *Volume) exclusive(off, n int64) claim {
	first := v.floor(off)
	return newClaim(v, first, v.ceil(off+n)-first)
}

// newClaim claims a range of v, which the caller ends.
func newClaim(v *Volume, off, n int64) claim {
	c := claim{v: v, first: off, length: n}
	c.ticket, c.quiet = v.ranges.Exclusive(c.first, c.length, v.patience) // after the patience it goes on although leases are open
	return c
}

// pieceMax is the most that one call writes to a file, bytes: folios become as large as what is written, and for
// a short write ext4 walks all blocks of the folio (1.2 µs in a page, 2.4 in 64 KiB, 12 and more in 1 MiB).
const pieceMax = 64 << 10

// pwrite writes everything or fails.
func (m *mapped) pwrite(bufs [][]byte, off int64) error {
	for len(bufs) > 0 && !m.inPlace() {
		k, n := 0, int64(0)
		for k < len(bufs) && n+int64(len(bufs[k])) <= pieceMax {
			n += int64(len(bufs[k]))
			k++
		}
		var err error
		if k > 0 {
			err = m.pwriteAll(bufs[:k], off)
		} else {
			k, n = 1, int64(len(bufs[0]))
			err = m.pwriteLong(bufs[0], off)
		}
		if err != nil {
			return err
		}
		bufs, off = bufs[k:], off+n
	}
	return m.pwriteAll(bufs, off)
}

// pwriteLong is pwrite of one buffer that is longer than a piece.
func (m *mapped) pwriteLong(p []byte, off int64) error {
	one := pieces.Get().(*[1][]byte)
	defer func() {
		one[0] = nil
		pieces.Put(one)
	}()
	for len(p) > 0 {
		n := min(len(p), pieceMax)
		one[0] = p[:n]
		if err := m.pwriteAll(one[:], off); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// pwriteAll writes everything, by as few calls as the kernel allows, or fails.
func (m *mapped) pwriteAll(bufs [][]byte, off int64) error {
	var rest [][]byte // a copy of bufs, made after the first short write: bufs belong to the caller
	for len(bufs) > 0 {
		// The kernel takes at most 1024 pieces at once.
		batch := bufs[:min(len(bufs), 1024)]
		want := total(batch)
		var k int
		err := retry(func() (err error) {
			k, err = m.sys.pwritev(m.fd, batch, off)
			return err
		})
		if err == nil && k == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return m.fail("pwrite", off, want, err)
		}
		off += int64(k)
		if int64(k) == want {
			bufs = bufs[len(batch):]
			continue
		}
		if rest == nil {
			rest = append(rest, bufs...)
			bufs = rest
		}
		bufs = advance(bufs, k)
	}
	return nil
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

// advance drops the first n bytes of bufs in place.
func advance(bufs [][]byte, n int) [][]byte {
	for n > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
