package vg

import (
	"fmt"

	"softiser/lvm/meta"
)

// Restore makes an archived text the metadata of the group that it is of, as a
// change like any other: the present metadata is archived, and a power cut leaves
// the one or the other. The physical volumes must be those of the text, as they
// were: data does not move with metadata.
func (g *Group) Restore(old *meta.VG, why string) error {
	if old.ID != g.VG.ID || old.Name != g.VG.Name {
		return fmt.Errorf("the file is of volume group %q (%s), not of %q (%s)", old.Name, old.ID, g.VG.Name, g.VG.ID)
	}
	if old.ExtentSize != g.VG.ExtentSize || len(old.PVs) != len(g.VG.PVs) {
		return fmt.Errorf("volume group %q has %d physical volumes and extents of %d sectors, the file has %d and %d: only lvm2's vgcfgrestore may restore it", g.VG.Name, len(g.VG.PVs), g.VG.ExtentSize, len(old.PVs), old.ExtentSize)
	}
	for _, pv := range old.PVs {
		is := g.VG.PVByID(pv.ID)
		if is == nil || g.Disks[pv.ID] == nil {
			return fmt.Errorf("physical volume %s of the file is not in volume group %q, or its device is missing", pv.ID, g.VG.Name)
		}
		if is.PEStart != pv.PEStart || is.PECount != pv.PECount {
			return fmt.Errorf("physical volume %s had %d extents when the file was made and has %d now: resize it to that first", pv.ID, pv.PECount, is.PECount)
		}
	}
	return g.Commit(old.Clone(), why)
}
