package snap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// loggedDisk takes down what is written to it and flushed, with the chunk of the write.
type loggedDisk struct {
	*lvmtest.Disk
	name string
	log  *[]string
	fail error // of every write
}

func (d *loggedDisk) WriteAt(p []byte, off int64) (int, error) {
	if d.fail != nil {
		return 0, d.fail
	}
	what := " data"
	switch c := off / 4096; {
	case d.name != "store":
	case c == 0:
		what = " header"
	case c%257 == 1:
		what = " list"
	}
	*d.log = append(*d.log, d.name+what)
	return d.Disk.WriteAt(p, off)
}

func (d *loggedDisk) Flush() error {
	*d.log = append(*d.log, d.name+" flush")
	return d.Disk.Flush()
}

// TestOrder: each step of a store is on disk before the next one, which needs it.
func TestOrder(t *testing.T) {
	var log []string
	base := &loggedDisk{Disk: lvmtest.New(2 * size), name: "base", log: &log}
	cow := &loggedDisk{Disk: lvmtest.New(4 * size), name: "store", log: &log}
	does := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(log, want) {
			t.Errorf("%s does %q", what, log)
		}
		log = nil
	}
	st, err := OpenStore(cow, 4096)
	must(t, err)
	does("a new store", "store list", "store flush", "store header", "store flush")
	set := NewSet(base, nil, nil)
	sn := set.Add("s", st, 2*size)
	write := func(chunk, n int64) {
		t.Helper()
		log = nil
		_, err := set.Origin().WriteAt(bytes.Repeat([]byte{1}, int(n)*4096), chunk*4096)
		must(t, err)
	}
	write(0, 1)
	does("a first write", "store data", "store flush", "store list", "store flush", "base data")
	write(0, 1)
	does("a second write", "base data")
	write(1, 254)
	write(255, 1) // the list must have an end before it runs on
	does("the last write of an area", "store data", "store flush", "store list", "store flush", "store list", "store flush", "base data")
	must(t, set.StartMerge(sn))
	log = nil
	_, err = set.MergeStep()
	must(t, err)
	does("a step of a merge", "base data", "base flush", "store list", "store flush")
	must(t, st.Invalidate())
	does("an invalidation", "store header", "store flush")
}

// TestListThatWasNotFlushed: a store that is opened again after the flush of its list has failed, or
// after its process was killed before it, has on disk what it believes: otherwise the origin would be
// written where a power cut leaves no exception, and the snapshot would change.
func TestListThatWasNotFlushed(t *testing.T) {
	const chunk = 4096
	broken := errors.New("the disk is broken")
	for name, forget := range map[string]bool{"failed": true, "killed": false} {
		for _, first := range []int64{3, 255} { // the second fills an area
			for seed := range uint64(16) {
				base, d := lvmtest.New(size), &failingFlush{Disk: lvmtest.New(4 * size)}
				_, err := base.WriteAt(bytes.Repeat([]byte{1}, size), 0)
				must(t, err)
				must(t, base.Flush())
				st, err := OpenStore(d, chunk)
				must(t, err)
				set := NewSet(base, nil, nil)
				set.Add("s", st, size)
				_, err = set.Origin().WriteAt(bytes.Repeat([]byte{2}, int(first)*chunk), 0)
				must(t, err)
				// Of an area that is filled: the data, the next area, the list. Else: the data, the list.
				left := 1
				if first == 255 {
					left = 2
				}
				d.flush = func() error {
					if left--; left >= 0 {
						return d.Disk.Flush()
					}
					if forget {
						d.Forget()
					}
					return broken
				}
				if err := st.record([]pair{{uint64(first), st.next}}, func(uint64) bool { return true }); !errors.Is(err, broken) {
					t.Fatalf("%s: %v", name, err)
				}
				d.flush = nil

				again, err := OpenStore(d, chunk)
				must(t, err)
				if len(again.table) != int(first)+1 {
					t.Fatalf("%s: %d exceptions", name, len(again.table))
				}
				after, err := OpenStore(d.Crash(rand.New(rand.NewPCG(seed, 1))), chunk)
				must(t, err)
				if len(after.table) != int(first)+1 {
					t.Errorf("%s after %d, seed %d: %d exceptions after a power cut, the store believed in %d", name, first, seed, len(after.table), first+1)
				}
			}
		}
	}
}

