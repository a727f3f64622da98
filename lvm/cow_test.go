package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/snap"
	"softiser/lvm/vg"
)

var bg = context.Background()

// fill writes a pattern over a range.
func fill(t testing.TB, v blockdev.Device, model []byte, off, n int, seed byte) {
	t.Helper()
	p := bytes.Repeat([]byte{seed, byte(off >> 12), 3, 4}, n/4)
	if _, err := v.WriteAt(p, int64(off)); err != nil {
		t.Fatal(err)
	}
	copy(model[off:], p)
}

func same(t testing.TB, v blockdev.Device, model []byte, what string) {
	t.Helper()
	got := make([]byte, len(model))
	if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, model) {
		t.Fatalf("%s differs: %v", what, err)
	}
}

func TestCowConformance(t *testing.T) {
	for _, kind := range []string{"origin", "snapshot", "thin", "thin shared"} {
		t.Run(kind, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
				devs := map[string]blockdev.Device{}
				m, err := mem.Open(mem.Config{Size: 64 << 20, Pool: pool})
				must(t, err)
				devs["/d0"] = m
				g, _ := groupOn(t, devs)
				g.cfg.Pool = pool
				n := uint64(size / 65536)
				name := "v"
				switch kind {
				case "origin", "snapshot":
					must(t, g.Create(CreateOptions{Name: "v", Extents: n}, "lvcreate"))
					must(t, g.Snapshot(bg, SnapshotOptions{Origin: "v", Name: "s", Extents: 4 * n}, "lvcreate"))
					if kind == "snapshot" {
						name = "s"
					}
				default:
					must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 8 * n}, "lvcreate"))
					must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "v", Extents: n}, "lvcreate"))
					if kind == "thin shared" {
						must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "v"}, "lvcreate"))
					}
				}
				v := volume(t, g, name)
				v.own = g
				return v
			}})
		})
	}
}

// TestSnapshots makes, uses, extends, removes and merges classic snapshots of
// an origin that is in use all the time.
func TestSnapshots(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 32}, "lvcreate"))
	o := volume(t, g, "o")
	model := make([]byte, 32*65536)
	fill(t, o, model, 0, len(model), 1)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s1", Extents: 8}, "lvcreate"))
	m1 := bytes.Clone(model)
	fill(t, o, model, 65536, 8192, 2)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s2", Extents: 8, Chunk: 16384}, "lvcreate"))
	m2 := bytes.Clone(model)
	fill(t, o, model, 65536, 20480, 3)
	s1, s2 := volume(t, g, "s1"), volume(t, g, "s2")
	fill(t, s2, m2, 4096, 4096, 9)
	check := func() {
		t.Helper()
		same(t, o, model, "origin")
		same(t, s1, m1, "s1")
		same(t, s2, m2, "s2")
	}
	check()
	if err := g.Remove(bg, "o", "lvremove"); err == nil {
		t.Fatal("an origin with snapshots was removed")
	}
	if got := fmt.Sprint(g.Dependents("o")); got != "[s1 s2]" {
		t.Error(got)
	}
	must(t, g.Extend("s1", 16, "", 0, nil, "lvextend"))
	if u, err := g.SnapshotUsage("s1"); err != nil || u.Total != 16*65536 || u.Exceptions != 5 {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, g.Move(bg, vg.Range{PV: "pv0"}, "", nil, "", nil, "pvmove"))
	check()
	for _, v := range []*Volume{o, s1, s2} {
		must(t, v.Close())
	}
	g = reopen(t, g, cfg, 2)
	o, s1, s2 = volume(t, g, "o"), volume(t, g, "s1"), volume(t, g, "s2")
	check()
	if _, err := g.Merge(bg, "s2", "lvconvert"); !errors.Is(err, blockdev.ErrInUse) {
		t.Fatal(err)
	}
	must(t, s2.Close())
	done, err := g.Merge(bg, "s2", "lvconvert")
	must(t, err)
	copy(model, m2)
	same(t, o, model, "merging origin")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	same(t, o, model, "merged origin")
	same(t, s1, m1, "s1")
	if _, err := g.Volume("s2"); !errors.Is(err, vg.ErrNotFound) {
		t.Fatal(err)
	}
	must(t, s1.Close())
	must(t, g.Remove(bg, "s1", "lvremove"))
	fill(t, o, model, 0, 8192, 5)
	var l blockdev.Lease
	must(t, o.LeaseRead(&l, 0, 8192, blockdev.Wait))
	l.Release()
	must(t, o.Close())
	g = reopen(t, g, cfg, 2)
	if n := len(g.Metadata().LVs); n != 1 {
		t.Fatalf("%d volumes are left", n)
	}
	o = volume(t, g, "o")
	same(t, o, model, "origin")
	must(t, o.Close())
	must(t, g.Close())
}

