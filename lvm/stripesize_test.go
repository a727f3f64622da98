package lvm

import (
	"fmt"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// TestWholeStripes: sizes that are no multiple of the stripes are made up to one, of a pool as of a volume.
func TestWholeStripes(t *testing.T) {
	g, _ := newGroup(t, 3, 64<<20)
	must(t, g.Create(CreateOptions{Name: "lv", Extents: 10, Stripes: 3}, "lvcreate"))
	must(t, g.CreatePool(PoolOptions{Name: "pool", Extents: 10, Stripes: 3}, "lvcreate"))
	v := g.Metadata()
	for _, name := range []string{"lv", "pool_tdata", "pool"} {
		if n := v.LV(name).Extents(); n != 12 {
			t.Errorf("%s has %d extents, want 12", name, n)
		}
	}
	must(t, g.Close())
}

// TestStripeSize: volumes and pools have one rule for the size of their stripes.
func TestStripeSize(t *testing.T) {
	for _, tt := range []struct {
		extent, asked uint64 // sectors
		stripes       int
		want          uint64 // 0: refused
	}{
		{8192, 0, 2, 128},
		{8192, 16, 2, 16},
		{64, 0, 2, 64}, // no stripe is longer than an extent
		{8192, 24, 2, 0},
		{8192, 4, 2, 0},
		{64, 128, 2, 0},
		{4, 0, 2, 0},
		{768, 512, 2, 0}, // a stripe would end behind its extents
		{768, 256, 2, 256},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.asked, tt.extent), func(t *testing.T) {
			devs := map[string]blockdev.Device{"/d0": lvmtest.New(64 << 20), "/d1": lvmtest.New(64 << 20)}
			ds, err := OpenDisks(testConfig(t, devs), []string{"/d0", "/d1"})
			must(t, err)
			g, err := ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: tt.extent}, vg.PVOptions{}, "vgcreate")
			must(t, err)
			t.Cleanup(func() { must(t, g.Close()) })
			n := 8192 / tt.extent * 2
			must(t, g.Create(CreateOptions{Name: "grown", Extents: n / 2}, "lvcreate")) // without stripes it does not matter
			for name, err := range map[string]error{
				"lv":         g.Create(CreateOptions{Name: "lv", Extents: n, Stripes: tt.stripes, StripeSize: tt.asked}, "lvcreate"),
				"pool_tdata": g.CreatePool(PoolOptions{Name: "pool", Extents: n, Stripes: tt.stripes, StripeSize: tt.asked}, "lvcreate"),
			} {
				if (err == nil) != (tt.want != 0) {
					t.Errorf("%s: %v", name, err)
				} else if err == nil {
					if got := g.Metadata().LV(name).Segments[0].StripeSize; got != tt.want {
						t.Errorf("%s has stripes of %d sectors, want %d", name, got, tt.want)
					}
				}
			}
			if tt.want != 0 && tt.asked == 0 {
				must(t, g.Extend("grown", ExtendOptions{Extents: n/2 + n, Stripes: tt.stripes}, "lvextend"))
				if got := g.Metadata().LV("grown").Segments[1].StripeSize; got != tt.want {
					t.Errorf("an extension has stripes of %d sectors, want %d", got, tt.want)
				}
				volume(t, g, "grown").Close()
			}
		})
	}
}

// TestStripesEnd: a volume whose stripes do not divide an extent, which lvm2 has made, is not extended, made
// smaller or moved to where a stripe would not end.
func TestStripesEnd(t *testing.T) {
	devs := map[string]blockdev.Device{"/d0": lvmtest.New(64 << 20), "/d1": lvmtest.New(64 << 20), "/d2": lvmtest.New(64 << 20)}
	ds, err := OpenDisks(testConfig(t, devs), []string{"/d0", "/d1", "/d2"})
	must(t, err)
	g, err := ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 768}, vg.PVOptions{}, "vgcreate")
	must(t, err)
	must(t, g.Create(CreateOptions{Name: "lv", Extents: 8, Stripes: 2}, "lvcreate"))
	must(t, g.VG(func(x *vg.Group) error {
		next := x.VG.Clone()
		next.LV("lv").Segments[0].StripeSize = 512
		return x.Commit(next, "lvm2")
	}))
	v := volume(t, g, "lv")
	model := make([]byte, v.Info().Size)
	fill(t, v, model, 0, len(model), 1)
	for what, err := range map[string]error{
		"extended":     g.Extend("lv", ExtendOptions{Extents: 10}, "lvextend"),
		"made smaller": g.Reduce(bg, "lv", 6, "lvreduce"),
		"moved":        g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0", Len: 1}}, "pvmove"),
	} {
		if err == nil || !strings.Contains(err.Error(), "stripe") {
			t.Errorf("%s: %v", what, err)
		}
	}
	same(t, v, model, "the volume")
	must(t, g.Extend("lv", ExtendOptions{Extents: 12}, "lvextend"))
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0", Len: 2}}, "pvmove"))
	same(t, v, model, "the volume, extended and moved")
	must(t, v.Close())
	must(t, g.Close())
}
