package lvm

import (
	"testing"

	"softiser/lvm/vg"
)

// TestVolumeNamedAsDisk: the names by which the text of a group calls its disks are free for volumes.
func TestVolumeNamedAsDisk(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	for name, pv := range map[string]string{"pv0": "pv0", "pv1": "pv0", "a": "pv1"} {
		must(t, g.Create(CreateOptions{Name: name, Extents: 8, From: []vg.Range{{PV: pv}}}, "lvcreate"))
	}
	a := volume(t, g, "a")
	model := make([]byte, 8*65536)
	fill(t, a, model, 0, len(model), 1)
	must(t, a.Close())
	must(t, g.Rename("pv1", "b", "lvrename"))
	g = reopen(t, g, cfg, 2)
	a = volume(t, g, "a")
	same(t, a, model, "a volume beside the one that was renamed")
	must(t, a.Close())
	for _, name := range []string{"b", "pv0"} {
		must(t, g.Remove(bg, name, "lvremove"))
	}
	must(t, g.Close())
}
