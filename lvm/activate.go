package lvm

import (
	"errors"
	"fmt"
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

	imported atomic.Bool // the first write takes the tag away

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

// activate returns the node of lv, made if need be, with one more user. g.mu
// is held.
func (g *Group) activate(lv *meta.LV) (*node, error) {
	if n := g.nodes[lv.ID]; n != nil {
		n.users++
		return n, nil
	}
	for _, s := range lv.Segments {
		if !s.Known() {
			return nil, fmt.Errorf("logical volume %s/%s: %w: %q; use lvm2 for it", g.g.VG.Name, lv.Name, ErrNotServed, s.Type)
		}
	}
	n := &node{id: lv.ID, name: lv.Name, users: 1}
	if err := g.build(n, lv); err != nil {
		g.dropAll(n.on)
		return nil, fmt.Errorf("logical volume %s/%s: %w", g.g.VG.Name, lv.Name, err)
	}
	n.imported.Store(isImported(lv))
	g.nodes[lv.ID] = n
	return n, nil
}

// build fills a node.
func (g *Group) build(n *node, lv *meta.LV) error {
	v := g.g.VG
	if _, seg := v.SnapshotSegment(lv.Name); seg != nil {
		return g.buildSnapshot(n, lv, seg)
	}
	if len(lv.Segments) > 0 {
		switch seg := lv.Segments[0]; seg.Type {
		case meta.ThinPool:
			return g.buildPool(n, lv, seg)
		case meta.Thin:
			return g.buildThin(n, lv, seg)
		}
	}
	t, err := g.tableFor(v, n, lv)
	if err != nil {
		return err
	}
	n.phys = swap.New(t, g.cfg.Pool)
	n.top = n.phys
	if len(v.SnapshotsOf(lv.Name)) > 0 {
		return g.buildOrigin(n, lv)
	}
	return nil
}

// deactivate takes one user away. g.mu is held.
func (g *Group) deactivate(n *node) error {
	n.users--
	if n.users > 0 {
		return nil
	}
	delete(g.nodes, n.id)
	err := n.shut()
	return errors.Join(err, g.dropAll(n.on))
}

func (g *Group) dropAll(ns []*node) error {
	var errs []error
	for _, n := range ns {
		errs = append(errs, g.deactivate(n))
	}
	return errors.Join(errs...)
}

// tableFor makes the table of a striped LV. LVs that it lies on are activated
// and become part of n.on.
func (g *Group) tableFor(v *meta.VG, n *node, lv *meta.LV) (*table.Device, error) {
	var runs []table.Run
	size := int64(v.ExtentSize) * ondisk.SectorSize
	for _, s := range lv.Segments {
		if s.Type != meta.Striped {
			return nil, fmt.Errorf("%w: %q among others", ErrNotServed, s.Type)
		}
		r := table.Run{Len: int64(s.Count) * size, Chunk: int64(s.StripeSize) * ondisk.SectorSize}
		for _, a := range s.Stripes {
			st, err := g.place(v, n, a, size)
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
	if !lv.Is("WRITE") {
		t.SetReadOnly()
	}
	return t, nil
}

// place finds the device and offset of an area.
func (g *Group) place(v *meta.VG, n *node, a meta.Area, extent int64) (table.Stripe, error) {
	if pv := v.PV(a.Name); pv != nil {
		d, err := g.g.Disk(pv)
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
	o, err := g.activate(lower)
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
	if g.closed {
		return nil, blockdev.ErrClosed
	}
	lv := g.g.VG.LV(name)
	if lv == nil {
		return nil, fmt.Errorf("logical volume %s/%s %w", g.g.VG.Name, name, vg.ErrNotFound)
	}
	if s := lv.Segments; len(s) > 0 && (s[0].Type == meta.ThinPool || s[0].Type == meta.Snapshot) {
		return nil, fmt.Errorf("%s/%s is a %s, which has no content of its own", g.g.VG.Name, name, s[0].Type)
	}
	n, err := g.activate(lv)
	if err != nil {
		return nil, err
	}
	return &Volume{dev: n.top, g: g, n: n}, nil
}

// lookup returns the LV of that name in a group's metadata.
func lookup(v *meta.VG, name string) (*meta.LV, error) {
	if lv := v.LV(name); lv != nil {
		return lv, nil
	}
	return nil, fmt.Errorf("logical volume %s/%s %w", v.Name, name, vg.ErrNotFound)
}