// TestLossThatWasNotFlushed: a store that is opened again after the flush of the header that says it
// is lost has failed, or after its process was killed before it, is lost after a power cut, too, or the
// origin refuses writes.
func TestLossThatWasNotFlushed(t *testing.T) {
	const chunk = 4096
	broken := errors.New("the disk is broken")
	for name, forget := range map[string]bool{"failed": true, "killed": false} {
		for seed := range uint64(16) {
			d := &failingFlush{Disk: lvmtest.New(4 * size)}
			st, err := OpenStore(d, chunk)
			must(t, err)
			d.flush = func() error {
				if forget {
					d.Forget()
				}
				return broken
			}
			if err := st.Invalidate(); !errors.Is(err, broken) {
				t.Fatalf("%s: %v", name, err)
			}

			again, err := OpenStore(d, chunk) // the disk still fails
			must(t, err)
			set := NewSet(lvmtest.New(size), nil, nil)
			set.Add("s", again, size)
			if _, err := set.Origin().WriteAt(make([]byte, chunk), 0); !errors.Is(err, broken) {
				t.Errorf("%s: a write to the origin of a snapshot that may not be known as lost: %v", name, err)
			}
			d.flush = nil
			_, err = set.Origin().WriteAt(make([]byte, chunk), 0)
			must(t, err)
			after, err := OpenStore(d.Crash(rand.New(rand.NewPCG(seed, 1))), chunk)
			must(t, err)
			if after.valid {
				t.Errorf("%s, seed %d: a snapshot that was lost is valid after a power cut", name, seed)
			}
		}
	}
}

// failingFlush is a disk whose flushes may fail.
type failingFlush struct {
	*lvmtest.Disk
	flush func() error
}

func (d *failingFlush) Flush() error {
	if d.flush != nil {
		return d.flush()
	}
	return d.Disk.Flush()
}

// TestTableBounds: exceptions that point outside of the store, or into its list, are no
// exceptions; what lies behind the end of the list never becomes one.
func TestTableBounds(t *testing.T) {
	const chunk = 4096
	open := func(entries ...uint64) (*Store, *lvmtest.Disk, error) {
		d := lvmtest.New(4 * size)
		_, err := OpenStore(d, chunk)
		must(t, err)
		area := make([]byte, chunk)
		for i, e := range entries {
			binary.LittleEndian.PutUint64(area[8*i:], e)
		}
		_, err = d.WriteAt(area, chunk)
		must(t, err)
		st, err := OpenStore(d, chunk)
		return st, d, err
	}
	for _, to := range []uint64{1, 4 * size / chunk, 1 << 60, 258} {
		if _, _, err := open(7, to); err == nil || !strings.Contains(err.Error(), "is said to be in chunk") {
			t.Errorf("an exception in chunk %d: %v", to, err)
		}
	}
	if _, _, err := open(7, 4*size/chunk-1); err != nil {
		t.Error(err)
	}
	_, d, err := open(0, 2, 0, 0, 7, 9) // two entries after the end
	must(t, err)
	st, err := OpenStore(d, chunk)
	must(t, err)
	set := NewSet(lvmtest.New(size), nil, nil)
	set.Add("s", st, size)
	_, err = set.Origin().WriteAt(make([]byte, chunk), chunk)
	must(t, err)
	st, err = OpenStore(d, chunk)
	must(t, err)
	if st.usage().Exceptions != 2 || st.table[1] != 3 {
		t.Errorf("exceptions %v", st.table)
	}
}

