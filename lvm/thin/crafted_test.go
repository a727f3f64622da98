package thin

import (
	"bytes"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// craft replaces the superblock of a closed pool's metadata.
func craft(t *testing.T, meta *lvmtest.Disk, change func(*super)) {
	t.Helper()
	b := make([]byte, blockSize)
	_, err := meta.ReadAt(b, 0)
	must(t, err)
	s, err := parseSuper(b)
	must(t, err)
	change(s)
	_, err = meta.WriteAt(s.encode(), 0)
	must(t, err)
}

// putNode writes a node with a right checksum.
func putNode(t *testing.T, meta *lvmtest.Disk, nr uint64, n node) {
	t.Helper()
	le.PutUint64(n[8:], nr)
	le.PutUint32(n, checksum(n, xorNode))
	_, err := meta.WriteAt(n, int64(nr)*blockSize)
	must(t, err)
}

// TestEndlessTrees: metadata whose every checksum is right, but whose trees have
// the same node below each entry: walking them would take as many steps as there
// are paths.
func TestEndlessTrees(t *testing.T) {
	p, good, data := newPool(t, 64, nil)
	must(t, p.Create(1, 1))
	d, err := p.Device(1, 64*chunk, "t", false)
	must(t, err)
	_, err = d.WriteAt(make([]byte, 512), 0)
	must(t, err)
	must(t, d.Close())
	must(t, p.Close())
	const levels = 3 // enough for 16 million paths; the walk without the check still ends
	// web writes the nodes and returns the root. The leaf has an entry, or none.
	web := func(meta *lvmtest.Disk, valueSize int, entry bool) uint64 {
		nr := uint64(meta.Info().Size/blockSize - 1)
		n := make(node, blockSize)
		n.init(flagLeaf, valueSize)
		if entry {
			n.insert(0, 1<<20, make([]byte, valueSize))
		}
		putNode(t, meta, nr, n)
		for range levels {
			n.init(flagInternal, 8)
			for i := range n.max() {
				n.insert(i, uint64(i), u64(nr))
			}
			nr--
			putNode(t, meta, nr, n)
		}
		return nr
	}
	for _, entry := range []bool{true, false} {
		for name, c := range map[string]struct {
			size int
			put  func(s *super, root uint64)
			use  func(p *Pool) error
		}{
			"bitmaps of the data":    {16, func(s *super, r uint64) { s.data.bitmaps = r }, nil},
			"counts of the data":     {4, func(s *super, r uint64) { s.data.counts = r }, nil},
			"counts of the metadata": {4, func(s *super, r uint64) { s.meta.counts = r }, nil},
			"devices":                {8, func(s *super, r uint64) { s.mapping = r }, func(p *Pool) error { _, err := p.Devices(); return err }},
		} {
			meta := good.Clone()
			root := web(meta, c.size, entry)
			craft(t, meta, func(s *super) { c.put(s, root) })
			p, err := openPool(meta, data.Clone(), nil)
			if err == nil && c.use != nil {
				err = c.use(p)
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s, leaf with an entry %v: %v", name, entry, err)
			}
		}
		// A volume's own tree.
		meta := good.Clone()
		root := web(meta, 8, entry)
		p, err := openPool(meta, data.Clone(), nil)
		must(t, err)
		d, err := p.Device(1, 1<<40, "t", false)
		must(t, err)
		d.root = root
		if _, err := d.Extents(0, 1<<40); !errors.Is(err, ErrCorrupt) {
			t.Errorf("extents of a volume, leaf with an entry %v: %v", entry, err)
		}
		// A comparison skips what both have, so one of them is empty.
		none, err := p.maps.empty()
		must(t, err)
		for _, roots := range [][2]uint64{{root, none}, {none, root}} {
			a, err := newCursor(&p.maps, roots[0])
			must(t, err)
			b, err := newCursor(&p.maps, roots[1])
			must(t, err)
			if err := compare(a, b, func(uint64, bool) {}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("comparison of volumes, leaf with an entry %v: %v", entry, err)
			}
		}
	}
	// Keys that do not ascend.
	meta := good.Clone()
	n := make(node, blockSize)
	n.init(flagLeaf, 8)
	n.insert(0, 5, u64(0))
	n.insert(1, 5, u64(0))
	nr := uint64(meta.Info().Size/blockSize - 1)
	putNode(t, meta, nr, n)
	craft(t, meta, func(s *super) { s.mapping = nr })
	p, err = openPool(meta, data.Clone(), nil)
	must(t, err)
	if _, err := p.Device(5, chunk, "t", false); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

// TestTime: a mapping has 24 bits for the time. A pool that has used them up
// takes no more snapshots, and metadata that says more is not believed: the rest
// of the time would be taken for a part of the block's number.
func TestTime(t *testing.T) {
	p, meta, data := newPool(t, 64, nil)
	must(t, p.Create(1, 1))
	must(t, p.Close())
	craft(t, meta, func(s *super) { s.time = maxTime - 1 })
	p, err := openPool(meta, data, nil)
	must(t, err)
	must(t, p.Snapshot(2, 1, 2)) // the last
	if err := p.Snapshot(3, 1, 3); err == nil {
		t.Fatal("a snapshot at a time that mappings cannot have")
	}
	var ds [2]*Device
	for i := range ds {
		ds[i], err = p.Device(uint64(i+1), 16*chunk, "t", false)
		must(t, err)
		for b := range int64(4) {
			_, err := ds[i].WriteAt(bytes.Repeat([]byte{byte(16*i + int(b) + 1)}, chunk), b*chunk)
			must(t, err)
		}
	}
	for i, d := range ds {
		for b := range int64(4) {
			got := make([]byte, chunk)
			_, err := d.ReadAt(got, b*chunk)
			must(t, err)
			if !bytes.Equal(got, bytes.Repeat([]byte{byte(16*i + int(b) + 1)}, chunk)) {
				t.Errorf("volume %d, block %d holds %d", i+1, b, got[0])
			}
		}
		must(t, d.Close())
	}
	must(t, p.Close())
	check(t, meta)
	craft(t, meta, func(s *super) { s.time = maxTime + 1 })
	if _, err := openPool(meta, data, nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a superblock with a time beyond that of mappings: %v", err)
	}
}

// TestMappedTwice: two volumes that damaged metadata gives the same block, each
// as its own, do not write into each other.
func TestMappedTwice(t *testing.T) {
	p, _, _ := newPool(t, 64, nil)
	var ds [2]*Device
	for i := range ds {
		must(t, p.Create(uint64(i+1), uint64(i+1)))
		var err error
		ds[i], err = p.Device(uint64(i+1), 16*chunk, "t", false)
		must(t, err)
	}
	old := bytes.Repeat([]byte{7}, chunk)
	_, err := ds[0].WriteAt(old, 0)
	must(t, err)
	m, err := ds[0].lookup(0)
	must(t, err)
	p.mu.Lock()
	err = errors.Join(p.data.counts.inc(m.data), ds[1].setLocked(0, m.data))
	p.mu.Unlock()
	must(t, err)
	_, err = ds[1].WriteAt(make([]byte, 512), 0)
	must(t, err)
	got := make([]byte, chunk)
	_, err = ds[0].ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, old) {
		t.Error("one volume's write shows in the other")
	}
	for _, d := range ds {
		must(t, d.Close())
	}
	must(t, p.Close())
}

// TestResizedTogether: calls and leases that began before a resize see the
// volume as it is, not the tree of then, whose blocks have other uses by now.
func TestResizedTogether(t *testing.T) {
	p, _, _ := newPool(t, 256, nil)
	must(t, p.Create(1, 1))
	old, err := p.Device(1, 64*chunk, "t", false)
	must(t, err)
	content := func(gen byte, block int64) []byte { return bytes.Repeat([]byte{gen + byte(block)}, chunk) }
	for b := range int64(16) {
		_, err := old.WriteAt(content(1, b), b*chunk)
		must(t, err)
	}
	must(t, old.Flush())
	d := old.Resized(128 * chunk)
	var l blockdev.Lease
	for gen := byte(2); gen < 8; gen++ {
		for b := range int64(16) {
			must(t, d.Discard(b*chunk, chunk))
		}
		must(t, d.Flush())
		for b := range int64(16) {
			_, err := d.WriteAt(content(gen*16, 15-b), (15-b)*chunk)
			must(t, err)
		}
		must(t, d.Flush())
		for b := range int64(16) {
			want := content(gen*16, b)
			got := make([]byte, chunk)
			if _, err := old.ReadAt(got, b*chunk); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("block %d reads %d through the device of before the resize, not %d: %v", b, got[0], want[0], err)
			}
			must(t, old.LeaseRead(&l, b*chunk, chunk, blockdev.Wait))
			if got := bytes.Join(l.Segs, nil); !bytes.Equal(got, want) {
				t.Fatalf("block %d is lent as %d through the device of before the resize, not %d", b, got[0], want[0])
			}
			l.Release()
		}
	}
	// What the old one still writes is not lost either.
	_, err = old.WriteAt(content(200, 0), 20*chunk)
	must(t, err)
	got := make([]byte, chunk)
	_, err = d.ReadAt(got, 20*chunk)
	must(t, err)
	if !bytes.Equal(got, content(200, 0)) {
		t.Error("a write through the device of before the resize is lost")
	}
	must(t, d.Close())
	if err := old.Close(); !errors.Is(err, blockdev.ErrClosed) {
		t.Error(err)
	}
	must(t, p.Close())
}
