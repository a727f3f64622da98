package snap

import (
	"fmt"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/lvm/internal/marks"
	"softiser/lvm/internal/swap"
)

// Snapshot is one snapshot of a set, a writable device as large as the origin
// was when the snapshot was made.
type Snapshot struct {
	set  *Set
	st   *Store
	name string
	size int64 // bytes

	marks marks.Marks
	ro    atomic.Bool
}

// SetReadOnly has writes to the snapshot refused. Its store goes on taking what is overwritten in
// the origin.
func (n *Snapshot) SetReadOnly(ro bool) { n.ro.Store(ro) }

// Usage returns how full the store is.
func (n *Snapshot) Usage() Usage {
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	return n.st.usage()
}

// Grow takes the present size of the store's device into account.
func (n *Snapshot) Grow() {
	n.set.mu.Lock()
	defer n.set.mu.Unlock()
	n.st.chunks = uint64(n.st.dev.Info().Size / n.st.chunk)
}

// Shrinking is a store that is being made smaller: from the new end on it is not
// used, until End says what has become of it.
type Shrinking struct {
	n    *Snapshot
	wait chan struct{}
}

// Shrink stops the use of the store beyond size bytes, which must be free. The
// store's device is made smaller before End. What needs room beyond the new end
// waits until then: if the device stays as it was, the room is still there.
func (n *Snapshot) Shrink(size int64) (*Shrinking, error) {
	n.set.mu.Lock()
	defer n.set.mu.Unlock()
	chunks := uint64(size / n.st.chunk)
	if n.st.valid && n.st.next > chunks {
		return nil, fmt.Errorf("%d of its %d chunks are in use, %d would be left", n.st.next, n.st.chunks, chunks)
	}
	n.st.chunks = chunks
	n.st.shrinking = make(chan struct{})
	return &Shrinking{n, n.st.shrinking}, nil
}

// End takes the present size of the store's device into account.
func (s *Shrinking) End() {
	s.n.Grow()
	s.n.set.mu.Lock()
	s.n.st.shrinking = nil
	s.n.set.mu.Unlock()
	close(s.wait)
}

// Changed lists the ranges, in order, in which the snapshot may differ from
// the origin.
func (n *Snapshot) Changed() ([]blockdev.Extent, error) {
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return nil, ErrInvalid
	}
	return n.st.ranges(n.size), nil
}

// Info implements blockdev.Device.
func (n *Snapshot) Info() blockdev.Info {
	i, c := n.set.base.Info(), n.st.dev.Info()
	i.Size = n.size
	i.ReadOnly = c.ReadOnly || n.ro.Load()
	i.WriteCache = i.WriteCache || c.WriteCache
	i.BlockSize, i.PhysBlockSize = max(i.BlockSize, c.BlockSize), max(i.PhysBlockSize, c.PhysBlockSize)
	i.CacheID = "" // what has been copied out is known on disk only after a flush
	i.Discard, i.DiscardAlign, i.ZeroesOnTrim, i.ID = false, 0, false, c.ID
	return i
}

func (n *Snapshot) check(off, k int64) error {
	i := n.Info()
	return i.Check(off, k)
}

func (n *Snapshot) checkWrite(off, k int64) error {
	i := n.Info()
	return i.CheckWrite(off, k)
}

// failed is what an invalid snapshot answers: its data is gone.
func failed() error {
	return &blockdev.Error{Op: "snapshot", Store: "exception store", Kind: blockdev.ErrMedium, Cause: ErrInvalid}
}

// ReadAt implements blockdev.Device.
func (n *Snapshot) ReadAt(p []byte, off int64) (int, error) {
	if err := n.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return 0, failed()
	}
	return n.readLocked(p, off)
}