// TestEndOfStore: the last chunk is used, none behind it, and a store that has no room
// to go on with its list is full.
func TestEndOfStore(t *testing.T) {
	const chunk = 4096
	for _, c := range []struct {
		chunks, writes int64
		valid          bool
	}{
		{12, 10, true}, {12, 11, false}, // header, list and ten
		{259, 255, true},  // the 256th entry ends the first part of the list
		{258, 256, false}, // and wants another, in chunk 258
		{259, 256, true}, {259, 257, false},
		{260, 257, true},
	} {
		d := lvmtest.New(c.chunks * chunk)
		st, err := OpenStore(d, chunk)
		must(t, err)
		set := NewSet(lvmtest.New(2*size), nil, nil)
		sn := set.Add("s", st, 2*size)
		_, err = set.Origin().WriteAt(make([]byte, c.writes*chunk), 0)
		must(t, err)
		if got := sn.Usage().Valid; got != c.valid {
			t.Errorf("%d writes in %d chunks: valid %v", c.writes, c.chunks, got)
		}
		again, err := OpenStore(d, chunk)
		must(t, err)
		if again.valid != c.valid || c.valid && len(again.table) != int(c.writes) {
			t.Errorf("%d writes in %d chunks, opened again: valid %v, %d exceptions", c.writes, c.chunks, again.valid, len(again.table))
		}
	}
	// The end of the store is where a smaller one will end, not where the device does.
	d := lvmtest.New(64 * chunk)
	st, err := OpenStore(d, chunk)
	must(t, err)
	st.chunks = 4
	for want := range 3 {
		if _, ok := st.alloc(); ok != (want < 2) {
			t.Errorf("chunk %d: %v", want, ok)
		}
	}
}

// TestListIsNoData: a store that is opened when its next chunk is one of the list's goes
// on behind that.
func TestListIsNoData(t *testing.T) {
	const chunk = 4096
	d, base := lvmtest.New(4*size), lvmtest.New(4*size)
	_, err := base.WriteAt(bytes.Repeat([]byte{3}, 300*chunk), 0)
	must(t, err)
	for _, n := range []int64{256, 44} {
		st, err := OpenStore(d, chunk)
		must(t, err)
		set := NewSet(base, nil, nil)
		sn := set.Add("s", st, 4*size)
		done := int64(len(st.table))
		_, err = set.Origin().WriteAt(make([]byte, n*chunk), done*chunk)
		must(t, err)
		for _, to := range st.table {
			if st.isArea(to) {
				t.Errorf("chunk %d is the list's", to)
			}
		}
		got := make([]byte, 300*chunk)
		_, err = sn.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, bytes.Repeat([]byte{3}, len(got))) {
			t.Error("the snapshot has changed")
		}
	}
}

// TestListGoesOn: exceptions that are recorded together take what is left of one part of the list,
// all of the next one and some of a third.
func TestListGoesOn(t *testing.T) {
	const chunk = 512 // 32 entries to a part
	d, base := lvmtest.New(size), lvmtest.New(size)
	old := make([]byte, 100*chunk)
	for i := range old {
		old[i] = byte(i/chunk) + 1
	}
	_, err := base.WriteAt(old, 0)
	must(t, err)
	st, err := OpenStore(d, chunk)
	must(t, err)
	set := NewSet(base, nil, nil)
	sn := set.Add("s", st, size)
	for _, r := range [][2]int64{{0, 20}, {20, 80}} {
		_, err = set.Origin().WriteAt(make([]byte, (r[1]-r[0])*chunk), r[0]*chunk)
		must(t, err)
	}
	st, err = OpenStore(d, chunk)
	must(t, err)
	again := NewSet(base, nil, nil).Add("s", st, size)
	for _, s := range []*Snapshot{sn, again} {
		got := make([]byte, len(old))
		_, err = s.ReadAt(got, 0)
		must(t, err)
		if u := s.Usage(); u.Exceptions != 80 || !bytes.Equal(got, old) {
			t.Errorf("%+v", u)
		}
	}
	if st.area != 2 || st.count != 80-2*32 {
		t.Errorf("the list ends in part %d behind entry %d", st.area, st.count)
	}
}

