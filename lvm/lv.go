package lvm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// CreateOptions describe a new linear or striped volume.
type CreateOptions struct {
	Name       string // "" picks lvol0, lvol1, ...
	Extents    uint64
	Stripes    int    // 0 and 1: linear
	StripeSize uint64 // sectors; 0 is 64 KiB
	Policy     string // allocation policy; "" inherits the group's
	From       []vg.Range
	Tags       []string
	ReadOnly   bool
	NoZero     bool // leave the first 4 KiB as they are
}

// DefaultStripe is lvm2's default stripe size, sectors.
const DefaultStripe = 128

// Create is lvcreate for linear and striped volumes.
func (g *Group) Create(o CreateOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	lv, err := g.newLV(next, o.Name, "lvol")
	if err != nil {
		return err
	}
	if o.StripeSize == 0 {
		o.StripeSize = DefaultStripe
	}
	if o.StripeSize&(o.StripeSize-1) != 0 || o.StripeSize < 8 || o.StripeSize > next.ExtentSize {
		return fmt.Errorf("stripe size of %d sectors: must be a power of two from 8 to the extent size of %d", o.StripeSize, next.ExtentSize)
	}
	n := uint64(max(o.Stripes, 1))
	o.Extents = (o.Extents + n - 1) / n * n
	segs, err := vg.Allocate(next, vg.Request{Extents: o.Extents, Stripes: o.Stripes, StripeSize: o.StripeSize, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	vg.Append(lv, segs)
	lv.Alloc, lv.Tags = policyWord(o.Policy), o.Tags
	lv.SetStatus("WRITE", !o.ReadOnly)
	next.LVs = append(next.LVs, lv)
	if o.NoZero || o.ReadOnly {
		return g.commit(next, why)
	}
	// What was on these extents before must not show.
	if err := g.zeroNew(next, lv, 4096); err != nil {
		return err
	}
	return g.commit(next, why)
}

// zeroNew zeroes the first n bytes of an lv that only next knows.
func (g *Group) zeroNew(next *meta.VG, lv *meta.LV, n int64) error {
	tmp := &node{id: lv.ID, name: lv.Name}
	t, err := g.tableFor(next, tmp, lv)
	if err == nil {
		n = min(n, t.Info().Size)
		err = t.WriteZeroes(0, n, false)
		if err == nil {
			err = t.Flush()
		}
	}
	err = errors.Join(err, g.dropAll(tmp.on))
	if err != nil {
		return fmt.Errorf("zeroing the new volume: %w", err)
	}
	return nil
}

func policyWord(p string) string {
	if p == "inherit" {
		return ""
	}
	return p
}

// newLV makes an LV of that name, or of the first free one with prefix.
func (g *Group) newLV(v *meta.VG, name, prefix string) (*meta.LV, error) {
	for i := 0; name == ""; i++ {
		if n := fmt.Sprintf("%s%d", prefix, i); v.LV(n) == nil {
			name = n
		}
	}
	if err := vg.CheckLVName(name); err != nil {
		return nil, err
	}
	if v.LV(name) != nil {
		return nil, fmt.Errorf("logical volume %s/%s exists already", v.Name, name)
	}
	if v.MaxLV != 0 && uint64(len(v.LVs)) >= v.MaxLV {
		return nil, fmt.Errorf("volume group %q takes at most %d logical volumes", v.Name, v.MaxLV)
	}
	return g.bareLV(name, true), nil
}

func (g *Group) bareLV(name string, visible bool) *meta.LV {
	now := time.Now
	if g.cfg.Now != nil {
		now = g.cfg.Now
	}
	lv := &meta.LV{Name: name, ID: ondisk.NewUUID(), Status: []string{"READ", "WRITE"}, Created: now().Unix(), Host: g.cfg.HostName()}
	lv.SetStatus("VISIBLE", visible)
	return lv
}

// plain refuses what is not a linear or striped volume that users own.
func plain(v *meta.VG, lv *meta.LV, verb string) error {
	for _, s := range lv.Segments {
		if !s.Known() {
			return fmt.Errorf("cannot %s %s/%s: %w: %q", verb, v.Name, lv.Name, ErrNotServed, s.Type)
		}
	}
	if !v.Shown(lv) {
		return fmt.Errorf("cannot %s %s/%s: it is a part of another volume", verb, v.Name, lv.Name)
	}
	return nil
}

// Extend is lvextend: to extents in all. Open volumes grow at once, and their
// OnResize callbacks run.
func (g *Group) Extend(name string, extents uint64, policy string, stripes int, from []vg.Range, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	done, err := g.awake(g.poolOf(name))
	if err != nil {
		return err
	}
	defer done()
	next := g.g.VG.Clone()
	lv, err := lookup(next, name)
	if err != nil {
		return err
	}
	if err := plain(next, lv, "extend"); err != nil {
		return err
	}
	if have := lv.Extents(); extents <= have {
		return fmt.Errorf("%s/%s has %d extents already: nothing to extend", next.Name, name, have)
	}
	for _, s := range next.SnapshotsOf(name) {
		if s.Merging {
			return fmt.Errorf("cannot extend %s/%s: %s is being merged into it", next.Name, name, s.COW)
		}
		// Chunks are merged back whole, over what would now lie behind the end.
		if g.bytes(s.Count)%(int64(s.ChunkSize)*ondisk.SectorSize) != 0 {
			return fmt.Errorf("cannot extend %s/%s: its snapshot %s ends within a chunk of %d KiB; remove or merge that first", next.Name, name, s.COW, s.ChunkSize/2)
		}
	}
	switch seg := lv.Segments[0]; seg.Type {
	case meta.ThinPool:
		return g.growPool(next, lv, extents, policy, from, why)
	case meta.Thin:
		return g.resizeThin(context.Background(), next, lv, extents, why)
	}
	return g.grow(next, lv, extents, policy, stripes, from, why)
}

// grow commits lv with more extents and switches what is active.
func (g *Group) grow(next *meta.VG, lv *meta.LV, extents uint64, policy string, stripes int, from []vg.Range, why string) error {
	if err := extendSegments(next, lv, extents, policy, stripes, from); err != nil {
		return err
	}
	if err := g.commit(next, why); err != nil {
		return err
	}
	return g.reload(lv)
}

func extendSegments(next *meta.VG, lv *meta.LV, extents uint64, policy string, stripes int, from []vg.Range) error {
	r := vg.Request{Policy: policy, From: from, After: lv, Stripes: stripes, StripeSize: DefaultStripe}
	if policy == "" {
		r.Policy = lv.Alloc
	}
	if k := len(lv.Segments); k > 0 && lv.Segments[k-1].Type == meta.Striped {
		last := lv.Segments[k-1]
		if stripes == 0 {
			r.Stripes = len(last.Stripes)
		}
		if last.StripeSize != 0 {
			r.StripeSize = last.StripeSize
		}
	}
	n := uint64(max(r.Stripes, 1))
	r.Extents = (extents - lv.Extents() + n - 1) / n * n
	segs, err := vg.Allocate(next, r)
	if err != nil {
		return err
	}
	vg.Append(lv, segs)
	return nil
}

// reload puts the table of lv, as it is in the metadata now, under what is
// active of it.
func (g *Group) reload(lv *meta.LV) error {
	n := g.standing(lv.ID)
	if n == nil || n.phys == nil {
		return nil
	}
	t, err := g.tableFor(g.g.VG, n, lv)
	if err != nil {
		return fmt.Errorf("the metadata of %s is changed, but not what is active: %w", lv.Name, err)
	}
	was := n.top.Info()
	n.phys.Switch(t)
	if n.top != n.phys {
		n.top.Announce(was) // an origin: its snapshots keep their size
	}
	for _, o := range g.nodes {
		if s := o.snaps[lv.ID]; s != nil {
			s.Grow()
		}
	}
	return nil
}

// standing returns the active node that has the extents of an LV: that of the
// LV, or for a snapshot's store the one that the origin keeps.
func (g *Group) standing(id ondisk.UUID) *node {
	if n := g.nodes[id]; n != nil && n.snap == nil {
		return n
	}
	for _, o := range g.nodes {
		if n := o.stores[id]; n != nil {
			return n
		}
	}
	return nil
}

// Reduce is lvreduce: to extents in all. It waits, at most until ctx ends, for
// open leases; then what lies beyond the new end is gone.
func (g *Group) Reduce(ctx context.Context, name string, extents uint64, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	done, err := g.awake(g.poolOf(name))
	if err != nil {
		return err
	}
	defer done()
	next := g.g.VG.Clone()
	lv, err := lookup(next, name)
	if err != nil {
		return err
	}
	if err := plain(next, lv, "reduce"); err != nil {
		return err
	}
	if len(next.SnapshotsOf(name)) > 0 {
		return fmt.Errorf("cannot reduce %s/%s: it has snapshots, which still need what lies beyond the new end; remove or merge them first", next.Name, name)
	}
	if have := lv.Extents(); extents >= have || extents == 0 {
		return fmt.Errorf("cannot reduce %s/%s from %d to %d extents", next.Name, name, have, extents)
	}
	if _, seg := next.SnapshotSegment(name); seg != nil {
		return g.reduceStore(ctx, next, lv, seg, extents, why)
	}
	switch seg := lv.Segments[0]; seg.Type {
	case meta.ThinPool:
		return fmt.Errorf("cannot reduce %s/%s: thin pools only grow", next.Name, name)
	case meta.Thin:
		return g.resizeThin(ctx, next, lv, extents, why)
	}
	vg.Truncate(lv, extents)
	return g.shrink(ctx, next, lv, why)
}

func (g *Group) shrink(ctx context.Context, next *meta.VG, lv *meta.LV, why string) error {
	n := g.nodes[lv.ID]
	if n == nil {
		return g.commit(next, why)
	}
	return g.shrinkNode(ctx, n, next, lv, why)
}

// shrinkNode commits next, in which lv is smaller, with the writes to it held.
func (g *Group) shrinkNode(ctx context.Context, n *node, next *meta.VG, lv *meta.LV, why string) error {
	f, err := n.phys.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("%s/%s: %w: leases are open (%w)", next.Name, lv.Name, blockdev.ErrInUse, err)
	}
	var t blockdev.Device
	if err = g.commit(next, why); err == nil {
		t, err = g.tableFor(g.g.VG, n, g.g.VG.LV(lv.Name))
	}
	if err != nil {
		f.Thaw(nil)
		return err
	}
	f.Thaw(t)
	return f.Drain(ctx)
}

// idle refuses an LV that is open.
func (g *Group) idle(lv *meta.LV) error {
	if n := g.nodes[lv.ID]; n != nil {
		return fmt.Errorf("logical volume %s/%s is served: %w", g.g.VG.Name, lv.Name, blockdev.ErrInUse)
	}
	return nil
}

// Rename is lvrename; open volumes stay open.
func (g *Group) Rename(old, name, why string) error {
	if err := vg.CheckLVName(name); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	lv, err := lookup(next, old)
	if err != nil {
		return err
	}
	if !next.Shown(lv) {
		return fmt.Errorf("cannot rename %s/%s: it is a part of another volume", next.Name, old)
	}
	if next.LV(name) != nil {
		return fmt.Errorf("logical volume %s/%s exists already", next.Name, name)
	}
	// The parts of a pool carry its name.
	for _, part := range []string{"_tdata", "_tmeta"} {
		if next.LV(old+part) != nil {
			next.RenameLV(old+part, name+part)
		}
	}
	next.RenameLV(old, name)
	if err := g.commit(next, why); err != nil {
		return err
	}
	for _, l := range next.LVs {
		if n := g.nodes[l.ID]; n != nil {
			n.name = l.Name
		}
	}
	return nil
}

// Change is lvchange: f changes the LV's flags, tags, policy or permission.
func (g *Group) Change(name string, f func(lv *meta.LV) error, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	lv, err := lookup(next, name)
	if err != nil {
		return err
	}
	was := lv.Is("WRITE")
	if err := f(lv); err != nil {
		return err
	}
	if lv.Is("WRITE") != was && g.nodes[lv.ID] != nil {
		return fmt.Errorf("cannot change the permission of %s/%s while it is served: %w", next.Name, name, blockdev.ErrInUse)
	}
	return g.commit(next, why)
}
