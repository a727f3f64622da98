package lvm

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/internal/swap"
	"softiser/lvm/internal/table"
	"softiser/lvm/meta"
	"softiser/lvm/snap"
	"softiser/lvm/thin"
	"softiser/lvm/vg"
)

// ErrNotServed marks logical volumes of segment types that this package leaves
// alone (RAID, cache, VDO, ...): lvm2 serves them.
var ErrNotServed = errors.New("segment type is not served")

// node is an active logical volume, hidden parts included.
type node struct {
	id    ondisk.UUID
	name  string
	users int // open Volumes, and nodes that stand on this one

	background int // how many of the users are merges

	imported atomic.Bool // the first write takes or changes the tag (tellsContent)
	filled   bool        // by a Volume that Fills

	top  *swap.Device // what users read and write
	phys *swap.Device // over the extents; the same as top for a plain volume
	on   []*node      // what this node stands on

	close func() error // gives up what activation made; may be nil

	merged <-chan error                   // closes when the merge into this origin is done
	stores map[ondisk.UUID]*node          // of an origin's snapshots, by UUID
	set    *snap.Set                      // an origin with snapshots
	snaps  map[ondisk.UUID]*snap.Snapshot // by the UUID of their stores
	snap   *snap.Snapshot                 // a snapshot
	pool   *thin.Pool                     // a thin pool
}

func (n *node) shut() error {
	if n.close == nil {
		return nil
	}
	f := n.close
	n.close = nil
	return f()
}

// activeSet is the part of a Group that has the volumes in use, and puts the devices
// behind them in the place of others when the metadata has changed. The group's mu
// guards it; the devices have locks of their own, which are taken after it.
type activeSet struct {
	md    *metadata
	nodes map[ondisk.UUID]*node

	// What makes the devices of volumes that are more than extents.
	snapshot, pool, thin func(n *node, lv *meta.LV, seg *meta.Segment) error
	origin               func(n *node, lv *meta.LV) error
}

// activate returns the node of lv, made if need be, with one more user.
func (as *activeSet) activate(lv *meta.LV) (*node, error) {
	if n := as.nodes[lv.ID]; n != nil {
		n.users++
		return n, nil
	}
	for _, s := range lv.Segments {
		if !s.Known() {
			return nil, fmt.Errorf("logical volume %s/%s: %w: %q; use lvm2 for it", as.md.group.VG.Name, lv.Name, ErrNotServed, s.Type)
		}
	}
	n := &node{id: lv.ID, name: lv.Name, users: 1}
	if err := as.build(n, lv); err != nil {
		as.letGo(n)
		return nil, fmt.Errorf("logical volume %s/%s: %w", as.md.group.VG.Name, lv.Name, err)
	}
	n.imported.Store(isImported(lv))
	as.nodes[lv.ID] = n
	return n, nil
}

// build fills a node.
func (as *activeSet) build(n *node, lv *meta.LV) error {
	v := as.md.group.VG
	_, seg := v.SnapshotSegment(lv.Name)
	if snaps := v.SnapshotsOf(lv.Name); len(snaps) > 0 && (seg != nil || !mayBeOrigin(lv)) {
		return fmt.Errorf("%w: it is no linear or striped volume, and the origin of %s", ErrNotServed, snaps[0].COW)
	}
	if seg != nil {
		return as.snapshot(n, lv, seg)
	}
	if len(lv.Segments) > 0 {
		switch seg := lv.Segments[0]; seg.Type {
		case meta.ThinPool:
			return as.pool(n, lv, seg)
		case meta.Thin:
			return as.thin(n, lv, seg)
		}
	}
	t, err := as.tableFor(v, n, lv)
	if err != nil {
		return err
	}
	n.phys = swap.New(t, as.md.cfg.Pool)
	n.top = n.phys
	if len(v.SnapshotsOf(lv.Name)) > 0 {
		return as.origin(n, lv)
	}
	return nil
}

// mayBeOrigin reports whether classic snapshots of an LV are served: what is written to it is copied out
// in front of its extents.
func mayBeOrigin(lv *meta.LV) bool {
	return !slices.ContainsFunc(lv.Segments, func(s *meta.Segment) bool { return s.Type != meta.Striped })
}

// deactivate takes one user away.
func (as *activeSet) deactivate(n *node) error {
	n.users--
	if n.users > 0 {
		return nil
	}
	delete(as.nodes, n.id)
	err := n.shut()
	return errors.Join(err, as.letGo(n))
}

// letGo gives up what n stands on, and what the stores of its snapshots do.
func (as *activeSet) letGo(n *node) error {
	err := as.dropAll(n.on)
	for id := range n.stores {
		err = errors.Join(err, as.dropStore(n, id))
	}
	return err
}

// dropStore takes the store of a snapshot from its origin.
func (as *activeSet) dropStore(origin *node, cow ondisk.UUID) error {
	st := origin.stores[cow]
	delete(origin.stores, cow)
	return as.dropAll(st.on)
}

func (as *activeSet) dropAll(ns []*node) error {
	var errs []error
	for _, n := range ns {
		errs = append(errs, as.deactivate(n))
	}
	return errors.Join(errs...)
}

