package swap

import (
	"sync/atomic"

	"softiser/blockdev"
)

// Stage fills l with pool memory for a write that owner will commit by
// WriteStaged.
func Stage(l *blockdev.Lease, pool *blockdev.Pool, owner blockdev.Lender, off int64, n int, m blockdev.Mode) error {
	var err error
	if l.Segs, err = pool.Get(l.Segs[:0], n, m); err != nil {
		return err
	}
	l.Off, l.Len, l.Write, l.Direct, l.Owner = off, n, true, false, owner
	return nil
}

// StageRead fills l with a copy of the range, read from dev.
func StageRead(l *blockdev.Lease, pool *blockdev.Pool, owner blockdev.Lender, dev blockdev.Device, off int64, n int, m blockdev.Mode) error {
	if err := Stage(l, pool, owner, off, n, m); err != nil {
		return err
	}
	l.Write = false
	at := off
	for _, s := range l.Segs {
		if _, err := dev.ReadAt(s, at); err != nil {
			l.Owner = nil
			Unstage(l, pool)
			return err
		}
		at += int64(len(s))
	}
	return nil
}

// Cut appends to dst the next n bytes of segs, of whose first skip are done, and
// returns what is left then.
func Cut(dst, segs [][]byte, skip, n int) (out, left [][]byte, done int) {
	for n > 0 {
		p := segs[0][skip:]
		p = p[:min(len(p), n)]
		dst, n, skip = append(dst, p), n-len(p), skip+len(p)
		if skip == len(segs[0]) {
			segs, skip = segs[1:], 0
		}
	}
	return dst, segs, skip
}

// CopyOut fills p with what begins skip bytes into segs.
func CopyOut(p []byte, segs [][]byte, skip int64) {
	for _, s := range segs {
		if skip >= int64(len(s)) {
			skip -= int64(len(s))
			continue
		}
		n := copy(p, s[skip:])
		p, skip = p[n:], 0
	}
}

// WriteStaged writes a staged lease to dev.
func WriteStaged(l *blockdev.Lease, dev blockdev.Device, fua bool) error {
	return writeStaged(l, dev, fua, dev.WriteAt)
}

func writeStaged(l *blockdev.Lease, dev blockdev.Device, fua bool, write func(p []byte, off int64) (int, error)) error {
	at := l.Off
	for _, s := range l.Segs {
		if _, err := write(s, at); err != nil {
			return err
		}
		at += int64(len(s))
	}
	if fua {
		return dev.FlushRange(l.Off, int64(l.Len))
	}
	return nil
}

// Unstage gives the pool memory of a staged lease back.
func Unstage(l *blockdev.Lease, pool *blockdev.Pool) {
	pool.Put(l.Segs)
	l.Segs = l.Segs[:0]
}

// stager owns the leases that a Device stages before and during a freeze; they
// are committed to whatever is behind the device then.
type stager struct {
	d    *Device
	open atomic.Int64
}

// CommitLease implements blockdev.Lender.
func (s *stager) CommitLease(l *blockdev.Lease, fua bool) error { return WriteStaged(l, s.d, fua) }

// CommitLeaseUntil implements blockdev.SpaceLender.
func (s *stager) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	return writeStaged(l, s.d, fua, func(p []byte, off int64) (int, error) { return s.d.WriteAtUntil(p, off, stop) })
}

// CommitMayBlock implements blockdev.Lender.
func (s *stager) CommitMayBlock(*blockdev.Lease, bool) bool { return true }

// ReleaseLease implements blockdev.Lender.
func (s *stager) ReleaseLease(l *blockdev.Lease) {
	Unstage(l, s.d.pool)
	s.open.Add(-1)
}
