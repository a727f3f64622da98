package lvm

import (
	"context"
	"fmt"

	"softiser/blockdev"
	"softiser/lvm/meta"
	"softiser/lvm/snap"
	"softiser/lvm/thin"
)

// SnapshotUsage says how full the store of a classic snapshot is.
func (g *Group) SnapshotUsage(name string) (snap.Usage, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cow, err := lookup(g.md.group.VG, name)
	if err != nil {
		return snap.Usage{}, err
	}
	_, seg := g.md.group.VG.SnapshotSegment(name)
	if seg == nil {
		return snap.Usage{}, fmt.Errorf("%s/%s is no snapshot", g.md.group.VG.Name, name)
	}
	n, err := g.act.activate(g.md.group.VG.LV(seg.Origin))
	if err != nil {
		return snap.Usage{}, err
	}
	defer g.act.deactivate(n)
	return n.snaps[cow.ID].Usage(), nil
}

// PoolUsage says how full a thin pool is.
func (g *Group) PoolUsage(name string) (u thin.Usage, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.pools.with(name, func(p *thin.Pool) error { u = p.Usage(); return nil })
	return u, err
}

// Mapped is how many bytes of a thin volume are allocated.
func (g *Group) Mapped(name string) (n int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	lv, err := lookup(g.md.group.VG, name)
	if err != nil {
		return 0, err
	}
	if len(lv.Segments) != 1 || lv.Segments[0].Type != meta.Thin {
		return 0, fmt.Errorf("%s is no thin volume", name)
	}
	err = g.pools.with(lv.Segments[0].Pool, func(p *thin.Pool) error {
		n, err = p.Mapped(lv.Segments[0].DeviceID)
		return err
	})
	return n, err
}

// IsOpen reports whether a volume is open.
func (g *Group) IsOpen(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lv := g.md.group.VG.LV(name)
	return lv != nil && g.act.nodes[lv.ID] != nil
}

// IsActive reports whether a volume is in use, or a part of one that is: an
// origin's snapshots are active with it.
func (g *Group) IsActive(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lv := g.md.group.VG.LV(name)
	if _, seg := g.md.group.VG.SnapshotSegment(name); seg != nil {
		lv = g.md.group.VG.LV(seg.Origin)
	}
	return lv != nil && g.act.nodes[lv.ID] != nil
}

// Diff lists the ranges, in order, in which volume "to" differs from volume
// "from": two thin volumes of a pool, a classic snapshot and its origin, or two
// classic snapshots of one origin. Data false means that "to" reads as zeroes.
func (g *Group) Diff(ctx context.Context, from, to string) ([]thin.Change, error) {
	cs, classic, err := g.diffAtOnce(from, to)
	if err == nil && classic {
		return g.diffClassic(ctx, from, to)
	}
	return cs, err
}

// diffAtOnce is Diff of thin volumes; classic says that the two are others, and may be compared.
func (g *Group) diffAtOnce(from, to string) (cs []thin.Change, classic bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, err := lookup(g.md.group.VG, from)
	if err != nil {
		return nil, false, err
	}
	b, err := lookup(g.md.group.VG, to)
	if err != nil {
		return nil, false, err
	}
	if len(a.Segments) == 1 && len(b.Segments) == 1 && a.Segments[0].Type == meta.Thin && b.Segments[0].Type == meta.Thin {
		cs, err = g.diffThin(a, b)
		return cs, false, err
	}
	return nil, true, related(g.md.group.VG, a, b)
}

func (g *Group) diffThin(a, b *meta.LV) ([]thin.Change, error) {
	sa, sb := a.Segments[0], b.Segments[0]
	if sa.Pool != sb.Pool {
		return nil, fmt.Errorf("%s and %s are in different pools", a.Name, b.Name)
	}
	n, err := g.act.activate(g.md.group.VG.LV(sa.Pool))
	if err != nil {
		return nil, err
	}
	defer g.act.deactivate(n)
	cs, err := n.pool.Diff(sa.DeviceID, sb.DeviceID)
	have, size := g.md.bytes(sa.Count), g.md.bytes(sb.Count)
	if err != nil || size <= have {
		return clip(cs, size), err
	}
	// What only the second has, because it has grown since, is a change too, and so are zeroes there:
	// a copy of the first that is made larger holds anything behind its old end.
	es, err := n.pool.Content(sb.DeviceID, have, size-have)
	cs = clip(cs, have)
	for _, e := range es {
		cs = append(cs, thin.Change{Off: e.Off, Len: e.Len, Data: e.Data})
	}
	return cs, err
}

// clip cuts what lies beyond the end of the second volume.
func clip(cs []thin.Change, size int64) []thin.Change {
	for i, c := range cs {
		if c.Off >= size {
			return cs[:i]
		}
		cs[i].Len = min(c.Len, size-c.Off)
	}
	return cs
}

func clipExtents(es []blockdev.Extent, size int64) []blockdev.Extent {
	for i, e := range es {
		if e.Off >= size {
			return es[:i]
		}
		es[i].Len = min(e.Len, size-e.Off)
	}
	return es
}

// related refuses to compare what is no snapshot and its origin, nor two snapshots of one.
func related(v *meta.VG, a, b *meta.LV) error {
	origin := func(lv *meta.LV) string {
		if _, s := v.SnapshotSegment(lv.Name); s != nil {
			return s.Origin
		}
		return lv.Name
	}
	if origin(a) != origin(b) || a == b {
		return fmt.Errorf("%s and %s are not a snapshot and its origin, nor snapshots of one origin", a.Name, b.Name)
	}
	// What the origin shows during a merge is in no list of exceptions of another snapshot.
	for _, lv := range []*meta.LV{a, b} {
		if err := notMerging(v, lv.Name, "compare"); err != nil {
			return err
		}
	}
	return nil
}

// diffClassic: a snapshot differs from its origin at most where it has
// exceptions; two snapshots differ at most where either has. What only the
// second has, because the origin grew in between, is a change too. The group is
// not locked while they are read.
func (g *Group) diffClassic(ctx context.Context, from, to string) (cs []thin.Change, err error) {
	var vs [2]*Volume
	var sizes [2]int64
	var all []blockdev.Extent
	for i, name := range []string{from, to} {
		v, err := g.Volume(name)
		if err != nil {
			return nil, err
		}
		defer v.Close()
		vs[i], sizes[i] = v, v.Info().Size
		if s := v.n.snap; s != nil {
			es, err := s.Changed()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, es...)
		}
	}
	cs, err = exact(ctx, vs[0], vs[1], clipExtents(merged(all), min(sizes[0], sizes[1])))
	if more := sizes[1] - sizes[0]; more > 0 && err == nil {
		cs = append(cs, thin.Change{Off: sizes[0], Len: more, Data: true})
	}
	return cs, err
}