// TestMergeResumes closes the group in the middle of a merge.
func TestMergeResumes(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 256}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 300}, "lvcreate"))
	s := volume(t, g, "s")
	model := make([]byte, 256*65536)
	for i := 0; i < 256; i += 2 {
		fill(t, s, model, i*65536, 65536, byte(i))
	}
	must(t, s.Close())
	_, err := g.Merge(bg, "s", "lvconvert")
	must(t, err)
	for i := 0; i < 50; i++ {
		g = reopen(t, g, cfg, 1)
		o, err := g.Volume("o")
		must(t, err)
		same(t, o, model, "origin")
		left := len(g.Metadata().SnapshotsOf("o"))
		must(t, o.Close())
		if left == 0 {
			break
		}
	}
	v, err := g.Volume("o")
	must(t, err)
	for g.Metadata().LV("s") != nil {
		time.Sleep(time.Millisecond)
	}
	same(t, v, model, "origin")
	must(t, v.Close())
	must(t, g.Close())
}

// TestExtendOrigin grows an origin that is in use: its snapshots stay as they
// are, in size too, as those of lvm2 do; later ones are larger.
func TestExtendOrigin(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	o := volume(t, g, "o")
	model := make([]byte, 8*65536)
	fill(t, o, model, 0, len(model), 1)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s1", Extents: 16}, "lvcreate"))
	m1 := bytes.Clone(model)
	var told atomic.Int64
	defer o.OnResize(func(i blockdev.Info) { told.Store(i.Size) })()
	var l blockdev.Lease
	must(t, o.LeaseWrite(&l, 0, 4096, blockdev.Wait)) // growing waits for nobody
	must(t, g.Extend("o", 12, "", 0, nil, "lvextend"))
	for _, s := range l.Segs {
		copy(s, bytes.Repeat([]byte{7}, len(s)))
	}
	must(t, l.Commit(false))
	l.Release()
	if told.Load() != 12*65536 || o.Info().Size != 12*65536 {
		t.Fatalf("told %d, the size is %d", told.Load(), o.Info().Size)
	}
	model = append(model, make([]byte, 4*65536)...)
	copy(model, bytes.Repeat([]byte{7}, 4096))
	fill(t, o, model, 7*65536, 5*65536, 3) // over the old end
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s2", Extents: 16}, "lvcreate"))
	m2 := bytes.Clone(model)
	fill(t, o, model, 10*65536, 65536, 4)
	check := func() {
		t.Helper()
		for _, c := range []struct {
			name  string
			model []byte
		}{{"o", model}, {"s1", m1}, {"s2", m2}} {
			v := volume(t, g, c.name)
			if v.Info().Size != int64(len(c.model)) {
				t.Errorf("%s has %d bytes, not %d", c.name, v.Info().Size, len(c.model))
			}
			same(t, v, c.model, c.name)
			must(t, v.Close())
		}
	}
	check()
	if u, err := g.SnapshotUsage("s1"); err != nil || u.Exceptions != 17 {
		t.Fatalf("%+v %v: what lies beyond the snapshot's end was copied", u, err)
	}
	s1 := volume(t, g, "s1")
	if _, err := s1.ReadAt(make([]byte, 512), 8*65536); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Fatal(err)
	}
	must(t, s1.Close())
	must(t, o.Close())
	g = reopen(t, g, cfg, 2)
	check()
	cs, err := g.Diff("s1", "s2")
	must(t, err)
	if got := fmt.Sprint(cs); got != "[{0 4096 true} {458752 65536 true} {524288 262144 true}]" {
		t.Error(got)
	}
	if err := g.Reduce(bg, "o", 4, "lvreduce"); err == nil {
		t.Fatal("an origin was reduced")
	}
	// The older state comes back; what lies beyond its end stays.
	done, err := g.Merge(bg, "s1", "lvconvert")
	must(t, err)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	copy(model, m1)
	o, s2 := volume(t, g, "o"), volume(t, g, "s2")
	same(t, o, model, "merged origin")
	same(t, s2, m2, "s2")
	must(t, o.Close())
	must(t, s2.Close())
	must(t, g.Close())
}

