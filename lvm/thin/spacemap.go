package thin

import (
	"fmt"
	"slices"
)

// A space map stores the reference counts of a device's blocks: two bits each in bitmap
// blocks, where 3 means that the count is in a tree. Each bitmap has an entry in an index,
// which is a tree for the data device, and one block for the metadata device:
//
//	bitmap block        0      4         8          16
//	                   +------+---------+----------+----------------------------
//	                   | csum | unused  | block nr | 2 bits × perBitmap
//	                   +------+---------+----------+----------------------------
//	index block         0      4         8          16            (metadata device)
//	                   +------+---------+----------+----------------------------
//	                   | csum | padding | block nr | entry × indexEntries
//	                   +------+---------+----------+----------------------------
//	entry               0                 8              12
//	                   +-----------------+--------------+-----------------------
//	                   | bitmap block nr | free blocks  | first that may be free
//	                   +-----------------+--------------+-----------------------

// indexEntry describes one bitmap block.
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

const (
	indexEntries = 255 // of an index block
	blockHeader  = 16  // of bitmap and index blocks
)

// spaceMap is what both kinds of space map have in common: the counts in memory, and where
// they are stored.
type spaceMap struct {
	blocks *blocks // that it is stored in
	counts *counts
	root   mapRoot
	index  []indexEntry // by bitmap
	large  tree         // block → count of 3 and more, u32
}

func newSpaceMap(t *blocks, n uint64) spaceMap {
	return spaceMap{blocks: t, counts: newCounts(n), large: tree{blocks: t, valueSize: 4}}
}

func bitmapsOf(n uint64) uint64 { return (n + perBitmap - 1) / perBitmap }

// dataMap is the space map of the data device.
type dataMap struct {
	spaceMap
	entries tree // bitmap → indexEntry
}

func newDataMap(t *blocks, n uint64) *dataMap {
	return &dataMap{newSpaceMap(t, n), tree{blocks: t, valueSize: 16}}
}

// metaMap is the space map of the metadata device, which stores it in itself.
type metaMap struct{ spaceMap }

func newMetaMap(t *blocks, n uint64) *metaMap { return &metaMap{newSpaceMap(t, n)} }

// load reads the counts of a stored space map.
func (s *dataMap) load(root mapRoot) error {
	if err := s.begin(root); err != nil {
		return err
	}
	n := bitmapsOf(s.counts.n)
	s.index = make([]indexEntry, n)
	seen := uint64(0)
	err := s.entries.walk(root.bitmaps, 0, func(k uint64, v []byte) bool {
		if k < n {
			s.index[k] = parseEntry(v)
			seen++
		}
		return true
	})
	if err != nil {
		return err
	}
	if seen != n {
		return fmt.Errorf("%w: space map has %d bitmaps, not %d", ErrCorrupt, seen, n)
	}
	return s.loadCounts()
}

// load reads the counts of a stored space map.
func (s *metaMap) load(root mapRoot) error {
	if err := s.begin(root); err != nil {
		return err
	}
	b, err := s.blocks.read(root.bitmaps, xorIndex)
	if err != nil {
		return err
	}
	n := bitmapsOf(s.counts.n)
	if n > indexEntries {
		return fmt.Errorf("%w: metadata device of %d blocks", ErrCorrupt, s.counts.n)
	}
	for i := range n {
		s.index = append(s.index, parseEntry(b.data[blockHeader+16*i:]))
	}
	return s.loadCounts()
}

// begin takes the root of a stored space map, which has to be of as many blocks.
func (s *spaceMap) begin(root mapRoot) error {
	s.root = root
	if root.blocks != s.counts.n {
		return fmt.Errorf("%w: space map of %d blocks where %d are expected", ErrCorrupt, root.blocks, s.counts.n)
	}
	return nil
}