// tableFor makes the table of a striped LV. LVs that it lies on are activated
// and become part of n.on.
func (as *activeSet) tableFor(v *meta.VG, n *node, lv *meta.LV) (*table.Device, error) {
	var runs []table.Run
	size := int64(v.ExtentSize) * ondisk.SectorSize
	for _, s := range lv.Segments {
		if s.Type != meta.Striped {
			return nil, fmt.Errorf("%w: %q among others", ErrNotServed, s.Type)
		}
		r := table.Run{Len: int64(s.Count) * size, Chunk: int64(s.StripeSize) * ondisk.SectorSize}
		for _, a := range s.Stripes {
			st, err := as.place(v, n, a, size)
			if err != nil {
				return nil, err
			}
			r.Stripes = append(r.Stripes, st)
		}
		runs = append(runs, r)
	}
	t, err := table.New(lv.ID.String(), runs)
	if err != nil {
		return nil, err
	}
	// The store of a read-only snapshot takes what is overwritten in the origin.
	if _, seg := v.SnapshotSegment(lv.Name); seg == nil && !lv.Is("WRITE") {
		t.SetReadOnly()
	}
	return t, nil
}

// place finds the device and offset of an area.
func (as *activeSet) place(v *meta.VG, n *node, a meta.Area, extent int64) (table.Stripe, error) {
	if pv := v.PV(a.Name); pv != nil {
		d, err := as.md.group.Disk(pv)
		if err != nil {
			return table.Stripe{}, err
		}
		return table.Stripe{Dev: d.Dev, Off: int64(pv.PEStart)*ondisk.SectorSize + int64(a.Off)*extent, Disk: true}, nil
	}
	lower := v.LV(a.Name)
	for _, o := range n.on {
		if lower != nil && o.id == lower.ID {
			return table.Stripe{Dev: o.top, Off: int64(a.Off) * extent}, nil
		}
	}
	if lower == nil {
		return table.Stripe{}, fmt.Errorf("%q %w", a.Name, vg.ErrNotFound)
	}
	o, err := as.activate(lower)
	if err != nil {
		return table.Stripe{}, err
	}
	n.on = append(n.on, o)
	return table.Stripe{Dev: o.top, Off: int64(a.Off) * extent}, nil
}

// Volume opens a logical volume. It fails with ErrNotServed for types that are
// left to lvm2, and with vg.ErrMissing when a disk is absent.
func (g *Group) Volume(name string) (*Volume, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.md.closed {
		return nil, blockdev.ErrClosed
	}
	lv := g.md.group.VG.LV(name)
	if lv == nil {
		return nil, fmt.Errorf("logical volume %s/%s %w", g.md.group.VG.Name, name, vg.ErrNotFound)
	}
	if err := hasContent(g.md.group.VG, lv); err != nil {
		return nil, err
	}
	n, err := g.act.activate(lv)
	if err != nil {
		return nil, err
	}
	g.opened++
	return &Volume{dev: n.top, g: g, n: n}, nil
}

// hasContent refuses what is a volume in the text of a group alone.
func hasContent(v *meta.VG, lv *meta.LV) error {
	if s := lv.Segments; len(s) > 0 && (s[0].Type == meta.ThinPool || s[0].Type == meta.Snapshot) {
		return fmt.Errorf("%s/%s is a %s, which has no content of its own", v.Name, lv.Name, s[0].Type)
	}
	return nil
}

// Servable says why a logical volume is not to be served: it has no content, is a part of another one, as the data of
// a thin pool is, or is not Whole.
func Servable(v *meta.VG, lv *meta.LV) error {
	if err := hasContent(v, lv); err != nil {
		return err
	}
	if !v.Shown(lv) {
		return fmt.Errorf("%s/%s is a part of another volume, which lvm2 hides: whoever writes to it destroys that one. Name a volume that `iser-target lvm lvs` shows", v.Name, lv.Name)
	}
	return Whole(v, lv)
}

// lookup returns the LV of that name in a group's metadata.
func lookup(v *meta.VG, name string) (*meta.LV, error) {
	if lv := v.LV(name); lv != nil {
		return lv, nil
	}
	return nil, fmt.Errorf("logical volume %s/%s %w", v.Name, name, vg.ErrNotFound)
}

// committed has the active volumes look out for their first write.
func (as *activeSet) committed() {
	for _, lv := range as.md.group.VG.LVs {
		if n := as.nodes[lv.ID]; n != nil {
			n.imported.Store(isImported(lv))
		}
	}
}

// zeroNew zeroes the first n bytes of an lv that only next knows.
func (as *activeSet) zeroNew(next *meta.VG, lv *meta.LV, n int64) error {
	err := as.withTable(next, lv, func(t *table.Device) error {
		if err := t.WriteZeroes(0, min(n, t.Info().Size), false); err != nil {
			return err
		}
		return t.Flush()
	})
	if err != nil {
		return fmt.Errorf("zeroing the new volume: %w", err)
	}
	return nil
}

// usable refuses an lv, which is not active, that could not be used where its extents lie by next.
func (as *activeSet) usable(next *meta.VG, lv *meta.LV) error {
	if err := as.withTable(next, lv, func(*table.Device) error { return nil }); err != nil {
		return fmt.Errorf("%s/%s: %w", next.Name, lv.Name, err)
	}
	return nil
}

// withTable runs f on the table that lv, which is not active, has by next.
func (as *activeSet) withTable(next *meta.VG, lv *meta.LV, f func(*table.Device) error) error {
	tmp := &node{id: lv.ID, name: lv.Name}
	t, err := as.tableFor(next, tmp, lv)
	if err == nil {
		err = f(t)
	}
	return errors.Join(err, as.dropAll(tmp.on))
}

// idle refuses an LV that is open.
func (as *activeSet) idle(lv *meta.LV) error {
	if n := as.nodes[lv.ID]; n != nil {
		return fmt.Errorf("logical volume %s/%s is served: %w", as.md.group.VG.Name, lv.Name, blockdev.ErrInUse)
	}
	return nil
}
