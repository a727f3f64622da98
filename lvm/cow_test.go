package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/internal/await"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/meta"
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
	if err := lvmtest.Differs(v, model); err != nil {
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
				return alone{volume(t, g, name)}
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
	must(t, g.Extend("s1", ExtendOptions{Extents: 16}, "lvextend"))
	if u, err := g.SnapshotUsage("s1"); err != nil || u.Total != 16*65536 || u.Exceptions != 5 {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}}, "pvmove"))
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
	await.True(t, "the merged snapshot is gone", func() bool { return g.Metadata().LV("s") == nil })
	same(t, v, model, "origin")
	must(t, v.Close())
	must(t, g.Close())
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
	if err := s.Flush(); !errors.Is(err, snap.ErrInvalid) {
		t.Errorf("flush: %v", err)
	}
	must(t, g.Hold(bg, []*Volume{o, s})) // the rest goes to another process all the same
	g.Release()
	must(t, s.Close())
	if _, err := g.Merge(bg, "s", "lvconvert"); !errors.Is(err, snap.ErrInvalid) {
		t.Fatal(err)
	}
	must(t, g.Remove(bg, "s", "lvremove"))
	must(t, o.Close())
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

// TestStoreOnAVolume: what the store of a snapshot lies on is in use as long as the snapshot is, and no
// longer, however its use ends.
func TestStoreOnAVolume(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "below", Extents: 8}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8}, "lvcreate"))
	with := g.Metadata().Clone() // and with the snapshot on the volume, which other tools may do
	with.LV("s").Segments[0].Stripes = []meta.Area{{Name: "below"}}
	active := func(when string, want int) {
		t.Helper()
		if n := len(g.act.nodes); n != want {
			t.Errorf("%s: %d volumes are active, want %d", when, n, want)
		}
	}

	must(t, g.Remove(bg, "s", "lvremove"))
	o := volume(t, g, "o")
	var l blockdev.Lease
	must(t, o.LeaseWrite(&l, 0, 4096, blockdev.Wait))
	ended, end := context.WithCancel(bg)
	end()
	_, seg := with.SnapshotSegment("s")
	g.mu.Lock()
	err := g.snaps.createLive(ended, g.act.nodes[o.n.id], with, with.LV("s"), seg, "lvcreate")
	g.mu.Unlock()
	if !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("a snapshot of a volume with a write lease: %v", err)
	}
	l.Release()
	active("a snapshot has failed", 1)
	must(t, o.Close())
	active("the origin is closed", 0)

	must(t, g.VG(func(x *vg.Group) error {
		with.Seqno = x.VG.Seqno
		return x.Commit(with, "test")
	}))
	g = reopen(t, g, cfg, 1)
	o = volume(t, g, "o")
	active("the origin is open", 2)
	must(t, o.Close())
	active("the origin is closed, with its snapshot", 0)
	must(t, g.Close())
}
