package snap

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// Copying out has three steps:
//
//	claim    free chunks of the stores are taken, and everybody who
//	         meets the old ones learns who copies them                under mu
//	copy     the origin's chunks go into them, many writers at once   no lock
//	record   copies and entries of the exception lists become
//	         durable, which takes two flushes                         commit
//
// What is copied while a list is being written is gathered, and one of its
// writers records it for all.

const (
	copiers = 16        // writers that copy at the same time
	copyRun = 128 << 10 // bytes copied at once, or one chunk
)

// claim is the chunks that one write has to copy out. A write to the origin
// copies what it is about to destroy; one to a snapshot puts its own content in,
// and reads of the origin only what it does not cover.
type claim struct {
	off, n int64    // the range that is written to the snapshot; n 0: the origin is written
	ps     [][]byte // its content

	of     []*Snapshot
	chunks [][]pair      // of each
	copied chan struct{} // made with the first of them

	// The group that will record them; nil if no copy has succeeded. Set before
	// copied is closed.
	group *group
}

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
	var c claim
	var others []*claim
	for _, o := range s.snaps {
		if o != s.merging && o.st.valid {
			others = s.claimLocked(&c, others, o, off, o.within(off, n))
		}
	}
	s.copyOutUnlock(&c, others)
}

// lockSafe takes mu for writing, with the range preserved. When it fails, mu is
// free.
func (s *Set) lockSafe(off, n int64) error {
	for {
		s.mu.Lock()
		if s.safeLocked(off, n) && len(s.unmarked) == 0 {
			return nil
		}
		s.mu.Unlock()
		s.preserve(off, n)
		if err := s.markLost(); err != nil {
			return err
		}
	}
}

// claimLocked adds to c what the snapshot lacks of the range, and to others the
// claims of those who are about to copy a part of it. A store without room is
// invalid; while one is being made smaller, mu is given up until it is known how
// much room there is.
func (s *Set) claimLocked(c *claim, others []*claim, o *Snapshot, off, n int64) []*claim {
	st := o.st
	var ps []pair
	next := st.next
	lo, hi := st.chunksOf(off, n)
	for k := lo; k < hi && st.valid; k++ {
		if _, ok := st.table[k]; ok {
			continue
		}
		if p := st.pending[k]; p != nil {
			if !slices.Contains(others, p) {
				others = append(others, p)
			}
			continue
		}
		to, ok := st.alloc()
		if !ok {
			for _, p := range ps {
				delete(st.pending, p.from)
			}
			if wait := st.shrinking; wait != nil {
				ps, st.next = nil, next
				s.mu.Unlock()
				<-wait
				s.mu.Lock()
				next, k = st.next, lo-1 // begin again with the first chunk
				continue
			}
			s.invalidateLocked(o, blockdev.ErrNoSpace)
			return others
		}
		if c.copied == nil {
			c.copied = make(chan struct{})
		}
		st.pending[k] = c
		ps = append(ps, pair{k, to})
	}
	if ps != nil {
		c.of, c.chunks = append(c.of, o), append(c.chunks, ps)
	}
	return others
}

// copyOutUnlock gives mu back, copies what is claimed and returns when that and
// the other claims are recorded, or their stores are invalid.
func (s *Set) copyOutUnlock(c *claim, others []*claim) {
	if len(c.of) > 0 {
		s.copying[c] = struct{}{}
	}
	s.mu.Unlock()
	if len(c.of) > 0 {
		s.copyOut(c)
		s.settle(c.group)
	}
	for _, o := range others {
		<-o.copied
		s.settle(o.group)
	}
}

// copyOut copies what is claimed, and hands it to the group that is gathered.
func (s *Set) copyOut(c *claim) {
	errs := make([]error, len(c.of))
	buf := <-s.buffers
	for i, o := range c.of {
		buf, errs[i] = s.copyChunks(buf, o.st, c, c.chunks[i])
	}
	s.buffers <- buf

	s.mu.Lock()
	for i, o := range c.of {
		if errs[i] != nil {
			s.invalidateLocked(o, errs[i])
			for _, p := range c.chunks[i] {
				delete(o.st.pending, p.from)
			}
			continue
		}
		if s.gather == nil {
			s.gather = &group{by: map[*Snapshot][]pair{}}
		}
		c.group = s.gather
		if c.group.by[o] == nil {
			c.group.of = append(c.group.of, o)
		}
		c.group.by[o] = append(c.group.by[o], c.chunks[i]...)
	}
	delete(s.copying, c)
	s.mu.Unlock()
	close(c.copied)
}

