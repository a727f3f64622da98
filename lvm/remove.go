package lvm

import (
	"context"
	"fmt"

	"softiser/lvm/meta"
)

// Remove is lvremove. The volume must not be open, and nothing may depend on
// it. Removing a snapshot waits, at most until ctx ends, for write leases on
// its origin.
func (g *Group) Remove(ctx context.Context, name, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	lv, err := lookup(g.md.group.VG, name)
	if err != nil {
		return err
	}
	if err := plain(g.md.group.VG, lv, "remove"); err != nil {
		return err
	}
	if _, seg := g.md.group.VG.SnapshotSegment(name); seg != nil {
		return g.snaps.remove(ctx, lv, why)
	}
	switch lv.Segments[0].Type {
	case meta.Thin:
		return g.pools.removeThin(lv, why)
	case meta.ThinPool:
		return g.pools.removePool(lv, why)
	}
	return g.removePlain(lv, why)
}

// Dependents lists the volumes that must go before this one can be removed:
// snapshots of an origin, thin volumes of a pool.
func (g *Group) Dependents(name string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, s := range g.md.group.VG.SnapshotsOf(name) {
		out = append(out, s.COW)
	}
	for _, lv := range g.md.group.VG.LVs {
		for _, s := range lv.Segments {
			if s.Type == meta.Thin && s.Pool == name {
				out = append(out, lv.Name)
			}
		}
	}
	return out
}

func (g *Group) removePlain(lv *meta.LV, why string) error {
	if u := g.md.group.VG.UsersOf(lv.Name); len(u) > 0 {
		return fmt.Errorf("cannot remove %s/%s: %s depends on it", g.md.group.VG.Name, lv.Name, u[0].Name)
	}
	if err := g.act.idle(lv); err != nil {
		return err
	}
	next := g.md.group.VG.Clone()
	next.RemoveLV(next.LV(lv.Name))
	return g.md.commit(next, why)
}
