package lvm

import (
	"context"
	"fmt"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// Where volumes in use are switched to where the metadata says that they are now.

// grow commits lv with more extents and switches what is active.
func (as *activeSet) grow(next *meta.VG, lv *meta.LV, o ExtendOptions, why string) error {
	if err := extendSegments(next, lv, o); err != nil {
		return err
	}
	return as.grown(next, lv, why)
}

// grown commits next, in which lv has more extents, and puts the table of it under what is active of lv.
// That is made first: where the volume could not be used on its new extents all stays as it was.
func (as *activeSet) grown(next *meta.VG, lv *meta.LV, why string) error {
	n := as.standing(lv.ID)
	if n == nil || n.phys == nil {
		if err := as.usable(next, lv); err != nil {
			return err
		}
		return as.md.commit(next, why)
	}
	t, err := as.tableFor(next, n, lv)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", next.Name, lv.Name, err)
	}
	if err := as.md.commit(next, why); err != nil {
		return err
	}
	was := n.top.Info()
	n.phys.Switch(t)
	if n.top != n.phys {
		n.top.Announce(was) // an origin: its snapshots keep their size
	}
	for _, o := range as.nodes {
		if s := o.snaps[lv.ID]; s != nil {
			s.Grow()
		}
	}
	return nil
}

// standing returns the active node that has the extents of an LV: that of the
// LV, or for a snapshot's store the one that the origin keeps.
func (as *activeSet) standing(id ondisk.UUID) *node {
	if n := as.nodes[id]; n != nil && n.snap == nil {
		return n
	}
	for _, o := range as.nodes {
		if n := o.stores[id]; n != nil {
			return n
		}
	}
	return nil
}

func (as *activeSet) shrink(ctx context.Context, next *meta.VG, lv *meta.LV, why string) error {
	n := as.nodes[lv.ID]
	if n == nil {
		return as.md.commit(next, why)
	}
	return as.shrinkNode(ctx, n, next, lv, why)
}

// shrinkNode commits next, in which lv is smaller, with the writes to it held. The extents
// behind its new end are free in the metadata then; nobody may get them while a lease still
// reads there, so ctx ends nothing from there on.
func (as *activeSet) shrinkNode(ctx context.Context, n *node, next *meta.VG, lv *meta.LV, why string) error {
	t, err := as.tableFor(next, n, lv)
	if err != nil {
		return err
	}
	f, err := n.phys.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("%s/%s: %w: leases are open (%w)", next.Name, lv.Name, blockdev.ErrInUse, err)
	}
	if err := as.md.commit(next, why); err != nil {
		f.Thaw(nil)
		return err
	}
	f.Thaw(t)
	return f.Drain(context.WithoutCancel(ctx))
}
