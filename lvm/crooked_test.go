package lvm

import (
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// crookedGroup has a volume of four extents, a, on the first of two disks with blocks of 4096 bytes. The data of the
// second one does not begin with a block, so that no volume can be used there.
func crookedGroup(t *testing.T) (Config, *Group) {
	disks := map[string]blockdev.Device{}
	for _, path := range []string{"/d0", "/d1"} {
		d := lvmtest.New(4 << 20)
		d.Block = 4096
		disks[path] = d
	}
	cfg := testConfig(t, disks)
	ds, err := OpenDisks(cfg, []string{"/d0", "/d1"})
	must(t, err)
	must(t, cfg.CreatePV(ds.Disks[1], vg.PVOptions{DataAlign: 1<<20 + 512}))
	g, err := ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 128}, vg.PVOptions{}, "vgcreate")
	must(t, err)
	must(t, g.Create(CreateOptions{Name: "a", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	return cfg, g
}

// TestMoveToWhereNothingCanLie: a volume that cannot be used in its new place stays where it is, for the metadata, too:
// what is written from then on is found by whoever opens it next.
func TestMoveToWhereNothingCanLie(t *testing.T) {
	cfg, g := crookedGroup(t)
	a := volume(t, g, "a")
	if err := g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}}, "pvmove"); err == nil {
		t.Error("moved")
	}
	model := make([]byte, 4*65536)
	fill(t, a, model, 0, len(model), 1)
	must(t, a.Close())
	must(t, g.Close())
	g, err := Open(cfg, []string{"/d0", "/d1"}, "vg0")
	must(t, err)
	a = volume(t, g, "a")
	same(t, a, model, "what was written behind the move")
	must(t, a.Close())
	must(t, g.Close())
}

// TestCreateWhereNothingCanLie: no volume is made that nobody could use.
func TestCreateWhereNothingCanLie(t *testing.T) {
	_, g := crookedGroup(t)
	there := []vg.Range{{PV: "pv1"}}
	must(t, g.Create(CreateOptions{Name: "b", Extents: 43, From: []vg.Range{{PV: "pv0"}}}, "lvcreate")) // one extent is left there
	for _, c := range []struct {
		name   string
		create func() error
	}{
		{"volume", func() error {
			return g.Create(CreateOptions{Name: "volume", Extents: 1, From: there}, "lvcreate")
		}},
		{"dirty", func() error {
			return g.Create(CreateOptions{Name: "dirty", Extents: 1, From: there, NoZero: true}, "lvcreate")
		}},
		{"readonly", func() error {
			return g.Create(CreateOptions{Name: "readonly", Extents: 1, From: there, ReadOnly: true}, "lvcreate")
		}},
		{"snap", func() error {
			return g.Snapshot(bg, SnapshotOptions{Origin: "a", Name: "snap", Extents: 1, From: there}, "lvcreate")
		}},
		{"pool", func() error {
			return g.CreatePool(PoolOptions{Name: "pool", Extents: 1, MetaExtents: 1, From: there}, "lvcreate")
		}},
		{"data", func() error { // the metadata has its place on the other disk
			return g.CreatePool(PoolOptions{Name: "data", Extents: 2, MetaExtents: 1, NoSpare: true}, "lvcreate")
		}},
	} {
		if err := c.create(); err == nil || g.Metadata().LV(c.name) != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	must(t, g.Close())
}

// TestExtendToWhereNothingCanLie: a volume keeps its size where it could not be used with the new one, whether it is
// in use or not.
func TestExtendToWhereNothingCanLie(t *testing.T) {
	for name, open := range map[string]bool{"in use": true, "not in use": false} {
		t.Run(name, func(t *testing.T) {
			_, g := crookedGroup(t)
			var a *Volume
			if open {
				a = volume(t, g, "a")
			}
			if err := g.Extend("a", ExtendOptions{Extents: 8, From: []vg.Range{{PV: "pv1"}}}, "lvextend"); err == nil {
				t.Error("extended")
			}
			if !open {
				a = volume(t, g, "a")
			}
			if size := a.Info().Size; size != 4*65536 {
				t.Errorf("it has %d bytes", size)
			}
			must(t, a.Close())
			a = volume(t, g, "a")
			must(t, a.Close())
			must(t, g.Close())
		})
	}
}
