package snap

import (
	"fmt"
	"slices"
	"sync"

	"softiser/blockdev"
)

// Set is an origin with its snapshots.
//
// The caller adds and removes snapshots, and starts a merge, only while nothing
// writes to the origin and no write lease on it is open (swap.Freeze).
type Set struct {
	base   blockdev.Device // the origin's own extents
	pool   *blockdev.Pool
	notice func(string)

	// mu is held for reading while chunks are looked up and read, and for
	// writing while exceptions are made or merged. An origin write copies out
	// under mu and then writes without it: from then on every reader of a
	// snapshot finds the copy.
	mu      sync.RWMutex
	snaps   []*Snapshot
	merging *Snapshot
	buf     []byte // for copies; guarded by mu for writing
}

// NewSet makes a set with no snapshots over base. notice is told when a
// snapshot becomes invalid; it may be nil.
func NewSet(base blockdev.Device, pool *blockdev.Pool, notice func(string)) *Set {
	if pool == nil {
		pool = blockdev.DefaultPool()
	}
	if notice == nil {
		notice = func(string) {}
	}
	return &Set{base: base, pool: pool, notice: notice}
}

// Base returns the device below the origin.
func (s *Set) Base() blockdev.Device { return s.base }

// Add makes a snapshot of the first size bytes of the origin with the given
// store: an origin that has grown since is larger than its snapshot.
func (s *Set) Add(name string, st *Store, size int64) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &Snapshot{set: s, st: st, name: name, size: min(size, s.base.Info().Size)}
	s.snaps = append(s.snaps, n)
	return n
}

// Remove takes a snapshot out of the set and says how many are left.
func (s *Set) Remove(n *Snapshot) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snaps = slices.DeleteFunc(s.snaps, func(o *Snapshot) bool { return o == n })
	if s.merging == n {
		s.merging = nil
	}
	return len(s.snaps)
}

// chunksOf is the range of chunks that [off, off+n) touches.
func (st *Store) chunksOf(off, n int64) (lo, hi uint64) {
	if n == 0 {
		return 0, 0
	}
	return uint64(off / st.chunk), uint64((off + n + st.chunk - 1) / st.chunk)
}

// coveredLocked reports whether every chunk of the range has an exception.
func (st *Store) coveredLocked(off, n int64) bool {
	lo, hi := st.chunksOf(off, n)
	for c := lo; c < hi; c++ {
		if _, ok := st.table[c]; !ok {
			return false
		}
	}
	return true
}

// within is the part of [off, off+n) that the snapshot has; what the origin got
// later is none of its business.
func (n *Snapshot) within(off, k int64) int64 { return max(0, min(k, n.size-off)) }

// safeLocked reports whether the origin may be overwritten there.
func (s *Set) safeLocked(off, n int64) bool {
	for _, o := range s.snaps {
		if o != s.merging && o.st.valid && !o.st.coveredLocked(off, o.within(off, n)) {
			return false
		}
	}
	return true
}

// preserve copies out what an origin write to the range would destroy.
func (s *Set) preserve(off, n int64) {
	s.mu.RLock()
	safe := s.safeLocked(off, n)
	s.mu.RUnlock()
	if safe {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.preserveLocked(off, n)
}

func (s *Set) preserveLocked(off, n int64) {
	for _, o := range s.snaps {
		if o == s.merging || !o.st.valid {
			continue
		}
		if err := s.copyOutLocked(o.st, off, o.within(off, n)); err != nil {
			o.st.invalidate()
			s.notice(fmt.Sprintf("snapshot %s is now invalid: %v", o.name, err))
			continue
		}
		s.level(o)
	}
}

// level warns about a store that fills up.
func (s *Set) level(n *Snapshot) {
	if u := n.st.usage(); n.marks.Passed(u.Used, u.Total) {
		s.notice(fmt.Sprintf("snapshot %s is now %.2f%% full", n.name, u.Percent()))
	}
}

// copyOutLocked gives st its own copy of the origin's chunks in the range.
func (s *Set) copyOutLocked(st *Store, off, n int64) error {
	lo, hi := st.chunksOf(off, n)
	var ps []pair
	for c := lo; c < hi; c++ {
		if _, ok := st.table[c]; ok {
			continue
		}
		to, ok := st.alloc()
		if !ok {
			return blockdev.ErrNoSpace
		}
		if err := s.copyChunkLocked(st, c, to); err != nil {
			return err
		}
		ps = append(ps, pair{c, to})
	}
	return st.record(ps)
}

// copyChunkLocked copies one chunk of the origin into the store; the last one
// may reach beyond the origin's end.
func (s *Set) copyChunkLocked(st *Store, c, to uint64) error {
	if int64(cap(s.buf)) < st.chunk {
		s.buf = make([]byte, st.chunk)
	}
	p := s.buf[:st.chunk]
	at := int64(c) * st.chunk
	n := min(st.chunk, s.base.Info().Size-at)
	if _, err := s.base.ReadAt(p[:n], at); err != nil {
		return err
	}
	clear(p[n:])
	return st.write(p, to)
}

// MergeStep moves the last exceptions of the merging snapshot into the origin
// and reports whether that was all.
func (s *Set) MergeStep() (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.merging.st
	if !st.valid {
		return false, ErrInvalid
	}
	limit := int(max(1, (1<<20)/st.chunk))
	from, to, n, err := st.lastRun(limit)
	if err != nil || n == 0 {
		return n == 0, err
	}
	at := int64(from) * st.chunk
	size := min(int64(n)*st.chunk, s.base.Info().Size-at)
	if size > 0 {
		s.preserveLocked(at, size)
		p := make([]byte, size)
		if _, err := st.dev.ReadAt(p, int64(to)*st.chunk); err != nil {
			return false, err
		}
		if _, err := s.base.WriteAt(p, at); err != nil {
			return false, err
		}
		if err := s.base.Flush(); err != nil {
			return false, err
		}
	}
	return false, st.dropLast(n)
}

// StartMerge makes the origin show what the snapshot holds; MergeStep then
// moves it over. The snapshot itself must not be used any more.
func (s *Set) StartMerge(n *Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.merging != nil {
		return fmt.Errorf("snapshot %s is being merged already", s.merging.name)
	}
	if !n.st.valid {
		return ErrInvalid
	}
	s.merging = n
	return nil
}
