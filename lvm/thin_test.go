package lvm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

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
	must(t, g.Extend("a", ExtendOptions{Extents: 2000}, "lvextend"))
	if told.Load() != 2000*65536 {
		t.Error("no resize callback")
	}
	must(t, g.Reduce(bg, "a", 900, "lvreduce"))
	if a.Info().Size != 900*65536 {
		t.Error(a.Info().Size)
	}
	must(t, g.Extend("p", ExtendOptions{Extents: 128}, "lvextend"))
	must(t, g.ExtendPoolMetadata("p", 64, "lvextend"))
	if u, err := g.PoolUsage("p"); err != nil || u.DataBlocks != 128 || u.Transaction != 3 || u.MetaBlocks != 64*16 {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}}, "pvmove"))
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
	<-full // while it is: what is told looks at the pool as it is by then
	var l blockdev.Lease
	must(t, a.LeaseWrite(&l, 50*65536, 4096, blockdev.Wait))
	if err := l.Commit(false); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	l.Release()
	must(t, g.Extend("p", ExtendOptions{Extents: 8}, "lvextend"))
	_, err = a.WriteAt(p, 50*65536)
	must(t, err)
	<-low // full
	<-low // and a write that found nothing
	cancel()
	must(t, a.Close())
	must(t, g.Close())
}

// TestMergePutOff: a thin volume that lvm2 is to merge a snapshot into is not served as it was before.
func TestMergePutOff(t *testing.T) {
	g, _ := newGroup(t, 1, 64<<20)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32}, "lvcreate"))
	for _, name := range []string{"a", "b"} {
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: name, Extents: 4}, "lvcreate"))
	}
	must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate"))
	must(t, g.Change("s", func(lv *meta.LV) error { lv.Segments[0].Merge = "a"; return nil }, "lvconvert"))
	for _, name := range []string{"a", "s"} {
		if v, err := g.Volume(name); !errors.Is(err, ErrNotServed) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	must(t, volume(t, g, "b").Close())
	must(t, g.Close())
}

// TestClassicSnapshotOfThin: nothing but linear and striped volumes has classic snapshots. Thin ones of which
// lvm2 has made some are not served without them.
func TestClassicSnapshotOfThin(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 8}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	for _, origin := range []string{"p", "a"} {
		if err := g.Snapshot(bg, SnapshotOptions{Origin: origin, Name: "no", Extents: 4}, "lvcreate"); err == nil {
			t.Errorf("a classic snapshot of %s was made", origin)
		}
	}
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 4}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s2", Extents: 4}, "lvcreate"))
	for _, origin := range []string{"a", "s2"} {
		must(t, g.VG(func(x *vg.Group) error {
			next := x.VG.Clone()
			_, seg := next.SnapshotSegment("s")
			seg.Origin = origin
			return x.Commit(next, "lvm2")
		}))
		g = reopen(t, g, cfg, 1)
		for _, name := range []string{origin, "s"} {
			if v, err := g.Volume(name); !errors.Is(err, ErrNotServed) {
				t.Errorf("%s with a snapshot of %s: %v, %v", name, origin, v, err)
			}
		}
		if _, err := g.SnapshotUsage("s"); !errors.Is(err, ErrNotServed) {
			t.Errorf("the usage of a snapshot of %s: %v", origin, err)
		}
	}
	must(t, g.Remove(bg, "s", "lvremove"))
	for _, name := range []string{"a", "s2", "o"} {
		must(t, volume(t, g, name).Close())
	}
	must(t, g.Close())
}