// TestExtendOriginCrash cuts the power at every write of the change.
func TestExtendOriginCrash(t *testing.T) {
	for cut := 1; ; cut++ {
		d := lvmtest.New(16 << 20)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": d})
		must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
		o := volume(t, g, "o")
		model := make([]byte, 8*ext)
		fill(t, o, model, 0, len(model), 1)
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 16}, "lvcreate"))
		old := bytes.Clone(model)
		fill(t, o, model, ext, 8192, 2)
		must(t, o.Flush())
		d.CutAfter(cut)
		err := g.Extend("o", 12, "", 0, nil, "lvextend")
		if err == nil {
			_, err = o.WriteAt(make([]byte, 8192), 8*ext-4096)
		}
		if err == nil {
			err = o.Flush()
		}
		c := d.Crash(rand.New(rand.NewPCG(uint64(cut), 5)))
		cfg.Open = func(string) (blockdev.Device, error) { return c, nil }
		h, oerr := Open(cfg, []string{"/d0"}, "vg0")
		must(t, oerr)
		w, s := volume(t, h, "o"), volume(t, h, "s")
		if n := w.Info().Size; n != 8*ext && n != 12*ext {
			t.Fatalf("cut %d: the origin has %d bytes", cut, n)
		}
		same(t, w, model[:8*ext-4096], "origin")
		same(t, s, old, "snapshot")
		must(t, w.Close())
		must(t, s.Close())
		must(t, h.Close())
		if err == nil {
			return
		}
	}
}

// TestReduceStore makes a snapshot's store smaller while its origin is in use.
func TestReduceStore(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8}, "lvcreate"))
	o := volume(t, g, "o")
	model, old := make([]byte, 8*ext), make([]byte, 8*ext)
	same(t, o, model[:4096], "the start") // zeroed by the creation
	must(t, o.WriteZeroes(0, 8*ext, false))
	must(t, g.Remove(bg, "s", "lvremove"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8}, "lvcreate"))
	fill(t, o, model, 0, 2*ext, 1)
	if err := g.Reduce(bg, "s", 2, "lvreduce"); err == nil || !strings.Contains(err.Error(), "34 of its 128 chunks") {
		t.Fatal(err)
	}
	fill(t, o, model, 2*ext, 8192, 2) // it still has its size
	must(t, g.Reduce(bg, "s", 3, "lvreduce"))
	if u, err := g.SnapshotUsage("s"); err != nil || u.Total != 3*ext || !u.Valid {
		t.Fatalf("%+v %v", u, err)
	}
	fill(t, o, model, 3*ext, 8192, 2)
	s := volume(t, g, "s")
	same(t, s, old, "snapshot")
	must(t, s.Close())
	must(t, o.Close())
	g = reopen(t, g, cfg, 1)
	s = volume(t, g, "s")
	same(t, s, old, "snapshot")
	must(t, s.Close())
	o = volume(t, g, "o")
	fill(t, o, model, 4*ext, 2*ext, 3) // too much
	same(t, o, model, "origin")
	if u, err := g.SnapshotUsage("s"); err != nil || u.Valid {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, o.Close())
	must(t, g.Close())
}