// TestOddEnd: the last chunk of an origin that ends within it is copied with zeroes
// behind the end, not with what a buffer held before, and merged no further than that.
func TestOddEnd(t *testing.T) {
	const chunk = 4096
	base, d := lvmtest.New(20*chunk+512), lvmtest.New(1<<20)
	_, err := base.WriteAt(bytes.Repeat([]byte{6}, 20*chunk+512), 0)
	must(t, err)
	st, err := OpenStore(d, chunk)
	must(t, err)
	set := NewSet(base, nil, nil)
	sn := set.Add("s", st, 20*chunk+512)
	for c := range int64(21) { // each buffer has held something before the last
		_, err = set.Origin().WriteAt(make([]byte, 512), c*chunk)
		must(t, err)
	}
	got := make([]byte, chunk)
	_, err = d.ReadAt(got, int64(st.table[20])*chunk)
	must(t, err)
	if !bytes.Equal(got, append(bytes.Repeat([]byte{6}, 512), make([]byte, chunk-512)...)) {
		t.Error("behind the end there is something")
	}
	must(t, set.StartMerge(sn))
	for done := false; !done; {
		done, err = set.MergeStep()
		must(t, err)
	}
	all := make([]byte, 20*chunk+512)
	_, err = base.ReadAt(all, 0)
	must(t, err)
	if !bytes.Equal(all, bytes.Repeat([]byte{6}, len(all))) {
		t.Error("merged, the origin differs")
	}
}

// TestLostIsRemembered: nothing that a lost snapshot lacks is overwritten before its
// loss is on disk somewhere, in whatever way the origin is written.
func TestLostIsRemembered(t *testing.T) {
	broken := errors.New("broken")
	for _, merging := range []bool{false, true} {
		for name, write := range map[string]func(o *Origin) error{
			"write":   func(o *Origin) error { _, err := o.WriteAt(make([]byte, 4096), 0); return err },
			"zeroes":  func(o *Origin) error { return o.WriteZeroes(0, 4096, false) },
			"discard": func(o *Origin) error { return o.Discard(0, 4096) },
			"lease": func(o *Origin) error {
				var l blockdev.Lease
				if err := o.LeaseWrite(&l, 0, 4096, blockdev.Wait); err != nil {
					return err
				}
				defer l.Release()
				for _, s := range l.Segs {
					clear(s)
				}
				return l.Commit(true)
			},
		} {
			var log []string
			base := lvmtest.New(size)
			_, err := base.WriteAt(bytes.Repeat([]byte{4}, 4096), 0)
			must(t, err)
			set := NewSet(base, nil, nil)
			answers := make(chan error, 8) // whoever does not ask shall not block the test
			asked := 0
			set.OnLost(func(*Snapshot) <-chan error { asked++; return answers })
			cow := &loggedDisk{Disk: lvmtest.New(size), name: "store", log: &log}
			st, err := OpenStore(cow, 4096)
			must(t, err)
			set.Add("lost", st, size)
			if merging {
				other, err := OpenStore(lvmtest.New(size), 4096)
				must(t, err)
				must(t, set.StartMerge(set.Add("merging", other, size)))
			}
			cow.fail = broken
			for range 2 {
				answers <- broken
				if err := write(set.Origin()); !errors.Is(err, blockdev.ErrMedium) {
					t.Errorf("merging %v, %s: %v", merging, name, err)
				}
				got := make([]byte, 4096)
				_, err = base.ReadAt(got, 0)
				must(t, err)
				if got[0] != 4 {
					t.Errorf("merging %v, %s: the origin is overwritten", merging, name)
				}
			}
			answers <- nil
			must(t, write(set.Origin()))
			must(t, write(set.Origin())) // and nobody is asked again
			if asked != 3 {
				t.Errorf("merging %v, %s: asked %d times", merging, name, asked)
			}
		}
	}
}

