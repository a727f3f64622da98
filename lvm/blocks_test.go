package lvm

import (
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// TestBlocksStay: a volume keeps the size of its blocks, which whoever uses it counts in, in a group of
// disks with different ones.
func TestBlocksStay(t *testing.T) {
	coarse := lvmtest.New(64 << 20)
	coarse.Block = 4096
	g, _ := groupOn(t, map[string]blockdev.Device{"/d0": lvmtest.New(64 << 20), "/d1": coarse})
	on := func(pv string) []vg.Range { return []vg.Range{{PV: pv}} }
	must(t, g.Create(CreateOptions{Name: "a", Extents: 8, From: on("pv0")}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "both", Extents: 8, Stripes: 2}, "lvcreate"))
	a, both := volume(t, g, "a"), volume(t, g, "both")
	for what, err := range map[string]error{
		"extended":                 g.Extend("a", ExtendOptions{Extents: 16, From: on("pv1")}, "lvextend"),
		"moved":                    g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}, Volume: "a"}, "pvmove"),
		"moved from coarse blocks": g.Move(bg, MoveOptions{From: vg.Range{PV: "pv1"}, Volume: "both", To: on("pv0"), Policy: "anywhere"}, "pvmove"),
	} {
		if err == nil || !strings.Contains(err.Error(), "has blocks of") {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, g.Extend("a", ExtendOptions{Extents: 16, From: on("pv0")}, "lvextend"))
	must(t, g.Extend("both", ExtendOptions{Extents: 16}, "lvextend"))
	if n, m := a.Info().BlockSize, both.Info().BlockSize; n != 512 || m != 4096 {
		t.Errorf("blocks of %d and %d bytes", n, m)
	}
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "a", Name: "s", Extents: 32, From: on("pv1")}, "lvcreate"))
	if _, err := g.Merge(bg, "s", "lvconvert"); err == nil || !strings.Contains(err.Error(), "blocks of 4096 bytes") {
		t.Error("a merge from coarse blocks:", err)
	}
	must(t, a.Close())
	must(t, both.Close())
	must(t, g.Close())
}