// TestResizeStoreCrash cuts the power at every write while a snapshot's store
// grows and shrinks under writes to the origin.
func TestResizeStoreCrash(t *testing.T) {
	for cut := 1; ; cut++ {
		d := lvmtest.New(16 << 20)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": d})
		must(t, g.Create(CreateOptions{Name: "o", Extents: 4}, "lvcreate"))
		o := volume(t, g, "o")
		old := make([]byte, 4*ext)
		fill(t, o, old, 0, len(old), 1)
		must(t, o.Flush())
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 4}, "lvcreate"))
		p := bytes.Repeat([]byte{9}, 8192)
		d.CutAfter(cut)
		var err error
		for i, extents := range []uint64{6, 2, 5} {
			if err == nil {
				_, err = o.WriteAt(p, int64(i)*8192)
			}
			switch {
			case err != nil:
			case extents > g.Metadata().LV("s").Extents():
				err = g.Extend("s", extents, "", 0, nil, "lvextend")
			default:
				err = g.Reduce(bg, "s", extents, "lvreduce")
			}
		}
		if err == nil {
			_, err = o.WriteAt(p, 3*8192)
		}
		c := d.Crash(rand.New(rand.NewPCG(uint64(cut), 6)))
		cfg.Open = func(string) (blockdev.Device, error) { return c, nil }
		h, oerr := Open(cfg, []string{"/d0"}, "vg0")
		must(t, oerr)
		s := volume(t, h, "s")
		same(t, s, old, fmt.Sprintf("snapshot after cut %d", cut))
		must(t, s.Close())
		must(t, h.Close())
		if err == nil {
			return
		}
	}
}

func TestSnapshotOverflow(t *testing.T) {
	var told atomic.Int32
	g, _ := newGroup(t, 1, 64<<20)
	g.cfg.Notice = func(string) { told.Add(1) }
	must(t, g.Create(CreateOptions{Name: "o", Extents: 32}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 1}, "lvcreate"))
	o, s := volume(t, g, "o"), volume(t, g, "s")
	model := make([]byte, 32*65536)
	fill(t, o, model, 0, len(model), 1)
	same(t, o, model, "origin")
	if _, err := s.ReadAt(make([]byte, 512), 0); !errors.Is(err, snap.ErrInvalid) {
		t.Fatal(err)
	}
	if told.Load() != 1 {
		t.Error("nobody was told")
	}
	must(t, s.Close())
	if _, err := g.Merge(bg, "s", "lvconvert"); !errors.Is(err, snap.ErrInvalid) {
		t.Fatal(err)
	}
	must(t, g.Remove(bg, "s", "lvremove"))
	must(t, o.Close())
	must(t, g.Close())
}

