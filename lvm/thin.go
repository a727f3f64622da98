package lvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
	"softiser/lvm/meta"
	"softiser/lvm/thin"
)

// buildThin activates a thin volume.
func (ps *thinPools) buildThin(n *node, lv *meta.LV, seg *meta.Segment) error {
	if seg.External != "" {
		return fmt.Errorf("%w: thin volume with the external origin %s", ErrNotServed, seg.External)
	}
	if len(lv.Segments) != 1 {
		return fmt.Errorf("%w: thin volume of %d segments", ErrNotServed, len(lv.Segments))
	}
	// lvm2 puts a merge off while the origin is in use: with its next activation the origin is the
	// snapshot, and what was written to it until then would be lost.
	for _, o := range ps.md.group.VG.LVs {
		if into := mergeInto(o); into != "" && (into == lv.Name || o == lv) {
			return fmt.Errorf("%w: the merge of %s into %s, which lvm2 has put off: activate %s there once", ErrNotServed, o.Name, into, into)
		}
	}
	pool, err := ps.act.activate(ps.md.group.VG.LV(seg.Pool))
	if err != nil {
		return err
	}
	n.on = append(n.on, pool)
	d, err := pool.pool.Device(seg.DeviceID, ps.md.bytes(seg.Count), lv.ID.String(), !lv.Is("WRITE"))
	if err != nil {
		return err
	}
	n.pool = pool.pool
	n.top = swap.New(d, ps.md.cfg.Pool)
	n.close = n.top.Close
	return nil
}

// ThinOptions describe a new thin volume.
type ThinOptions struct {
	Pool     string // a snapshot is in that of its origin
	Name     string // "" picks lvol0, lvol1, ...
	Extents  uint64 // virtual size; a snapshot has that of its origin
	Origin   string // a snapshot of this thin volume
	Tags     []string
	ReadOnly bool
	NoSkip   bool // do not set the activation skip flag that lvm2 gives thin snapshots
}

// CreateThin is lvcreate -V (a new thin volume) or lvcreate -s (a snapshot of
// one, for which write leases are waited for until ctx ends).
func (g *Group) CreateThin(ctx context.Context, o ThinOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pools.create(ctx, o, why)
}

// create makes a thin volume, in the group and in its pool.
func (ps *thinPools) create(ctx context.Context, o ThinOptions, why string) error {
	done, err := ps.awake(cmp.Or(ps.md.poolOf(o.Origin), o.Pool))
	if err != nil {
		return err
	}
	defer done()
	next := ps.md.group.VG.Clone()
	lv, err := ps.md.newLV(next, o.Name)
	if err != nil {
		return err
	}
	lv.Tags = o.Tags
	lv.SetStatus("WRITE", !o.ReadOnly)
	seg := &meta.Segment{Count: o.Extents, Type: meta.Thin, Pool: o.Pool, Origin: o.Origin}
	if o.Origin != "" {
		origin, err := lookup(next, o.Origin)
		if err == nil {
			err = Whole(next, origin)
		}
		if err != nil {
			return err
		}
		if len(origin.Segments) != 1 || origin.Segments[0].Type != meta.Thin {
			return fmt.Errorf("%s/%s is no thin volume", next.Name, o.Origin)
		}
		seg.Pool, seg.Count = origin.Segments[0].Pool, origin.Segments[0].Count
		lv.SetFlag("ACTIVATION_SKIP", !o.NoSkip)
	}
	if seg.Count == 0 {
		return fmt.Errorf("thin volume %s/%s needs a virtual size", next.Name, lv.Name)
	}
	pool, err := lookup(next, seg.Pool)
	if err != nil {
		return err
	}
	if len(pool.Segments) != 1 || pool.Segments[0].Type != meta.ThinPool {
		return fmt.Errorf("%s/%s is no thin pool", next.Name, seg.Pool)
	}
	if seg.DeviceID, err = ps.freeDevice(next, pool); err != nil {
		return err
	}
	seg.TransactionID = pool.Segments[0].TransactionID
	lv.Segments = []*meta.Segment{seg}
	next.LVs = append(next.LVs, lv)
	if o.Origin != "" {
		if n := ps.act.nodes[next.LV(o.Origin).ID]; n != nil {
			f, err := n.top.Freeze(ctx)
			if err != nil {
				return fmt.Errorf("snapshot of %s: %w: write leases are open (%w)", o.Origin, blockdev.ErrInUse, err)
			}
			defer f.Thaw(nil)
			// What was acknowledged belongs to the snapshot.
			if err := n.top.Flush(); err != nil {
				return err
			}
		}
	}
	return ps.change(next, pool.Name, meta.Message{Create: lv.Name}, nil, why)
}

// freeDevice returns an id that no volume has, nor a device in the pool without
// one.
func (ps *thinPools) freeDevice(v *meta.VG, pool *meta.LV) (uint64, error) {
	ids, err := ps.act.nodes[pool.ID].pool.Devices() // the caller has activated the pool
	if err != nil {
		return 0, err
	}
	for _, lv := range v.LVs {
		for _, s := range lv.Segments {
			if s.Type == meta.Thin && s.Pool == pool.Name {
				ids = append(ids, s.DeviceID)
			}
		}
	}
	var id uint64
	if len(ids) > 0 {
		id = slices.Max(ids)
	}
	if id++; bits.Len64(id) > 24 {
		return 0, fmt.Errorf("thin pool %s has no device id left", pool.Name)
	}
	return id, nil
}

