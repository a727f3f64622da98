package backing

import (
	"softiser/blockdev"
)

// LeaseRead implements blockdev.Device.
func (v *Volume) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := v.checkMode(off, int64(n), m); err != nil {
		return err
	}
	l.Off, l.Len, l.Write = off, n, false
	l.Segs = l.Segs[:0]
	if n == 0 {
		l.Direct, l.Owner = false, v
		return nil
	}
	if v.ranges.TryRead(off, int64(n)) {
		// Once more, now that a shrinking resize would see this range.
		if err := v.checkMode(off, int64(n), m); err != nil {
			v.ranges.EndRead(off, int64(n))
			return err
		}
		if v.pages.readable(off, int64(n)) {
			l.Segs = append(l.Segs, v.mem[off:off+int64(n):off+int64(n)])
			l.Direct, l.Owner = true, v
			return nil
		}
		ok, err := v.lend(l, m)
		if ok {
			l.Direct, l.Owner = true, v
			return nil
		}
		v.ranges.EndRead(off, int64(n))
		l.Segs = l.Segs[:0]
		if err != nil {
			return err
		}
	}
	if m != blockdev.Wait {
		return blockdev.ErrWouldBlock
	}
	return v.stageRead(l)
}

// lend fills l with runs of the mapping and of zeroes, after finding out about
// unknown pages if it may wait. It reports false without an error where a
// staged copy may still succeed.
func (v *Volume) lend(l *blockdev.Lease, m blockdev.Mode) (bool, error) {
	off, end := l.Off, l.Off+int64(l.Len)
	looked := false
	for off < end {
		state, n := v.pages.run(off, end)
		switch state {
		case pageUnknown:
			if m != blockdev.Wait {
				if !v.asks.worth() || !v.asks.was(v.known(off, n)) {
					return false, nil
				}
				continue
			}
			// One look is enough: what it has found stays true as long as this lease
			// keeps others out.
			if looked {
				return false, nil
			}
			looked = true
			if err := v.learn(l.Off, end); err != nil {
				return false, err
			}
			continue
		case pageHole:
			l.Segs = blockdev.Zeroes(l.Segs, n)
		default:
			l.Segs = append(l.Segs, v.mem[off:off+n:off+n])
		}
		off += n
	}
	return true, nil
}

// learn finds out about the unknown pages of [off, end): holes are noted, data
// is brought into memory. It blocks on storage, with the range lent.
func (m *mapped) learn(off, end int64) error {
	for off < end {
		state, n := m.pages.run(off, end)
		if state == pageUnknown {
			if err := m.learnRun(m.floor(off), min(m.ceil(off+n), m.ceil(m.size.Load()))); err != nil {
				return err
			}
		}
		off += n
	}
	return nil
}

// holeAhead is how far a hole is noted beyond the range that was asked for, bytes:
// random reads of a sparse volume soon need no system call.
const holeAhead = 64 << 20

// learnRun is learn for whole pages that are all unknown.
func (m *mapped) learnRun(off, end int64) error {
	for off < end {
		if m.regions.full(off, end) {
			return m.learnData(off, end-off)
		}
		// Pages behind the lease may be marked as a hole although others may be writing
		// there: writers mark their pages as owned afterwards, and what has a mark gets
		// no other by this (see pages.set); a write that fails takes marks away (pages.setHoles).
		look := m.pages.look()
		hole, n, err := m.extent(off, max(end, min(off+holeAhead, m.ceil(m.size.Load()))))
		if err != nil {
			return err
		}
		if !hole {
			n = min(n, end-off)
		}
		// Only whole pages are holes, and every page with some data is data.
		if hole {
			if n = m.floor(off+n) - off; n == 0 {
				n = m.page
				hole = false
			}
		} else {
			whole := m.ceil(off+n) - off
			// The page in which a store ends that somebody has shortened can be read, too: zeroes behind the end.
			if whole != n {
				if err := m.truncated(off, min(whole, m.size.Load()-off)); err != nil {
					return err
				}
			}
			n = whole
		}
		if hole {
			if !m.pages.setHoles(off, n, look) {
				return nil // what is not noted is read by a copy
			}
		} else {
			if err := m.learnData(off, n); err != nil {
				return err
			}
		}
		off += n
	}
	return nil
}

// learnData is learnRun for pages that hold data.
func (m *mapped) learnData(off, n int64) error {
	if m.byCopy(off, n) {
		return nil // stageRead notes it
	}
	if err := m.bring(off, n); err != nil {
		return err
	}
	m.pages.set(off, n, pageData)
	return nil
}

// stageRead copies the range into pool memory, which no concurrent write can
// change under a transmission. Copies into the range that came before are waited
// for, those that come later wait: what is read is never half overwritten.
func (v *Volume) stageRead(l *blockdev.Lease) error {
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	bufs, err := v.pool.Get(l.Priv.Pool[:0], l.Len, blockdev.Wait)
	if err != nil {
		return err
	}
	l.Priv.Pool = bufs
	ticket, err := v.share(l.Off, int64(l.Len))
	if err != nil {
		v.pool.Put(bufs)
		l.Priv.Pool = bufs[:0]
		return err
	}
	defer v.ranges.EndShared(l.Off, int64(l.Len), ticket)
	off := l.Off
	for _, b := range bufs {
		if err := v.pread(b, off); err != nil {
			v.pool.Put(bufs)
			l.Priv.Pool = bufs[:0]
			return err
		}
		off += int64(len(b))
	}
	v.lendCopy(l, l.Off, l.Len, bufs)
	return nil
}

// lendCopy makes l a lease of bufs, which have what was read. Preconditions: the range is claimed.
func (v *Volume) lendCopy(l *blockdev.Lease, off int64, n int, bufs [][]byte) {
	// Who asks next gets it from the mapping; unless the volume has shrunk before it was claimed.
	if v.short(off, int64(n)) && v.checkMode(off, int64(n), blockdev.NoWait) == nil {
		v.pages.set(off, int64(n), pageData)
	}
	l.Off, l.Len, l.Write = off, n, false
	l.Segs = append(l.Segs[:0], bufs...)
	l.Priv.Pool = bufs
	l.Direct, l.Owner = false, v
}

// ReleaseLease implements blockdev.Lender.
func (v *Volume) ReleaseLease(l *blockdev.Lease) {
	switch {
	case l.Len == 0:
	case !l.Direct:
		v.pool.Put(l.Priv.Pool)
		l.Priv.Pool = l.Priv.Pool[:0]
	case l.Write:
		v.ranges.EndWrite(l.Off, int64(l.Len))
	default:
		v.ranges.EndRead(l.Off, int64(l.Len))
	}
	l.Segs = l.Segs[:0]
}
