package snap

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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
	// writing while they are claimed, exceptions take effect or are merged. An
	// origin write has what it destroys copied out (copyout.go) and then writes
	// without mu: from then on every reader of a snapshot finds the copy.
	mu      sync.RWMutex
	snaps   []*Snapshot
	merging *Snapshot
	merges  atomic.Bool // there is one that is merged; changed with it

	// Snapshots that are lost although their stores do not say so, and who else
	// takes that down; may be nil.
	unmarked []*Snapshot
	losing   atomic.Bool // there are some
	lost     func(*Snapshot) <-chan error

	copying map[*claim]struct{} // claims that are being copied
	gather  *group              // exceptions that the next commit will record; may be nil

	// buffers bounds the writers that copy at the same time.
	buffers chan []byte

	// commit has one element while a group is recorded. Who puts it there may
	// take mu, and waits for copies; never the other way round.
	commit chan struct{}
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
	s := &Set{base: base, pool: pool, notice: notice, copying: map[*claim]struct{}{},
		buffers: make(chan []byte, copiers), commit: make(chan struct{}, 1)}
	for range copiers {
		s.buffers <- nil // made when it is used
	}
	return s
}

// OnLost has f take down, so that it outlives a restart, that a snapshot is lost
// whose store cannot be marked; it says how that went, once. Until then the origin
// refuses writes. To be called before the set is used.
func (s *Set) OnLost(f func(*Snapshot) <-chan error) { s.lost = f }

// Add makes a snapshot of the first size bytes of the origin with the given
// store: an origin that has grown since is larger than its snapshot.
func (s *Set) Add(name string, st *Store, size int64) *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &Snapshot{set: s, st: st, name: name, size: min(size, s.base.Info().Size)}
	s.snaps = append(s.snaps, n)
	if st.unmarked {
		s.unmarked = append(s.unmarked, n)
		s.losing.Store(true)
	}
	return n
}

// Remove takes a snapshot out of the set and says how many are left.
func (s *Set) Remove(n *Snapshot) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snaps = slices.DeleteFunc(s.snaps, func(o *Snapshot) bool { return o == n })
	if s.merging == n {
		s.merging = nil
		s.merges.Store(false)
	}
	s.unmarked = slices.DeleteFunc(s.unmarked, func(o *Snapshot) bool { return o == n })
	s.losing.Store(len(s.unmarked) > 0)
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

// doubtful reports whether a chunk of the range is in doubt.
func (st *Store) doubtful(off, n int64) bool {
	if len(st.doubt) == 0 {
		return false
	}
	lo, hi := st.chunksOf(off, n)
	for c := lo; c < hi; c++ {
		if st.doubt[c] {
			return true
		}
	}
	return false
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
		s.mu.Unlock()
		err := s.lockSafe(at, size) // nobody else changes the store that is merged
		if err != nil {
			s.mu.Lock()
			return false, err
		}
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
	s.merges.Store(true)
	return nil
}
