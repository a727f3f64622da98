package lvm

import (
	"context"
	"fmt"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// CreateOptions describe a new linear or striped volume.
type CreateOptions struct {
	Name       string     // "" picks lvol0, lvol1, ...
	Extents    uint64     // made up to a multiple of Stripes
	Stripes    int        // 0 and 1: linear
	StripeSize uint64     // sectors; 0 is 64 KiB, or an extent if that is less
	Policy     string     // allocation policy, see vg.Allocate; "" inherits the group's
	From       []vg.Range // extents that may be used; nil: all
	Tags       []string
	ReadOnly   bool
	NoZero     bool // leave the first 4 KiB as they are
}

// DefaultStripe is lvm2's default stripe size, sectors.
const DefaultStripe = 128

// stripeSize is the size of the stripes of a volume, sectors: as it was asked for, or as lvm2
// chooses it for 0.
func stripeSize(asked uint64, stripes int, extent uint64) (uint64, error) {
	if asked == 0 {
		if stripes < 2 {
			return 0, nil
		}
		asked = min(DefaultStripe, extent)
	}
	if asked&(asked-1) != 0 || asked < 8 || extent%asked != 0 {
		return 0, fmt.Errorf("stripe size of %d sectors: must be a power of two from 8 on that divides the extent size of %d", asked, extent)
	}
	return asked, nil
}

// wholeStripes makes a number of extents up to a multiple of the stripes, as lvm2 does.
func wholeStripes(extents uint64, stripes int) uint64 {
	n := uint64(max(stripes, 1))
	return (extents + n - 1) / n * n
}

// Create is lvcreate for linear and striped volumes.
func (g *Group) Create(o CreateOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.md.group.VG.Clone()
	lv, err := g.md.newLV(next, o.Name)
	if err != nil {
		return err
	}
	if o.StripeSize, err = stripeSize(o.StripeSize, o.Stripes, next.ExtentSize); err != nil {
		return err
	}
	o.Extents = wholeStripes(o.Extents, o.Stripes)
	segs, err := vg.Allocate(next, vg.Request{Extents: o.Extents, Stripes: o.Stripes, StripeSize: o.StripeSize, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	vg.Append(lv, segs)
	lv.Alloc, lv.Tags = policyWord(o.Policy), o.Tags
	lv.SetStatus("WRITE", !o.ReadOnly)
	next.LVs = append(next.LVs, lv)
	if o.NoZero || o.ReadOnly {
		err = g.act.usable(next, lv)
	} else { // what was on these extents before must not show
		err = g.act.zeroNew(next, lv, 4096)
	}
	if err != nil {
		return err
	}
	return g.md.commit(next, why)
}

func policyWord(p string) string {
	if p == "inherit" {
		return ""
	}
	return p
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

// toResize returns a copy of the metadata with the volume that is to change its size there,
// and keeps the volume's pool awake until done. The caller holds g.mu.
func (g *Group) toResize(name, verb string) (next *meta.VG, lv *meta.LV, done func(), err error) {
	if done, err = g.pools.awake(g.md.poolOf(name)); err != nil {
		return nil, nil, nil, err
	}
	next = g.md.group.VG.Clone()
	if lv, err = lookup(next, name); err == nil {
		err = plain(next, lv, verb)
	}
	if err != nil {
		done()
		return nil, nil, nil, err
	}
	return next, lv, done, nil
}

// ExtendOptions say how large a volume becomes, and where the new extents lie.
type ExtendOptions struct {
	Extents uint64     // in all
	Stripes int        // of the new extents; 0: as at the end of the volume
	Policy  string     // as in CreateOptions; "" is the volume's
	From    []vg.Range // extents that may be used; nil: all
}

// Extend is lvextend. Open volumes grow at once, and their OnResize callbacks run.
func (g *Group) Extend(name string, o ExtendOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next, lv, done, err := g.toResize(name, "extend")
	if err != nil {
		return err
	}
	defer done()
	if have := lv.Extents(); o.Extents <= have {
		return fmt.Errorf("%s/%s has %d extents already: nothing to extend", next.Name, name, have)
	}
	for _, s := range next.SnapshotsOf(name) {
		if s.Merging {
			return fmt.Errorf("cannot extend %s/%s: %s is being merged into it", next.Name, name, s.COW)
		}
		// Chunks are merged back whole, over what would now lie behind the end.
		if g.md.bytes(s.Count)%(int64(s.ChunkSize)*ondisk.SectorSize) != 0 {
			return fmt.Errorf("cannot extend %s/%s: its snapshot %s ends within a chunk of %d KiB; remove or merge that first", next.Name, name, s.COW, s.ChunkSize/2)
		}
	}
	switch seg := lv.Segments[0]; seg.Type {
	case meta.ThinPool:
		return g.pools.growPool(next, lv, o, why)
	case meta.Thin:
		return g.pools.resize(context.Background(), next, lv, o.Extents, why)
	}
	return g.act.grow(next, lv, o, why)
}

// extendSegments allocates what lv, of next, lacks of o.Extents: with as many stripes as
// its last segment has, and of their size, unless o says otherwise.
func extendSegments(next *meta.VG, lv *meta.LV, o ExtendOptions) error {
	r := vg.Request{Policy: o.Policy, From: o.From, After: lv, Stripes: o.Stripes}
	if o.Policy == "" {
		r.Policy = lv.Alloc
	}
	if k := len(lv.Segments); k > 0 && lv.Segments[k-1].Type == meta.Striped {
		last := lv.Segments[k-1]
		if o.Stripes == 0 {
			r.Stripes = len(last.Stripes)
		}
		r.StripeSize = last.StripeSize
	}
	if r.StripeSize == 0 {
		var err error
		if r.StripeSize, err = stripeSize(0, r.Stripes, next.ExtentSize); err != nil {
			return err
		}
	}
	r.Extents = wholeStripes(o.Extents-lv.Extents(), r.Stripes)
	segs, err := vg.Allocate(next, r)
	if err != nil {
		return err
	}
	vg.Append(lv, segs)
	return nil
}

// Reduce is lvreduce: to extents in all. It waits, at most until ctx ends, for
// open leases; then what lies beyond the new end is gone.
func (g *Group) Reduce(ctx context.Context, name string, extents uint64, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next, lv, done, err := g.toResize(name, "reduce")
	if err != nil {
		return err
	}
	defer done()
	if len(next.SnapshotsOf(name)) > 0 {
		return fmt.Errorf("cannot reduce %s/%s: it has snapshots, which still need what lies beyond the new end; remove or merge them first", next.Name, name)
	}
	if have := lv.Extents(); extents >= have || extents == 0 {
		return fmt.Errorf("cannot reduce %s/%s from %d to %d extents", next.Name, name, have, extents)
	}
	if _, seg := next.SnapshotSegment(name); seg != nil {
		return g.snaps.reduceStore(ctx, next, lv, seg, extents, why)
	}
	dropImported(lv) // what it loses does not come back when it is extended
	switch seg := lv.Segments[0]; seg.Type {
	case meta.ThinPool:
		return fmt.Errorf("cannot reduce %s/%s: thin pools only grow", next.Name, name)
	case meta.Thin:
		return g.pools.resize(ctx, next, lv, extents, why)
	}
	vg.Truncate(lv, extents)
	return g.act.shrink(ctx, next, lv, why)
}

// Rename is lvrename; open volumes stay open.
func (g *Group) Rename(old, name, why string) error {
	if err := vg.CheckLVName(name); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.md.group.VG.Clone()
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
	if err := g.md.commit(next, why); err != nil {
		return err
	}
	for _, l := range next.LVs {
		if n := g.act.nodes[l.ID]; n != nil {
			n.name = l.Name
		}
	}
	return nil
}

// Change is lvchange: f changes the LV's flags, tags, policy or permission.
func (g *Group) Change(name string, f func(lv *meta.LV) error, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.md.group.VG.Clone()
	lv, err := lookup(next, name)
	if err != nil {
		return err
	}
	was := lv.Is("WRITE")
	if err := f(lv); err != nil {
		return err
	}
	if lv.Is("WRITE") != was && g.act.nodes[lv.ID] != nil {
		return fmt.Errorf("cannot change the permission of %s/%s while it is served: %w", next.Name, name, blockdev.ErrInUse)
	}
	if err := g.md.commit(next, why); err != nil {
		return err
	}
	if n := g.act.nodes[lv.ID]; n != nil && n.pool != nil && lv.Segments[0].Type == meta.ThinPool {
		n.pool.SetErrorWhenFull(lv.Is("ERROR_WHEN_FULL"))
	}
	return nil
}