// TestLostAfterRestart: a store that could be marked is invalid when it is opened again,
// even if the power goes right then.
func TestLostAfterRestart(t *testing.T) {
	for seed := range uint64(8) {
		d := lvmtest.New(size)
		st, err := OpenStore(d, 4096)
		must(t, err)
		must(t, st.Invalidate())
		again, err := OpenStore(d.Crash(rand.New(rand.NewPCG(seed, 1))), 4096)
		must(t, err)
		if again.valid {
			t.Fatal("it is valid")
		}
		set := NewSet(lvmtest.New(size), nil, nil)
		sn := set.Add("s", again, size)
		if _, err := sn.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrInvalid) {
			t.Error("a read:", err)
		}
		if _, err := sn.WriteAt(make([]byte, 512), 0); !errors.Is(err, ErrInvalid) {
			t.Error("a write:", err)
		}
		if err := set.StartMerge(sn); !errors.Is(err, ErrInvalid) {
			t.Error("a merge:", err)
		}
		set.merging = sn // as if it had been lost since
		if _, err := set.MergeStep(); !errors.Is(err, ErrInvalid) {
			t.Error("a step of a merge:", err)
		}
	}
}

// TestGrownOrigin: what an origin got after a snapshot was made is not copied into it.
func TestGrownOrigin(t *testing.T) {
	base := lvmtest.New(2 * size)
	st, err := OpenStore(lvmtest.New(size), 4096)
	must(t, err)
	set := NewSet(base, nil, nil)
	sn := set.Add("s", st, size)
	_, err = set.Origin().WriteAt(make([]byte, 8192), size-4096)
	must(t, err)
	if n := sn.Usage().Exceptions; n != 1 {
		t.Errorf("%d exceptions", n)
	}
}

// TestMergingOriginIsDurable: while a snapshot is merged, what is flushed is on the disk
// of the origin and in the store.
func TestMergingOriginIsDurable(t *testing.T) {
	for name, flush := range map[string]func(o *Origin) error{
		"all": (*Origin).Flush, "range": func(o *Origin) error { return o.FlushRange(0, 4096) },
	} {
		var log []string
		base := &loggedDisk{Disk: lvmtest.New(size), name: "base", log: &log}
		cow := &loggedDisk{Disk: lvmtest.New(size), name: "store", log: &log}
		st, err := OpenStore(cow, 4096)
		must(t, err)
		set := NewSet(base, nil, nil)
		sn := set.Add("s", st, size)
		_, err = sn.WriteAt(bytes.Repeat([]byte{8}, 4096), 0)
		must(t, err)
		must(t, set.StartMerge(sn))
		o := set.Origin()
		var l blockdev.Lease
		must(t, o.LeaseRead(&l, 0, 4096, blockdev.Wait))
		if l.Segs[0][0] != 8 {
			t.Error("a lease shows the origin as it was")
		}
		l.Release()
		_, err = o.WriteAt(make([]byte, 512), 0)
		must(t, err)
		log = nil
		must(t, flush(o))
		if !slices.Contains(log, "base flush") || !slices.Contains(log, "store flush") {
			t.Errorf("%s: %q", name, log)
		}
		log = nil
		must(t, sn.Flush())
		if !slices.Contains(log, "store flush") {
			t.Errorf("a snapshot's flush does %q", log)
		}
	}
}

// tornDisk loses power within the write of a list: only its first sector is there.
type tornDisk struct {
	*lvmtest.Disk
	list  int64 // where it is
	entry int   // the write that has this one is torn
	torn  bool
}

func (d *tornDisk) WriteAt(p []byte, off int64) (int, error) {
	if off == d.list && binary.LittleEndian.Uint64(p[d.entry*entrySize+8:]) != 0 {
		d.torn = true
		if _, err := d.Disk.WriteAt(p[:512], off); err != nil {
			return 0, err
		}
		return 0, lvmtest.ErrCut
	}
	return d.Disk.WriteAt(p, off)
}