// loadCounts reads the bitmaps that the index names, and the counts of 3 and more.
func (s *spaceMap) loadCounts() error {
	for i, e := range s.index {
		b, err := s.blocks.read(e.nr, xorBitmap)
		if err != nil {
			return err
		}
		s.counts.loadBitmap(uint64(i), b.data)
	}
	err := s.large.walk(s.root.counts, 0, func(k uint64, v []byte) bool {
		if k < s.counts.n {
			s.counts.set(k, le.Uint32(v))
		}
		return true
	})
	if err == nil && s.counts.used != s.root.used {
		err = fmt.Errorf("%w: space map says %d blocks are in use, its bitmaps %d", ErrCorrupt, s.root.used, s.counts.used)
	}
	return err
}

// storeLarge puts the changed counts of 3 and more into their tree.
func (s *spaceMap) storeLarge() error {
	for len(s.counts.overflow) > 0 {
		todo := make([]uint64, 0, len(s.counts.overflow))
		for b := range s.counts.overflow {
			todo = append(todo, b)
		}
		clear(s.counts.overflow) // the changes below may mark more of the metadata's own
		slices.Sort(todo)
		for _, b := range todo {
			var err error
			if v := s.counts.get(b); v >= 3 {
				s.root.counts, err = s.large.insert(s.root.counts, b, le.AppendUint32(nil, v))
			} else {
				s.root.counts, _, err = s.large.remove(s.root.counts, b)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// largeCost is how many blocks it takes at most to put k more counts of 3 and more into their tree: each
// leaf, a third full at least, is copied once.
func (s *spaceMap) largeCost(k uint64) uint64 {
	if k == 0 {
		return 0
	}
	leaves := (s.counts.many+k)/uint64(maxEntries(s.large.valueSize)/3) + 1
	return min(k, leaves) + leaves/uint64(maxEntries(8)/3) + k/100 + 8
}

// place gives every changed bitmap a block of this transaction.
func (s *spaceMap) place(placed map[uint64]*block) error {
	for len(placed) < len(s.counts.dirty) {
		todo := make([]uint64, 0, len(s.counts.dirty))
		for i := range s.counts.dirty {
			if placed[i] == nil {
				todo = append(todo, i)
			}
		}
		slices.Sort(todo)
		for _, i := range todo {
			for uint64(len(s.index)) <= i {
				s.index = append(s.index, indexEntry{})
			}
			b, err := s.blocks.add(xorBitmap)
			if err != nil {
				return err
			}
			if old := s.index[i].nr; old != 0 {
				if err := s.blocks.drop(old); err != nil {
					return err
				}
			}
			placed[i], s.index[i].nr = b, b.nr
		}
	}
	return nil
}

// fill writes the counts into the bitmaps that place has made.
func (s *spaceMap) fill(placed map[uint64]*block) {
	for i, b := range placed {
		s.index[i].free, s.index[i].none = s.counts.bitmap(i, b.data)
	}
	s.root.blocks, s.root.used = s.counts.n, s.counts.used
}

// store stores the space map.
func (s *dataMap) store() error {
	if err := s.storeLarge(); err != nil {
		return err
	}
	placed := map[uint64]*block{}
	if err := s.place(placed); err != nil {
		return err
	}
	s.fill(placed)
	for i := range placed {
		var err error
		if s.root.bitmaps, err = s.entries.insert(s.root.bitmaps, i, s.index[i].append(nil)); err != nil {
			return err
		}
	}
	return nil
}

// store stores the space map, which changes by being stored: the counts settle first, and
// nothing is allocated once the bitmaps are filled in.
func (s *metaMap) store() error {
	placed := map[uint64]*block{}
	if s.root.bitmaps != 0 {
		if err := s.blocks.drop(s.root.bitmaps); err != nil {
			return err
		}
	}
	idx, err := s.blocks.add(xorIndex)
	if err != nil {
		return err
	}
	for {
		if err := s.storeLarge(); err != nil {
			return err
		}
		if err := s.place(placed); err != nil {
			return err
		}
		if len(s.counts.overflow) == 0 && len(placed) == len(s.counts.dirty) {
			break
		}
	}
	s.fill(placed)
	for i, e := range s.index {
		copy(idx.data[blockHeader+16*i:], e.append(nil))
	}
	s.root.bitmaps = idx.nr
	return nil
}
