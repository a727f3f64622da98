package lvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/blockdev/mem"
	"softiser/blockdev/open"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

func testConfig(t testing.TB, devs map[string]blockdev.Device) Config {
	dir := t.TempDir()
	return Config{
		Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: dir + "/archive", BackupDir: dir + "/backup", Host: "h"},
		Open: func(p string) (blockdev.Device, error) {
			if d := devs[p]; d != nil {
				return d, nil
			}
			return nil, fmt.Errorf("no device %s", p)
		},
	}
}

// newGroup makes a group "vg0" on n memory disks with extents of 64 KiB.
func newGroup(t testing.TB, n int, size int64) (*Group, Config) {
	devs := map[string]blockdev.Device{}
	for i := 0; i < n; i++ {
		devs[fmt.Sprintf("/d%d", i)] = lvmtest.New(size)
	}
	return groupOn(t, devs)
}

func groupOn(t testing.TB, devs map[string]blockdev.Device) (*Group, Config) {
	t.Helper()
	cfg := testConfig(t, devs)
	var paths []string
	for i := range len(devs) {
		paths = append(paths, fmt.Sprintf("/d%d", i))
	}
	ds, err := OpenDisks(cfg, paths)
	if err != nil {
		t.Fatal(err)
	}
	g, err := ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 128}, vg.PVOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	return g, cfg
}

func reopen(t testing.TB, g *Group, cfg Config, n int) *Group {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i := range n {
		paths = append(paths, fmt.Sprintf("/d%d", i))
	}
	g, err := Open(cfg, paths, "vg0")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func volume(t testing.TB, g *Group, name string) *Volume {
	t.Helper()
	v, err := g.Volume(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// alone is a volume that is closed with its group.
type alone struct{ *Volume }

func (a alone) Close() error {
	if err := a.Volume.Close(); err != nil {
		return err
	}
	return a.Group().Close()
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]CreateOptions{
		"linear":  {Name: "v", Extents: 16},
		"striped": {Name: "v", Extents: 16, Stripes: 2, StripeSize: 16},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{Direct: true, Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
				devs := map[string]blockdev.Device{}
				for i := range 2 {
					m, err := mem.Open(mem.Config{Size: 8 << 20, Pool: pool})
					must(t, err)
					devs[fmt.Sprintf("/d%d", i)] = m
				}
				g, _ := groupOn(t, devs)
				g.cfg.Pool = pool
				o := o
				o.Extents = uint64(size / 65536)
				must(t, g.Create(o, "lvcreate"))
				return alone{volume(t, g, "v")}
			}})
		})
	}
}

func TestLifeOfVolumes(t *testing.T) {
	g, cfg := newGroup(t, 2, 16<<20)
	must(t, g.Create(CreateOptions{Name: "a", Extents: 8}, "lvcreate"))
	must(t, g.Create(CreateOptions{Extents: 8, Stripes: 2}, "lvcreate"))
	a := volume(t, g, "a")
	p := bytes.Repeat([]byte("content."), 8*65536/8)
	if _, err := a.WriteAt(p, 0); err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	cancel := a.OnResize(func(i blockdev.Info) { told.Store(i.Size) })
	defer cancel()
	must(t, g.Extend("a", ExtendOptions{Extents: 20}, "lvextend"))
	if told.Load() != 20*65536 || a.Info().Size != 20*65536 {
		t.Fatal("size", told.Load(), a.Info().Size)
	}
	if err := g.Remove(context.Background(), "a", "lvremove"); !errors.Is(err, blockdev.ErrInUse) {
		t.Fatal(err)
	}
	must(t, g.Rename("a", "b", "lvrename"))
	if a.Name() != "b" {
		t.Error(a.Name())
	}
	must(t, g.Reduce(context.Background(), "b", 10, "lvreduce"))
	if a.Info().Size != 10*65536 {
		t.Fatal(a.Info().Size)
	}
	var l blockdev.Lease
	must(t, a.LeaseRead(&l, 0, 4096, blockdev.Wait))
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer stop()
	if err := g.Reduce(ctx, "b", 9, "lvreduce"); !errors.Is(err, blockdev.ErrInUse) {
		t.Fatal(err)
	}
	l.Release()
	must(t, a.Close())
	g = reopen(t, g, cfg, 2)
	b := volume(t, g, "b")
	got := make([]byte, len(p))
	if _, err := b.ReadAt(got, 0); err != nil || !bytes.Equal(got, p) {
		t.Fatal("content lost", err)
	}
	if err := g.Close(); !errors.Is(err, blockdev.ErrInUse) {
		t.Fatal(err)
	}
	must(t, b.Close())
	must(t, g.Remove(context.Background(), "b", "lvremove"))
	must(t, g.Remove(context.Background(), "lvol0", "lvremove"))
	if _, err := g.Volume("b"); !errors.Is(err, vg.ErrNotFound) {
		t.Fatal(err)
	}
	must(t, g.Close())
}