func (ps *thinPools) removeThin(lv *meta.LV, why string) error {
	if err := ps.act.idle(lv); err != nil {
		return err
	}
	done, err := ps.awake(ps.md.poolOf(lv.Name))
	if err != nil {
		return err
	}
	defer done()
	next := ps.md.group.VG.Clone()
	if next.LV(lv.Name) == nil {
		return nil // the pool never made it, and opening the pool removed it from the group
	}
	seg := next.LV(lv.Name).Segments[0]
	removeThinLV(next, lv.Name)
	return ps.change(next, seg.Pool, meta.Message{Delete: seg.DeviceID}, nil, why)
}

// removeThinLV takes a thin volume out of the metadata; its snapshots stand on
// their own from then on.
func removeThinLV(next *meta.VG, name string) {
	next.RemoveLV(next.LV(name))
	for _, o := range next.LVs {
		for _, s := range o.Segments {
			if s.Type == meta.Thin && s.Origin == name {
				s.Origin = ""
			}
		}
	}
}

// resize changes the virtual size of a thin volume. What lies beyond a new
// end is given back to the pool.
func (ps *thinPools) resize(ctx context.Context, next *meta.VG, lv *meta.LV, extents uint64, why string) error {
	n, err := ps.act.activate(ps.md.group.VG.LV(lv.Name))
	if err != nil {
		return err
	}
	defer ps.act.deactivate(n)
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("%s/%s: %w: leases are open (%w)", next.Name, lv.Name, blockdev.ErrInUse, err)
	}
	d := f.Inner().(*thin.Device)
	size, old := ps.md.bytes(extents), d.Info().Size
	lv.Segments[0].Count = extents
	if err := ps.md.commit(next, why); err != nil {
		f.Thaw(nil)
		return err
	}
	if size < old && d.Info().Discard {
		if err := giveBack(d, size, old-size); err != nil {
			ps.md.cfg.notice("%s/%s: what lies beyond its new end stays allocated: %v", next.Name, lv.Name, err)
		}
	}
	// What leases still read behind the new end is kept from others by the pool (thin's gens),
	// so nothing has to be waited for.
	f.Thaw(d.Resized(size))
	return nil
}

// mergeInto names the volume that a thin snapshot is to be merged into, "" if it is not.
func mergeInto(lv *meta.LV) string {
	if len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
		return lv.Segments[0].Merge
	}
	return ""
}

// giveBack discards what lies behind the new end of a volume, first what makes space in the pool: to be
// zeroed in part, a shared block takes some. That is not waited for, as the group is locked.
func giveBack(d *thin.Device, off, n int64) error {
	chunk := int64(d.Info().DiscardAlign)
	part := min((chunk-off%chunk)%chunk, n)
	now, cancel := context.WithCancel(context.Background())
	cancel()
	err := d.DiscardUntil(off+part, n-part, now)
	e := d.DiscardUntil(off, part, now)
	if errors.Is(e, blockdev.ErrStopped) {
		e = fmt.Errorf("zeroing a part of a shared block: %w", blockdev.ErrNoSpace)
	}
	return errors.Join(err, e)
}

// merge makes a thin volume what its snapshot is: it takes the snapshot's
// device over, and the old one is deleted. The snapshot must not be open.
func (ps *thinPools) merge(ctx context.Context, name, why string) error {
	done, err := ps.awake(ps.md.poolOf(name))
	if err != nil {
		return err
	}
	defer done()
	next := ps.md.group.VG.Clone()
	s, err := lookup(next, name)
	if err != nil {
		return err
	}
	seg := s.Segments[0]
	origin := next.LV(seg.Origin)
	if err := ps.act.idle(s); err != nil {
		return err
	}
	n, err := ps.act.activate(ps.md.group.VG.LV(origin.Name))
	if err != nil {
		return err
	}
	defer ps.act.deactivate(n)
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("merging %s: %w: leases on its origin are open (%w)", name, blockdev.ErrInUse, err)
	}
	old := f.Inner().(*thin.Device)
	dropImported(origin)
	oseg := origin.Segments[0]
	gone := oseg.DeviceID
	oseg.DeviceID, oseg.Count, oseg.TransactionID = seg.DeviceID, seg.Count, seg.TransactionID
	next.RemoveLV(s)
	for _, o := range next.LVs {
		for _, x := range o.Segments {
			if x.Type == meta.Thin && x.Origin == name {
				x.Origin = origin.Name
			}
		}
	}
	d, err := n.pool.Device(oseg.DeviceID, ps.md.bytes(oseg.Count), origin.ID.String(), !origin.Is("WRITE"))
	if err != nil {
		f.Thaw(nil)
		return err
	}
	thawed := false
	err = ps.change(next, oseg.Pool, meta.Message{Delete: gone}, func() error {
		thawed = true
		f.Thaw(d)
		// Were it given up, the device would stay in the pool for good, with no volume.
		if err := f.Drain(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		return old.Close() // nobody reads it when it is deleted
	}, why)
	if !thawed {
		f.Thaw(nil)
		return errors.Join(err, d.Close())
	}
	return err
}
