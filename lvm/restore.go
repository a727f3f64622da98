package lvm

import (
	"fmt"
	"slices"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// InUse lists the volumes that are active, hidden parts included.
func (g *Group) InUse() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, n := range g.act.nodes {
		out = append(out, n.name)
	}
	slices.Sort(out)
	return out
}

// Restore is vgcfgrestore: it makes an older text the metadata of the group. Volumes
// that are active must be in it as they are: what is read and written stays in place.
func (g *Group) Restore(old *meta.VG, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, n := range g.act.nodes {
		ids := []ondisk.UUID{id}
		for cow := range n.stores {
			ids = append(ids, cow)
		}
		for _, id := range ids {
			if !sameVolume(g.md.group.VG, old, id) {
				return fmt.Errorf("volume group %q: %s is served, and is another in the file: %w", g.md.group.VG.Name, n.name, blockdev.ErrInUse)
			}
		}
	}
	next := old.Clone()
	next.Seqno = g.md.group.VG.Seqno
	for _, lv := range next.LVs {
		keepKnown(lv, g.md.byID(lv.ID))
	}
	return g.md.commitBy(g.md.group.Restore, next, why)
}

// sameVolume reports whether a volume has the same content, from the same places and
// with the same snapshots, in two texts of a group.
func sameVolume(a, b *meta.VG, id ondisk.UUID) bool {
	find := func(v *meta.VG) *meta.LV {
		i := slices.IndexFunc(v.LVs, func(lv *meta.LV) bool { return lv.ID == id })
		if i < 0 {
			return nil
		}
		return v.LVs[i]
	}
	x, y := find(a), find(b)
	same := func(s, t []*meta.Segment) bool { return slices.EqualFunc(s, t, (*meta.Segment).Same) }
	return x != nil && y != nil && x.Name == y.Name && x.Is("WRITE") == y.Is("WRITE") &&
		same(x.Segments, y.Segments) && same(a.SnapshotsOf(x.Name), b.SnapshotsOf(y.Name))
}
