package lvm

import (
	"fmt"
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
				must(t, g.Extend("grown", n/2+n, "", tt.stripes, nil, "lvextend"))
				if got := g.Metadata().LV("grown").Segments[1].StripeSize; got != tt.want {
					t.Errorf("an extension has stripes of %d sectors, want %d", got, tt.want)
				}
				volume(t, g, "grown").Close()
			}
		})
	}
}
