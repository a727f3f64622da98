package lvm

import (
	"errors"
	"fmt"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/internal/swap"
	"softiser/lvm/internal/table"
	"softiser/lvm/meta"
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

	top  *swap.Device // what users read and write
	phys *swap.Device // over the extents; the same as top for a plain volume
	on   []*node      // what this node stands on

	close func() error // gives up what activation made; may be nil
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
	g.nodes[lv.ID] = n
	return n, nil
}

// build fills a node.
func (g *Group) build(n *node, lv *meta.LV) error {
	t, err := g.tableFor(n, lv)
	if err != nil {
		return err
	}
	n.phys = swap.New(t, g.cfg.Pool)
	n.top = n.phys
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
func (g *Group) tableFor(n *node, lv *meta.LV) (*table.Device, error) {
	var runs []table.Run
	size := int64(g.g.VG.ExtentSize) * ondisk.SectorSize
	for _, s := range lv.Segments {
		if s.Type != meta.Striped {
			return nil, fmt.Errorf("%w: %q among others", ErrNotServed, s.Type)
		}
		r := table.Run{Len: int64(s.Count) * size, Chunk: int64(s.StripeSize) * ondisk.SectorSize}
		for _, a := range s.Stripes {
			st, err := g.place(n, a, size)
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
func (g *Group) place(n *node, a meta.Area, extent int64) (table.Stripe, error) {
	if pv := g.g.VG.PV(a.Name); pv != nil {
		d, err := g.g.Disk(pv)
		if err != nil {
			return table.Stripe{}, err
		}
		return table.Stripe{Dev: d.Dev, Off: int64(pv.PEStart)*ondisk.SectorSize + int64(a.Off)*extent}, nil
	}
	lower := g.g.VG.LV(a.Name)
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
