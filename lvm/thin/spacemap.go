package thin

import (
	"fmt"
	"slices"
)

// indexEntry describes one bitmap block: 16 bytes.
type indexEntry struct {
	nr   uint64
	free uint32
	none uint32 // no block before this one is free
}

func parseEntry(b []byte) indexEntry {
	return indexEntry{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])}
}

func (e indexEntry) append(b []byte) []byte {
	return le.AppendUint32(le.AppendUint32(le.AppendUint64(b, e.nr), e.free), e.none)
}

const indexEntries = 255 // of the metadata space map

// spaceMap ties the counts of a device to where they are stored.
type spaceMap struct {
	t      *blocks
	c      *counts
	root   mapRoot
	index  []indexEntry // by bitmap
	meta   bool         // of the metadata device: the index is one block
	over   tree         // block → count, u32
	byTree tree         // data: bitmap → indexEntry
}

func newSpaceMap(t *blocks, n uint64, meta bool) *spaceMap {
	return &spaceMap{t: t, c: newCounts(n), meta: meta, over: tree{t: t, valueSize: 4}, byTree: tree{t: t, valueSize: 16}}
}

func bitmapsOf(n uint64) uint64 { return (n + perBitmap - 1) / perBitmap }

// load reads the counts of a stored space map.
func (s *spaceMap) load(root mapRoot) error {
	s.root = root
	if root.blocks != s.c.n {
		return fmt.Errorf("%w: space map of %d blocks where %d are expected", ErrCorrupt, root.blocks, s.c.n)
	}
	if err := s.loadIndex(); err != nil {
		return err
	}
	for i, e := range s.index {
		b, err := s.t.read(e.nr, xorBitmap)
		if err != nil {
			return err
		}
		s.c.loadBitmap(uint64(i), b.data)
	}
	err := s.over.walk(root.counts, 0, func(k uint64, v []byte) bool {
		if k < s.c.n {
			s.c.set(k, le.Uint32(v))
		}
		return true
	})
	if err == nil && s.c.used != root.used {
		err = fmt.Errorf("%w: space map says %d blocks are in use, its bitmaps %d", ErrCorrupt, root.used, s.c.used)
	}
	return err
}

// loadIndex reads where the bitmaps of the space map lie, from the index block or the
// index tree.
func (s *spaceMap) loadIndex() error {
	n := bitmapsOf(s.c.n)
	if s.meta {
		b, err := s.t.read(s.root.bitmaps, xorIndex)
		if err != nil {
			return err
		}
		if n > indexEntries {
			return fmt.Errorf("%w: metadata device of %d blocks", ErrCorrupt, s.c.n)
		}
		for i := range n {
			s.index = append(s.index, parseEntry(b.data[16+16*i:]))
		}
		return nil
	}
	s.index = make([]indexEntry, n)
	seen := uint64(0)
	err := s.byTree.walk(s.root.bitmaps, 0, func(k uint64, v []byte) bool {
		if k < n {
			s.index[k] = parseEntry(v)
			seen++
		}
		return true
	})
	if err == nil && seen != n {
		err = fmt.Errorf("%w: space map has %d bitmaps, not %d", ErrCorrupt, seen, n)
	}
	return err
}

// storeCounts puts the changed counts of 3 and more into their tree.
func (s *spaceMap) storeCounts() error {
	for len(s.c.overflow) > 0 {
		todo := make([]uint64, 0, len(s.c.overflow))
		for b := range s.c.overflow {
			todo = append(todo, b)
		}
		clear(s.c.overflow) // the changes below may mark more of the metadata's own
		slices.Sort(todo)
		for _, b := range todo {
			var err error
			if v := s.c.get(b); v >= 3 {
				s.root.counts, err = s.over.insert(s.root.counts, b, le.AppendUint32(nil, v))
			} else {
				s.root.counts, _, err = s.over.remove(s.root.counts, b)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// place gives every changed bitmap a block of this transaction.
func (s *spaceMap) place(placed map[uint64]*block) error {
	for len(placed) < len(s.c.dirty) {
		todo := make([]uint64, 0, len(s.c.dirty))
		for i := range s.c.dirty {
			if placed[i] == nil {
				todo = append(todo, i)
			}
		}
		slices.Sort(todo)
		for _, i := range todo {
			for uint64(len(s.index)) <= i {
				s.index = append(s.index, indexEntry{})
			}
			b, err := s.t.add(xorBitmap)
			if err != nil {
				return err
			}
			if old := s.index[i].nr; old != 0 {
				if err := s.t.drop(old); err != nil {
					return err
				}
			}
			placed[i], s.index[i].nr = b, b.nr
		}
	}
	return nil
}

func (s *spaceMap) fill(placed map[uint64]*block) {
	for i, b := range placed {
		s.index[i].free, s.index[i].none = s.c.bitmap(i, b.data)
	}
	s.root.blocks, s.root.used = s.c.n, s.c.used
}

// storeData stores the space map of the data device.
func (s *spaceMap) storeData() error {
	if err := s.storeCounts(); err != nil {
		return err
	}
	placed := map[uint64]*block{}
	if err := s.place(placed); err != nil {
		return err
	}
	s.fill(placed)
	for i := range placed {
		var err error
		if s.root.bitmaps, err = s.byTree.insert(s.root.bitmaps, i, s.index[i].append(nil)); err != nil {
			return err
		}
	}
	return nil
}

// storeMeta stores the space map of the metadata device, which changes by
// being stored: the counts settle first, and nothing is allocated once the
// bitmaps are filled in.
func (s *spaceMap) storeMeta() error {
	placed := map[uint64]*block{}
	if s.root.bitmaps != 0 {
		if err := s.t.drop(s.root.bitmaps); err != nil {
			return err
		}
	}
	idx, err := s.t.add(xorIndex)
	if err != nil {
		return err
	}
	for {
		if err := s.storeCounts(); err != nil {
			return err
		}
		if err := s.place(placed); err != nil {
			return err
		}
		if len(s.c.overflow) == 0 && len(placed) == len(s.c.dirty) {
			break
		}
	}
	s.fill(placed)
	for i, e := range s.index {
		copy(idx.data[16+16*i:], e.append(nil))
	}
	s.root.bitmaps = idx.nr
	return nil
}