// TestTornList: what a loss of power has left behind the end of the list, of a commit whose earlier
// sectors are not there, is not taken for exceptions when the next one loses its later sectors.
func TestTornList(t *testing.T) {
	const chunk, perSector, left = 4096, 512 / entrySize, 100
	d := lvmtest.New(size)
	snapshot := func(dev blockdev.Device) *Snapshot {
		t.Helper()
		st, err := OpenStore(dev, chunk)
		must(t, err)
		return NewSet(lvmtest.New(size), nil, nil).Add("s", st, size)
	}
	_, err := snapshot(d).WriteAt(make([]byte, (perSector-1)*chunk), 0)
	must(t, err)
	entry := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, left), firstChunk+perSector+1)
	sector := make([]byte, 512)
	copy(sector, entry)
	_, err = d.WriteAt(sector, chunk+512)
	must(t, err)

	torn := &tornDisk{Disk: d, list: chunk, entry: perSector - 1}
	if _, err := snapshot(torn).WriteAt(make([]byte, chunk), (perSector-1)*chunk); err == nil || !torn.torn {
		t.Fatalf("no commit was torn: %v", err)
	}
	_, err = d.WriteAt(validHeader(chunk), 0) // the power was gone before the store was marked as lost
	must(t, err)
	es, err := snapshot(d).Changed()
	must(t, err)
	if want := []blockdev.Extent{{Off: 0, Len: perSector * chunk, Data: true}}; !slices.Equal(es, want) {
		t.Errorf("exceptions %v, want %v", es, want)
	}
}