// TestThin takes a pool through everything.
func TestThin(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 64}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 1000}, "lvcreate"))
	a := volume(t, g, "a")
	if i := a.Info(); !i.Thin || !i.Discard || i.Size != 1000*65536 {
		t.Fatalf("%+v", i)
	}
	model := make([]byte, 4<<20)
	fill(t, a, model, 0, 1<<20, 1)
	must(t, g.CreateThin(bg, ThinOptions{Name: "b", Origin: "a"}, "lvcreate"))
	mb := bytes.Clone(model)
	fill(t, a, model, 65536, 1<<20, 2)
	must(t, g.CreateThin(bg, ThinOptions{Name: "c", Origin: "b"}, "lvcreate"))
	b, c := volume(t, g, "b"), volume(t, g, "c")
	mc := bytes.Clone(mb)
	fill(t, c, mc, 0, 8192, 7)
	check := func() {
		t.Helper()
		same(t, a, model, "a")
		same(t, b, mb, "b")
		same(t, c, mc, "c")
	}
	check()
	var told atomic.Int64
	cancel := a.OnResize(func(i blockdev.Info) { told.Store(i.Size) })
	defer cancel()
	must(t, g.Extend("a", 2000, "", 0, nil, "lvextend"))
	if told.Load() != 2000*65536 {
		t.Error("no resize callback")
	}
	must(t, g.Reduce(bg, "a", 900, "lvreduce"))
	if a.Info().Size != 900*65536 {
		t.Error(a.Info().Size)
	}
	must(t, g.Extend("p", 128, "", 0, nil, "lvextend"))
	must(t, g.ExtendPoolMetadata("p", 64, "lvextend"))
	if u, err := g.PoolUsage("p"); err != nil || u.DataBlocks != 128 || u.Transaction != 3 || u.MetaBlocks != 64*16 {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, g.Move(bg, vg.Range{PV: "pv0"}, "", nil, "", nil, "pvmove"))
	check()
	for _, v := range []*Volume{a, b, c} {
		must(t, v.Close())
	}
	g = reopen(t, g, cfg, 2)
	a, b, c = volume(t, g, "a"), volume(t, g, "b"), volume(t, g, "c")
	check()
	if err := g.Remove(bg, "p", "lvremove"); err == nil {
		t.Fatal("a pool in use was removed")
	}
	must(t, b.Close())
	must(t, g.Remove(bg, "b", "lvremove"))
	if s := g.Metadata().LV("c").Segments[0]; s.Origin != "" {
		t.Error("c has an origin that is gone:", s.Origin)
	}
	same(t, c, mc, "c")
	// A snapshot is merged into its origin while that is open.
	must(t, g.CreateThin(bg, ThinOptions{Name: "d", Origin: "a"}, "lvcreate"))
	md := bytes.Clone(model)
	fill(t, a, model, 0, 65536, 8)
	done, err := g.Merge(bg, "d", "lvconvert")
	must(t, err)
	<-done
	same(t, a, md, "merged a")
	must(t, a.Close())
	must(t, c.Close())
	must(t, g.Remove(bg, "a", "lvremove"))
	must(t, g.Remove(bg, "c", "lvremove"))
	if u, _ := g.PoolUsage("p"); u.DataUsed != 0 {
		t.Errorf("%d blocks leaked", u.DataUsed)
	}
	must(t, g.Remove(bg, "p", "lvremove"))
	if n := len(g.Metadata().LVs); n != 0 {
		t.Errorf("%d volumes are left", n)
	}
	must(t, g.Close())
}

// TestThinMessages cuts the power between the steps of a pool change: the next
// opening does what is missing.
func TestThinMessages(t *testing.T) {
	for cut := 1; cut < 60; cut++ {
		d := lvmtest.New(32 << 20)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": d})
		must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 16}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
		a := volume(t, g, "a")
		model := make([]byte, 65536)
		fill(t, a, model, 0, 65536, 1)
		must(t, a.Close())
		d.CutAfter(cut)
		err := g.CreateThin(bg, ThinOptions{Name: "b", Origin: "a"}, "lvcreate")
		if err == nil {
			err = g.Remove(bg, "a", "lvremove")
		}
		crashed := d.Crash(rand.New(rand.NewPCG(uint64(cut), 1)))
		cfg.Open = func(string) (blockdev.Device, error) { return crashed, nil }
		h, oerr := Open(cfg, []string{"/d0"}, "vg0")
		if oerr != nil {
			t.Fatalf("cut %d: %v", cut, oerr)
		}
		v := h.Metadata()
		for _, name := range []string{"a", "b"} {
			if v.LV(name) == nil {
				continue
			}
			x, verr := h.Volume(name)
			if verr != nil {
				t.Fatalf("cut %d: %s: %v", cut, name, verr)
			}
			same(t, x, model, name)
			must(t, x.Close())
		}
		if v.LV("a") == nil && v.LV("b") == nil {
			t.Fatalf("cut %d: both are gone", cut)
		}
		for _, s := range h.Metadata().LV("p").Segments {
			if len(s.Messages) != 0 {
				t.Fatalf("cut %d: messages are left", cut)
			}
		}
		must(t, h.Close())
		if err == nil {
			break // the whole sequence is through
		}
	}
}