// TestMoveUnderLoad moves everything off a disk while it is written.
func TestMoveUnderLoad(t *testing.T) {
	g, cfg := newGroup(t, 3, 24<<20)
	must(t, g.Create(CreateOptions{Name: "lin", Extents: 100, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "str", Extents: 100, Stripes: 2, From: []vg.Range{{PV: "pv0"}, {PV: "pv1"}}}, "lvcreate"))
	vs := []*Volume{volume(t, g, "lin"), volume(t, g, "str")}
	models := [][]byte{make([]byte, 100*65536), make([]byte, 100*65536)}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i, v := range vs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(i), 1))
			p := make([]byte, 8192)
			for !stop.Load() {
				for j := range p {
					p[j] = byte(r.Uint32())
				}
				off := int64(r.IntN(len(models[i])/512-16)) * 512
				if _, err := v.WriteAt(p, off); err != nil {
					t.Error(err)
					return
				}
				copy(models[i][off:], p)
			}
		}()
	}
	var last uint64
	err := g.Move(context.Background(), MoveOptions{From: vg.Range{PV: "pv0"}, Progress: func(done, total uint64) { last = done * 100 / total }}, "pvmove")
	stop.Store(true)
	wg.Wait()
	must(t, err)
	if last != 100 {
		t.Error("progress", last)
	}
	if err := g.Move(context.Background(), MoveOptions{From: vg.Range{PV: "pv0"}}, "pvmove"); err == nil {
		t.Error("an empty PV was moved")
	}
	check := func() {
		for i, v := range vs {
			got := make([]byte, len(models[i]))
			if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, models[i]) {
				t.Fatal("content differs after the move", i, err)
			}
			must(t, v.Close())
		}
	}
	check()
	must(t, g.VG(func(x *vg.Group) error { return x.Reduce(x.VG.PVs[:1], "vgreduce") }))
	g = reopen(t, g, cfg, 3)
	vs = []*Volume{volume(t, g, "lin"), volume(t, g, "str")}
	check()
	must(t, g.Close())
}

func TestMissingDisk(t *testing.T) {
	g, cfg := newGroup(t, 2, 16<<20)
	must(t, g.Create(CreateOptions{Name: "on0", Extents: 8, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "on1", Extents: 8, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	g = reopen(t, g, cfg, 1)
	must(t, volume(t, g, "on0").Close())
	if _, err := g.Volume("on1"); !errors.Is(err, vg.ErrMissing) {
		t.Fatal(err)
	}
	if err := g.Create(CreateOptions{Name: "x", Extents: 1}, "lvcreate"); !errors.Is(err, vg.ErrMissing) {
		t.Fatal(err)
	}
	must(t, g.Close())
	for key, value := range map[string]string{"EXPORTED": "exported", "SHARED": "shared"} {
		g, err := Open(cfg, []string{"/d0", "/d1"}, "vg0")
		must(t, err)
		must(t, g.VG(func(x *vg.Group) error {
			next := x.VG.Clone()
			next.Status = append(next.Status, key)
			return x.Commit(next, "test")
		}))
		must(t, g.Close())
		if _, err := Open(cfg, []string{"/d0", "/d1"}, "vg0"); err == nil || !strings.Contains(err.Error(), value) {
			t.Fatal(err)
		}
		ds, err := OpenDisks(cfg, []string{"/d0", "/d1"})
		must(t, err)
		s := ds.Scan()
		next := s.Groups[0].VG.Clone()
		next.Status = []string{"RESIZEABLE", "READ", "WRITE"}
		must(t, s.Groups[0].Commit(next, "test"))
	}
}

// BenchmarkLinear is a lease on a linear volume beside one on the bare file:
// the ratio of neighbours counts.
func BenchmarkLinear(b *testing.B) {
	const size = 128 << 20
	file := func(name string, n int64) string {
		p := filepath.Join(b.TempDir(), name)
		must(b, makeFile(p, n))
		return p
	}
	bare, err := open.Open(open.Spec{Path: file("bare", size)})
	must(b, err)
	defer bare.Close()
	m := &Manager{}
	m.Config, _ = fileConfig(b)
	v, err := m.Open(Spec{VG: "vg0", LV: "v", Devices: []string{file("pv", size+64<<20)}, Size: size})
	must(b, err)
	defer func() { must(b, v.Close()); must(b, m.Close()) }()
	for _, d := range []blockdev.Device{bare, v} { // no holes, no faults
		for off := int64(0); off < size; off += 1 << 20 {
			_, err := d.WriteAt(bytes.Repeat([]byte{1}, 1<<20), off)
			must(b, err)
		}
	}
	for _, op := range []string{"read", "write"} {
		for _, n := range []int{4096, 65536} {
			for i, d := range []blockdev.Device{bare, v} {
				b.Run(fmt.Sprintf("%s/%dk/%s", op, n/1024, []string{"bare", "lv"}[i]), func(b *testing.B) { linear(b, d, op == "write", n) })
			}
		}
	}
}

func linear(b *testing.B, d blockdev.Device, write bool, n int) {
	var l blockdev.Lease
	mem := make([]byte, 65536)
	slots := uint64(d.Info().Size) / uint64(n)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		off := int64(i*0x9E3779B97F4A7C15%slots) * int64(n)
		lease := d.LeaseRead
		if write {
			lease = d.LeaseWrite
		}
		if err := lease(&l, off, n, blockdev.Wait); err != nil {
			b.Fatal(err)
		}
		p := mem
		for _, s := range l.Segs {
			if write {
				p = p[copy(s, p):]
			} else {
				p = p[copy(p, s):]
			}
		}
		if write {
			if err := l.Commit(false); err != nil {
				b.Fatal(err)
			}
		}
		l.Release()
	}
}