// copyChunks fills chunks of the store, neighbours at once; the last one may
// reach beyond the origin's end. Nobody changes the origin there before they are
// recorded. It returns the buffer, which it may enlarge.
func (s *Set) copyChunks(buf []byte, st *Store, c *claim, ps []pair) ([]byte, error) {
	end := s.base.Info().Size
	for len(ps) > 0 {
		k := 1
		for k < len(ps) && int64(k+1)*st.chunk <= copyRun && ps[k].from == ps[0].from+uint64(k) && ps[k].to == ps[0].to+uint64(k) {
			k++
		}
		if need := k * int(st.chunk); cap(buf) < need {
			buf = make([]byte, need)
		}
		p := buf[:k*int(st.chunk)]
		at := int64(ps[0].from) * st.chunk
		n := min(int64(len(p)), end-at)
		// The writer's data is [lo, hi) of p; what is before and behind it, if anything, is
		// read from the origin.
		lo, hi := n, n
		if c.n > 0 {
			lo, hi = max(0, c.off-at), min(n, c.off+c.n-at)
			swap.CopyOut(p[lo:hi], c.ps, at+lo-c.off)
		}
		for _, r := range [2][2]int64{{0, lo}, {hi, n}} {
			if r[0] < r[1] {
				if _, err := s.base.ReadAt(p[r[0]:r[1]], at+r[0]); err != nil {
					return buf, err
				}
			}
		}
		clear(p[n:])
		if err := st.write(p, ps[0].to); err != nil {
			return buf, err
		}
		ps = ps[k:]
	}
	return buf, nil
}

func (s *Set) invalidateLocked(o *Snapshot, err error) {
	if !o.st.valid {
		return
	}
	if o.st.Invalidate() != nil {
		s.unmarked = append(s.unmarked, o)
		s.losing.Store(true)
	}
	s.notice(fmt.Sprintf("snapshot %s is now invalid: %v", o.name, err))
}

// lossWait is how long a write to the origin waits until others have taken down
// that a snapshot is lost. They may wait for that write.
const lossWait = 10 * time.Second

// markLost returns when the loss of every snapshot is on disk, in its store or
// where the opener keeps it. Before that, nothing that the snapshot lacks may be
// overwritten: after a restart it would be valid, and hold what was written.
func (s *Set) markLost() error {
	if !s.losing.Load() {
		return nil
	}
	s.mu.RLock()
	lost := slices.Clone(s.unmarked)
	s.mu.RUnlock()
	for _, o := range lost {
		if err := s.markOne(o); err != nil {
			return &blockdev.Error{Op: "mark as lost", Store: "snapshot " + o.name, Kind: blockdev.ErrMedium, Cause: err}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmarked = slices.DeleteFunc(s.unmarked, func(o *Snapshot) bool { return slices.Contains(lost, o) })
	s.losing.Store(len(s.unmarked) > 0)
	return nil
}

func (s *Set) markOne(o *Snapshot) error {
	s.mu.Lock()
	err := o.st.Invalidate() // tried again, although it has failed before: the disk may have recovered
	s.mu.Unlock()
	if err == nil || s.lost == nil {
		return err
	}
	t := time.NewTimer(lossWait)
	defer t.Stop()
	select {
	case err := <-s.lost(o):
		return err
	case <-t.C:
		return fmt.Errorf("its group is busy: %w", err)
	}
}

// settle returns when the group's exceptions are recorded, or their stores are
// invalid. One commit runs at a time: who comes while it does finds, when it is
// over, that the group is done, or records it with all that it has gathered.
//
// A commit first waits for the copies that are under way, as dm-snapshot does:
// one copy takes less than the two flushes of another commit. It does not wait
// for those that begin meanwhile.
func (s *Set) settle(g *group) {
	if g == nil {
		return
	}
	s.commit <- struct{}{}
	defer func() { <-s.commit }()
	if g.done {
		return
	}
	s.mu.RLock()
	under := make([]*claim, 0, len(s.copying))
	for c := range s.copying {
		under = append(under, c)
	}
	s.mu.RUnlock()
	for _, c := range under {
		<-c.copied
	}
	s.mu.Lock()
	s.gather = nil // it is g, as earlier groups have ended
	s.mu.Unlock()
	var stores sync.WaitGroup
	for _, o := range g.of {
		stores.Go(func() { s.record(o, g.by[o]) })
	}
	stores.Wait()
	g.done = true
}

// record makes exceptions of one snapshot durable and lets them take effect.
func (s *Set) record(o *Snapshot, ps []pair) {
	// Sorted by place in the store, so that a merge can copy long runs at once.
	slices.SortFunc(ps, func(a, b pair) int { return cmp.Compare(a.to, b.to) })
	err := o.st.record(ps, func(chunk uint64) bool { return s.has(o.st, chunk) })
	s.mu.Lock()
	defer s.mu.Unlock()
	o.st.recordedLocked(ps)
	if err != nil {
		s.invalidateLocked(o, err)
	} else {
		s.level(o)
	}
}

// has reports whether a store has that chunk. One that is being made smaller says
// so when it is known.
func (s *Set) has(st *Store, chunk uint64) bool {
	for {
		s.mu.RLock()
		has, wait := chunk < st.chunks, st.shrinking
		s.mu.RUnlock()
		if has || wait == nil {
			return has
		}
		<-wait
	}
}

// level warns about a store that fills up.
func (s *Set) level(n *Snapshot) {
	if u := n.st.usage(); n.marks.Passed(u.Used, u.Total) {
		s.notice(fmt.Sprintf("snapshot %s is now %.2f%% full", n.name, u.Percent()))
	}
}