// validHeader is the header of a store.
func validHeader(chunk int64) []byte {
	b := make([]byte, chunk)
	for i, v := range []uint32{magic, 1, version, uint32(chunk / 512)} {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}

// named is a disk whose cache has a name.
type named struct {
	*lvmtest.Disk
	cache string
}

func (d *named) Info() blockdev.Info {
	i := d.Disk.Info()
	i.CacheID = d.cache
	return i
}

// TestCacheOfAMergingOrigin: while a snapshot is merged, acknowledged writes may be in the store, whose
// disk has a cache of its own: that of the origin does not tell whether they are still there.
func TestCacheOfAMergingOrigin(t *testing.T) {
	st, err := OpenStore(lvmtest.New(size), 4096)
	must(t, err)
	set := NewSet(&named{lvmtest.New(size), "one"}, nil, nil)
	sn, o := set.Add("s", st, size), set.Origin()
	for _, step := range []struct {
		what, want string
		do         func() error
	}{
		{"before", "one", func() error { return nil }},
		{"while it is merged", "", func() error { return set.StartMerge(sn) }},
		{"after it", "one", func() error { set.Remove(sn); return nil }},
	} {
		must(t, step.do())
		if got := o.Info().CacheID; got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// TestScattered: neighbours on the origin that are none in the store are read, lent and
// merged from where they are.
func TestScattered(t *testing.T) {
	const chunk = 4096
	d, base := lvmtest.New(size), lvmtest.New(size)
	_, err := OpenStore(d, chunk)
	must(t, err)
	area := make([]byte, chunk)
	for i, e := range []uint64{0, 2, 1, 5, 2, 4} {
		binary.LittleEndian.PutUint64(area[8*i:], e)
	}
	_, err = d.WriteAt(area, chunk)
	must(t, err)
	for c := range int64(6) {
		_, err = d.WriteAt(bytes.Repeat([]byte{byte(c)}, chunk), (2+c)*chunk) // chunk 2+c holds c
		must(t, err)
	}
	want := slices.Concat(bytes.Repeat([]byte{0}, chunk), bytes.Repeat([]byte{3}, chunk), bytes.Repeat([]byte{2}, chunk))
	st, err := OpenStore(d, chunk)
	must(t, err)
	set := NewSet(base, nil, nil)
	sn := set.Add("s", st, size)
	got := make([]byte, 3*chunk)
	_, err = sn.ReadAt(got, 0)
	must(t, err)
	var l blockdev.Lease
	must(t, sn.LeaseRead(&l, 0, 3*chunk, blockdev.Wait))
	if !bytes.Equal(got, want) || !bytes.Equal(bytes.Join(l.Segs, nil), want) {
		t.Error("a read is wrong")
	}
	l.Release()
	must(t, set.StartMerge(sn))
	for done := false; !done; {
		done, err = set.MergeStep()
		must(t, err)
	}
	_, err = base.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the merge is wrong")
	}
}

// TestShrinkBound: a store gets as small as what it holds, and no smaller.
func TestShrinkBound(t *testing.T) {
	const chunk = 4096
	st, err := OpenStore(lvmtest.New(size), chunk)
	must(t, err)
	set := NewSet(lvmtest.New(size), nil, nil)
	sn := set.Add("s", st, size)
	_, err = set.Origin().WriteAt(make([]byte, 3*chunk), 0)
	must(t, err)
	for chunks, ok := range map[int64]bool{4: false, 5: true, 6: true} { // header, list and three
		sh, err := sn.Shrink(chunks * chunk)
		if (err == nil) != ok {
			t.Errorf("%d chunks: %v", chunks, err)
		}
		if err == nil {
			sh.End()
		}
	}
}

// TestNoRoomForTheList: a list that has no room to go on ends the snapshot, although the
// device is larger than the store is to be; one that ends with its store is read.
func TestNoRoomForTheList(t *testing.T) {
	const chunk = 4096
	d := lvmtest.New(4 * size)
	st, err := OpenStore(d, chunk)
	must(t, err)
	st.chunks = 258 // of which the next part of the list would be the 259th
	mark := bytes.Repeat([]byte{0xaa}, chunk)
	_, err = d.WriteAt(mark, 258*chunk)
	must(t, err)
	set := NewSet(lvmtest.New(2*size), nil, nil)
	sn := set.Add("s", st, 2*size)
	_, err = set.Origin().WriteAt(make([]byte, 256*chunk), 0)
	must(t, err)
	got := make([]byte, chunk)
	_, err = d.ReadAt(got, 258*chunk)
	must(t, err)
	if sn.Usage().Valid || !bytes.Equal(got, mark) {
		t.Errorf("valid %v; behind the end it begins with %d", sn.Usage().Valid, got[0])
	}

	full := lvmtest.New(258 * chunk)
	_, err = OpenStore(full, chunk)
	must(t, err)
	area := make([]byte, chunk)
	for i := range uint64(256) {
		binary.LittleEndian.PutUint64(area[16*i:], i)
		binary.LittleEndian.PutUint64(area[16*i+8:], 2+i)
	}
	_, err = full.WriteAt(area, chunk)
	must(t, err)
	st, err = OpenStore(full, chunk)
	must(t, err)
	if u := st.usage(); !u.Valid || u.Exceptions != 256 {
		t.Errorf("%+v", u)
	}
}

// keepsDiscarded is a disk that cannot discard, or whose discards leave everything as it is.
type keepsDiscarded struct {
	*lvmtest.Disk
	can bool
}

func (d *keepsDiscarded) Info() blockdev.Info {
	i := d.Disk.Info()
	i.Discard, i.ZeroesOnTrim = d.can, false
	return i
}

func (d *keepsDiscarded) Discard(int64, int64) error {
	if !d.can {
		return blockdev.ErrNotSupported
	}
	return nil
}

// TestDiscardWhileMerging: what a merging origin discards reads as its own disk says, zeroes, also where
// the disk of the store that has it says something else.
func TestDiscardWhileMerging(t *testing.T) {
	for _, can := range []bool{false, true} {
		st, err := OpenStore(&keepsDiscarded{lvmtest.New(size), can}, 4096)
		must(t, err)
		set := NewSet(lvmtest.New(size), nil, nil)
		sn, o := set.Add("s", st, size), set.Origin()
		all := bytes.Repeat([]byte{8}, 12288)
		_, err = o.WriteAt(all, 0)
		must(t, err)
		_, err = sn.WriteAt(all[:4096], 4096)
		must(t, err)
		must(t, set.StartMerge(sn))
		if i := o.Info(); !i.Discard || !i.ZeroesOnTrim {
			t.Fatal("the origin discards nothing")
		}
		must(t, o.Discard(0, 12288))
		for done := false; ; {
			got := make([]byte, 12288)
			if _, err := o.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, 12288)) {
				t.Errorf("can %v, merged %v: what was discarded is not zeroes: %v", can, done, err)
			}
			if done {
				break
			}
			done, err = set.MergeStep()
			must(t, err)
		}
	}
}