func (n *Snapshot) readLocked(p []byte, off int64) (int, error) {
	err := n.st.pieces(off, int64(len(p)), func(to uint64, has bool, at, k int64) error {
		q := p[at-off : at-off+k]
		var err error
		if has {
			_, err = n.st.dev.ReadAt(q, int64(to)*n.st.chunk+at%n.st.chunk)
		} else {
			_, err = n.set.base.ReadAt(q, at)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device.
func (n *Snapshot) WriteAt(p []byte, off int64) (int, error) {
	if err := n.checkWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	one := [1][]byte{p}
	if _, err := n.write(off, int64(len(p)), one[:]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// write writes k bytes, which are in ps; durable means that they already are.
func (n *Snapshot) write(off, k int64, ps [][]byte) (durable bool, err error) {
	mine, err := n.own(off, k, ps)
	if err != nil {
		return false, err
	}
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return false, failed()
	}
	durable = true
	at, end := off, off+k
	for i := 0; at < end; i++ {
		to, next := end, end
		if i < len(mine) { // this chunk got the new data when it was copied out
			to = max(at, int64(mine[i].from)*n.st.chunk)
			next = int64(mine[i].from+1) * n.st.chunk
		}
		if at < to {
			durable = false
			if err := n.overwriteLocked(at, to-at, ps, at-off); err != nil {
				return false, err
			}
		}
		at = next
	}
	return durable, nil
}

// overwriteLocked writes to chunks that the snapshot has: k bytes, which begin
// skip bytes into ps.
func (n *Snapshot) overwriteLocked(off, k int64, ps [][]byte, skip int64) error {
	for _, p := range ps {
		switch {
		case skip >= int64(len(p)):
			skip -= int64(len(p))
			continue
		case k == 0:
			return nil
		}
		p = p[skip:]
		p = p[:min(int64(len(p)), k)]
		err := n.st.pieces(off, int64(len(p)), func(to uint64, _ bool, at, k int64) error {
			_, err := n.st.dev.WriteAt(p[at-off:at-off+k], int64(to)*n.st.chunk+at%n.st.chunk)
			return err
		})
		if err != nil {
			return err
		}
		off, k, skip = off+int64(len(p)), k-int64(len(p)), 0
	}
	return nil
}

// own makes sure that the snapshot has its own copy of every chunk in the range
// that ps is written to, and returns those whose copy has that content already.
func (n *Snapshot) own(off, k int64, ps [][]byte) (mine []pair, err error) {
	s := n.set
	s.mu.RLock()
	have := n.st.coveredLocked(off, k)
	s.mu.RUnlock()
	if have {
		return nil, nil
	}
	s.mu.Lock()
	if !n.st.valid {
		s.mu.Unlock()
		return nil, failed()
	}
	c := &claim{off: off, n: k, ps: ps}
	s.copyOutUnlock(c, s.claimLocked(c, nil, n, off, k))
	for _, ps := range c.chunks { // there is at most one snapshot in it
		mine = ps
	}
	return mine, nil // the writer checks whether the snapshot is still valid
}

// lendable reports whether a range that is to be lent is in chunks of the snapshot's own.
func (n *Snapshot) lendable(off, k int64) (own bool, err error) {
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return false, failed()
	}
	return k > 0 && n.st.coveredLocked(off, k), nil
}

// LeaseRead implements blockdev.Device. Chunks of its own are lent directly;
// what it shares with the origin is copied, because the origin may be written
// while the lease is open.
func (n *Snapshot) LeaseRead(l *blockdev.Lease, off int64, k int, m blockdev.Mode) error {
	if err := n.check(off, int64(k)); err != nil {
		return err
	}
	own, err := n.lendable(off, int64(k))
	switch {
	case err != nil:
		return err
	case own:
		return n.direct(l, off, k, m, false)
	case m != blockdev.Wait && k > 0:
		return blockdev.ErrWouldBlock
	}
	l.Priv.Under = l.Priv.Under[:0]
	return swap.StageRead(l, n.set.pool, n, n, off, k, m)
}

// LeaseWrite implements blockdev.Device. Chunks of its own are lent directly,
// others are staged.
func (n *Snapshot) LeaseWrite(l *blockdev.Lease, off int64, k int, m blockdev.Mode) error {
	if err := n.checkWrite(off, int64(k)); err != nil {
		return err
	}
	own, err := n.lendable(off, int64(k))
	switch {
	case err != nil:
		return err
	case own:
		return n.direct(l, off, k, m, true)
	}
	l.Priv.Under = l.Priv.Under[:0]
	return swap.Stage(l, n.set.pool, n, off, k, m)
}

// direct lends the store's own memory; an exception never moves.
func (n *Snapshot) direct(l *blockdev.Lease, off int64, k int, m blockdev.Mode, write bool) error {
	st := n.st
	swap.BeginThrough(l)
	n.set.mu.RLock()
	err := st.pieces(off, int64(k), func(to uint64, _ bool, at, k int64) error {
		return swap.AddThrough(l, st.dev, int64(to)*st.chunk+at%st.chunk, int(k), m, write)
	})
	n.set.mu.RUnlock()
	if err != nil {
		swap.EndThrough(l)
		return err
	}
	l.Off, l.Len, l.Write, l.Owner = off, k, write, n
	return nil
}

// CommitLease implements blockdev.Lender.
func (n *Snapshot) CommitLease(l *blockdev.Lease, fua bool) error {
	if len(l.Priv.Under) > 0 {
		return n.unlessLost(swap.CommitThrough(l, fua))
	}
	durable, err := n.write(l.Off, int64(l.Len), l.Segs)
	if err != nil || durable || !fua {
		return err
	}
	return n.FlushRange(l.Off, int64(l.Len))
}

// CommitMayBlock implements blockdev.Lender.
func (n *Snapshot) CommitMayBlock(l *blockdev.Lease, fua bool) bool {
	return l.Len > 0 && (len(l.Priv.Under) == 0 || swap.BlocksThrough(l, fua))
}

// ReleaseLease implements blockdev.Lender.
func (n *Snapshot) ReleaseLease(l *blockdev.Lease) {
	if len(l.Priv.Under) > 0 {
		swap.EndThrough(l)
		return
	}
	swap.Unstage(l, n.set.pool)
}

// unlessLost is err, of what the store's device has done, unless the snapshot is lost by now: then its
// device may take writes and flush them, of which nobody finds anything again.
func (n *Snapshot) unlessLost(err error) error {
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return failed()
	}
	return err
}

// Flush implements blockdev.Device.
func (n *Snapshot) Flush() error { return n.unlessLost(n.st.dev.Flush()) }

// FlushRange implements blockdev.Device.
func (n *Snapshot) FlushRange(off, k int64) error {
	if err := n.check(off, k); err != nil {
		return err
	}
	return n.Flush()
}

// Discard implements blockdev.Device: dm-snapshot's stores cannot give chunks
// back.
func (n *Snapshot) Discard(off, k int64) error {
	if err := n.checkWrite(off, k); err != nil {
		return err
	}
	return blockdev.ErrNotSupported
}

// WriteZeroes implements blockdev.Device.
func (n *Snapshot) WriteZeroes(off, k int64, _ bool) error {
	if err := n.checkWrite(off, k); err != nil {
		return err
	}
	zero := make([]byte, min(k, 1<<20))
	for k > 0 {
		p := zero[:min(int64(len(zero)), k)]
		if _, err := n.WriteAt(p, off); err != nil {
			return err
		}
		off, k = off+int64(len(p)), k-int64(len(p))
	}
	return nil
}

// Erase implements blockdev.Eraser: the store never gives a chunk back, so it is
// enough that they are overwritten.
func (n *Snapshot) Erase(off, k int64) error {
	if err := n.WriteZeroes(off, k, false); err != nil {
		return err
	}
	return n.FlushRange(off, k)
}

// Extents implements blockdev.Device.
func (n *Snapshot) Extents(off, k int64) ([]blockdev.Extent, error) {
	if err := n.check(off, k); err != nil {
		return nil, err
	}
	n.set.mu.RLock()
	defer n.set.mu.RUnlock()
	if !n.st.valid {
		return nil, failed()
	}
	return n.extentsLocked(off, k)
}

// extentsLocked says which parts of [off, off+k) hold data, from the origin and from the
// exceptions. The set's lock is held.
func (n *Snapshot) extentsLocked(off, k int64) ([]blockdev.Extent, error) {
	if k == 0 {
		return []blockdev.Extent{{Off: off, Data: true}}, nil
	}
	var out []blockdev.Extent
	add := func(e blockdev.Extent) {
		if i := len(out); i > 0 && out[i-1].Data == e.Data {
			out[i-1].Len += e.Len
			return
		}
		out = append(out, e)
	}
	base, err := n.set.base.Extents(off, k)
	if err != nil {
		return nil, err
	}
	for _, b := range base {
		if b.Data {
			add(b)
			continue
		}
		n.st.pieces(b.Off, b.Len, func(_ uint64, has bool, at, len int64) error {
			add(blockdev.Extent{Off: at, Len: len, Data: has})
			return nil
		})
	}
	return out, nil
}

// OnResize implements blockdev.Device.
func (n *Snapshot) OnResize(func(blockdev.Info)) func() { return func() {} }

// Close implements blockdev.Device; the set keeps store and origin.
func (n *Snapshot) Close() error { return nil }

// pieces calls f for each stretch of the range that lies in one chunk with an
// exception, or in a run of chunks without one.
func (st *Store) pieces(off, n int64, f func(to uint64, has bool, at, n int64) error) error {
	for n > 0 {
		k := min(n, st.chunk-off%st.chunk)
		to, has := st.table[uint64(off/st.chunk)]
		for !has && k < n {
			if _, ok := st.table[uint64((off+k)/st.chunk)]; ok {
				break
			}
			k += min(n-k, st.chunk)
		}
		for has && k < n {
			// Go on as long as the next chunk follows in the store as well.
			t, ok := st.table[uint64((off+k)/st.chunk)]
			if !ok || t != to+uint64((off+k)/st.chunk-off/st.chunk) {
				break
			}
			k += min(n-k, st.chunk)
		}
		if err := f(to, has, off, k); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}
