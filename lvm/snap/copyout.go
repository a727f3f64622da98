package snap

import (
	"fmt"

	"softiser/blockdev"
)

// Copying out has two steps. The chunk is copied into a free one of the store,
// under mu; that takes no longer than memory does. Then the copy and its entry
// in the exception list must become durable, which takes two flushes: the
// entries of all writes that come while a list is being written are gathered,
// and the first of their writers records them together.

// group is exceptions that are recorded together.
type group struct {
	of   []*Snapshot // in the order in which they came
	by   map[*Snapshot][]pair
	done bool // guarded by Set.commit
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
	var last *group
	for _, o := range s.snaps {
		if o == s.merging || !o.st.valid {
			continue
		}
		if g := s.copyOutLocked(o, off, o.within(off, n)); g != nil && last != s.gather {
			last = g
		}
	}
	s.mu.Unlock()
	s.settle(last)
}

// lockSafe takes mu for writing, with the range preserved.
func (s *Set) lockSafe(off, n int64) {
	for {
		s.mu.Lock()
		if s.safeLocked(off, n) {
			return
		}
		s.mu.Unlock()
		s.preserve(off, n)
	}
}

// copyOutLocked gives a snapshot its own copy of the origin's chunks in the
// range. It returns the group to settle, the last one if they are in several,
// nil if there is none. A store without room, or that fails, is invalid.
func (s *Set) copyOutLocked(o *Snapshot, off, n int64) (last *group) {
	st := o.st
	lo, hi := st.chunksOf(off, n)
	for c := lo; c < hi; c++ {
		if _, ok := st.table[c]; ok {
			continue
		}
		if g := st.pending[c]; g != nil {
			if last == nil || g == s.gather {
				last = g
			}
			continue
		}
		err := error(blockdev.ErrNoSpace)
		to, ok := st.alloc()
		if ok {
			err = s.copyChunkLocked(st, c, to)
		}
		if err != nil {
			s.invalidateLocked(o, err)
			return nil
		}
		if s.gather == nil {
			s.gather = &group{by: map[*Snapshot][]pair{}}
		}
		last = s.gather
		if last.by[o] == nil {
			last.of = append(last.of, o)
		}
		last.by[o] = append(last.by[o], pair{c, to})
		st.pending[c] = last
	}
	return last
}

func (s *Set) invalidateLocked(o *Snapshot, err error) {
	if o.st.valid {
		o.st.invalidate()
		s.notice(fmt.Sprintf("snapshot %s is now invalid: %v", o.name, err))
	}
}

// settle returns when the group's exceptions are recorded, or their stores are
// invalid. One commit runs at a time: who comes while it does finds, when it is
// over, that the group is done, or records it with all that it has gathered.
func (s *Set) settle(g *group) {
	if g == nil {
		return
	}
	s.commit.Lock()
	defer s.commit.Unlock()
	if g.done {
		return
	}
	s.mu.Lock()
	s.gather = nil // g: an older one would be done
	limits := make([]uint64, len(g.of))
	for i, o := range g.of {
		limits[i] = o.st.chunks
	}
	s.mu.Unlock()
	for i, o := range g.of {
		err := o.st.record(g.by[o], limits[i])
		s.mu.Lock()
		o.st.recordedLocked(g.by[o])
		if err != nil {
			s.invalidateLocked(o, err)
		} else {
			s.level(o)
		}
		s.mu.Unlock()
	}
	g.done = true
}

// level warns about a store that fills up.
func (s *Set) level(n *Snapshot) {
	if u := n.st.usage(); n.marks.Passed(u.Used, u.Total) {
		s.notice(fmt.Sprintf("snapshot %s is now %.2f%% full", n.name, u.Percent()))
	}
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