// TestPoolGeometry compares with what lvm2 2.03.16 chose, for pools of 64 MiB to
// 20 TiB and chunk sizes of its own choice (asked 0) or given ones.
func TestPoolGeometry(t *testing.T) {
	const extent = 4 << 20
	for _, c := range []struct{ data, asked, chunk, meta int64 }{
		{64 << 20, 0, 64 << 10, 4 << 20},
		{1 << 30, 0, 64 << 10, 4 << 20},
		{100 << 30, 0, 64 << 10, 100 << 20},
		{127 << 30, 0, 64 << 10, 128 << 20},
		{128 << 30, 0, 64 << 10, 128 << 20},
		{129 << 30, 0, 128 << 10, 68 << 20},
		{255 << 30, 0, 128 << 10, 128 << 20},
		{256 << 30, 0, 128 << 10, 128 << 20},
		{257 << 30, 0, 256 << 10, 68 << 20},
		{511 << 30, 0, 256 << 10, 128 << 20},
		{1 << 40, 0, 512 << 10, 128 << 20},
		{2 << 40, 0, 1024 << 10, 128 << 20},
		{5 << 40, 0, 4096 << 10, 80 << 20},
		{10 << 40, 0, 8192 << 10, 80 << 20},
		{15 << 40, 0, 8192 << 10, 120 << 20},
		{20 << 40, 0, 16384 << 10, 80 << 20},
		{1 << 30, 128 << 10, 128 << 10, 4 << 20},
		{1 << 40, 128 << 10, 128 << 10, 512 << 20},
		{1 << 30, 192 << 10, 192 << 10, 4 << 20},
		{1 << 40, 192 << 10, 192 << 10, 344 << 20},
		{1 << 30, 1024 << 10, 1024 << 10, 4 << 20},
		{1 << 40, 1024 << 10, 1024 << 10, 64 << 20},
	} {
		chunk, size := PoolGeometry(c.data, c.asked)
		if size = (size + extent - 1) / extent * extent; chunk != c.chunk || size != c.meta {
			t.Errorf("%d MiB, %d: chunk %d, metadata %d; want %d, %d", c.data>>20, c.asked, chunk, size, c.chunk, c.meta)
		}
	}
}

func TestPoolFull(t *testing.T) {
	g, _ := newGroup(t, 1, 64<<20)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 4, ErrorWhenFull: true}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
	a := volume(t, g, "a")
	low := make(chan bool, 16)
	cancel := a.OnLowSpace(func() { low <- true })
	full := make(chan bool, 1)
	defer a.OnSpaceChange(func() {
		if u := a.SpaceUsage(); u.Used == u.Total {
			select {
			case full <- true:
			default:
			}
		}
	})()
	if u, want := a.SpaceUsage(), (blockdev.SpaceUsage{Total: 4 * 65536, Unit: 65536}); u != want {
		t.Errorf("%+v, want %+v", u, want)
	}
	p := make([]byte, 65536)
	var err error
	for i := int64(0); err == nil; i++ {
		_, err = a.WriteAt(p, i*65536)
	}
	if !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	var l blockdev.Lease
	must(t, a.LeaseWrite(&l, 50*65536, 4096, blockdev.Wait))
	if err := l.Commit(false); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	l.Release()
	must(t, g.Extend("p", 8, "", 0, nil, "lvextend"))
	_, err = a.WriteAt(p, 50*65536)
	must(t, err)
	<-full
	<-low // full
	<-low // and a write that found nothing
	cancel()
	must(t, a.Close())
	must(t, g.Close())
}

// TestNotServed: a volume of a type that is left to lvm2 is reported and stays.
func TestNotServed(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "v", Extents: 4}, "lvcreate"))
	must(t, g.VG(func(x *vg.Group) error {
		next := x.VG.Clone()
		next.LV("v").Segments[0].Type = "cache"
		return x.Commit(next, "test")
	}))
	g = reopen(t, g, cfg, 1)
	if _, err := g.Volume("v"); !errors.Is(err, ErrNotServed) {
		t.Fatal(err)
	}
	if err := g.Remove(bg, "v", "lvremove"); !errors.Is(err, ErrNotServed) {
		t.Fatal(err)
	}
	if g.Metadata().LV("v").Segments[0].Type != "cache" {
		t.Fatal("it was changed")
	}
	must(t, g.Close())
}
