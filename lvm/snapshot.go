package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/internal/swap"
	"softiser/lvm/meta"
	"softiser/lvm/snap"
	"softiser/lvm/vg"
)

// In the metadata a snapshot is two volumes: the store, which bears the name
// that users gave, and a hidden "snapshotN" with one segment that ties the
// store to its origin.

// lostTag is the tag of a snapshot that is lost although its store may not say so,
// because it failed to take that down.
const lostTag = "snapshot.lost"

// newSet makes the set of an origin's snapshots.
func (g *Group) newSet(n *node) *snap.Set {
	set := snap.NewSet(n.phys, g.cfg.Pool, func(s string) { g.cfg.notice("%s", s) })
	set.OnLost(func(s *snap.Snapshot) <-chan error {
		done := make(chan error, 1)
		g.background.Go(func() { done <- g.tagLost(n, s) })
		return done
	})
	return set
}

// tagLost takes down in the group that a snapshot is lost. The disk that failed its
// store may have a part of the group's metadata, too.
func (g *Group) tagLost(n *node, s *snap.Snapshot) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	for id, o := range n.snaps {
		if lv := g.lvByID(id); o == s && lv != nil {
			next.LV(lv.Name).SetTag(lostTag, true)
			return g.commitBy(g.g.CommitWherePossible, next, "snapshot "+lv.Name+" is lost")
		}
	}
	return nil // it is not there any more
}

// buildOrigin puts the snapshots over an origin whose table is active. All of
// them: a write that missed one would destroy it.
func (g *Group) buildOrigin(n *node, lv *meta.LV) error {
	set := g.newSet(n)
	n.snaps = map[ondisk.UUID]*snap.Snapshot{}
	var merging *snap.Snapshot
	for _, seg := range g.g.VG.SnapshotsOf(lv.Name) {
		cow := g.g.VG.LV(seg.COW)
		st, err := g.openStore(g.g.VG, n, cow, seg)
		if err != nil {
			return err
		}
		s := set.Add(cow.Name, st, g.bytes(seg.Count))
		n.snaps[cow.ID] = s
		if seg.Merging {
			merging = s
		}
	}
	n.set = set
	n.top = swap.New(set.Origin(), g.cfg.Pool)
	if merging != nil {
		if err := set.StartMerge(merging); err != nil {
			g.cfg.notice("logical volume %s/%s: the merge of its snapshot cannot go on: %v", g.g.VG.Name, lv.Name, err)
			return nil
		}
		g.mergeInBackground(n)
	}
	return nil
}

// openStore opens a snapshot's store. Its node, the LV as it would be if it were
// no snapshot, is kept by the origin.
func (g *Group) openStore(v *meta.VG, origin *node, cow *meta.LV, seg *meta.Segment) (*snap.Store, error) {
	c := &node{id: cow.ID, name: cow.Name, users: 1}
	t, err := g.tableFor(v, c, cow)
	if err != nil {
		g.dropAll(c.on)
		return nil, err
	}
	c.phys = swap.New(t, g.cfg.Pool)
	c.top = c.phys
	st, err := snap.OpenStore(c.phys, int64(seg.ChunkSize)*ondisk.SectorSize)
	if err != nil {
		g.dropAll(c.on)
		return nil, fmt.Errorf("snapshot %s: %w", cow.Name, err)
	}
	if slices.Contains(cow.Tags, lostTag) {
		if err := st.Invalidate(); err != nil {
			g.cfg.notice("snapshot %s is invalid, and its store still cannot take that down: %v", cow.Name, err)
		}
	}
	if origin.stores == nil {
		origin.stores = map[ondisk.UUID]*node{}
	}
	origin.stores[cow.ID] = c
	return st, nil
}

// buildSnapshot activates a snapshot: its origin does the work.
func (g *Group) buildSnapshot(n *node, lv *meta.LV, seg *meta.Segment) error {
	if seg.Merging {
		return fmt.Errorf("it is being merged into %s", seg.Origin)
	}
	o, err := g.activate(g.g.VG.LV(seg.Origin))
	if err != nil {
		return err
	}
	n.on = append(n.on, o)
	n.snap = o.snaps[lv.ID]
	n.phys = o.stores[lv.ID].phys
	n.top = swap.New(n.snap, g.cfg.Pool)
	return nil
}

// SnapshotOptions describe a classic snapshot.
type SnapshotOptions struct {
	Origin  string
	Name    string
	Extents uint64 // of the store
	Chunk   int64  // bytes; 0 is 4096
	Policy  string
	From    []vg.Range
	Tags    []string
}

// Snapshot is lvcreate -s on a volume that is not thin. It waits, at most until
// ctx ends, for write leases on the origin.
func (g *Group) Snapshot(ctx context.Context, o SnapshotOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	origin, err := lookup(next, o.Origin)
	if err != nil {
		return err
	}
	if err := plain(next, origin, "snapshot"); err != nil {
		return err
	}
	if _, s := next.SnapshotSegment(o.Origin); s != nil {
		return fmt.Errorf("cannot snapshot %s/%s: it is a snapshot itself; use a thin volume for snapshots of snapshots", next.Name, o.Origin)
	}
	if o.Chunk == 0 {
		o.Chunk = snap.DefaultChunk
	}
	if o.Chunk < 4096 || o.Chunk > 512<<10 || o.Chunk&(o.Chunk-1) != 0 {
		return fmt.Errorf("snapshot chunk size of %d bytes: must be a power of two from 4 KiB to 512 KiB", o.Chunk)
	}
	cow, err := g.newLV(next, o.Name, "lvol")
	if err != nil {
		return err
	}
	cow.SetStatus("VISIBLE", false)
	cow.Tags, cow.Alloc = o.Tags, policyWord(o.Policy)
	segs, err := vg.Allocate(next, vg.Request{Extents: o.Extents, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	vg.Append(cow, segs)
	hidden := g.bareLV(freeName(next, "snapshot"), true)
	seg := &meta.Segment{Count: origin.Extents(), Type: meta.Snapshot, ChunkSize: uint64(o.Chunk / ondisk.SectorSize), Origin: o.Origin, COW: cow.Name}
	hidden.Segments = []*meta.Segment{seg}
	next.LVs = append(next.LVs, cow, hidden)
	if err := g.zeroNew(next, cow, 4096); err != nil {
		return err
	}
	n := g.nodes[origin.ID]
	if n == nil {
		return g.commit(next, why)
	}
	return g.snapshotLive(ctx, n, next, cow, seg, why)
}

// snapshotLive adds a snapshot to an origin that is in use. All that can fail
// is done before the metadata says that there is a snapshot.
func (g *Group) snapshotLive(ctx context.Context, n *node, next *meta.VG, cow *meta.LV, seg *meta.Segment, why string) error {
	st, err := g.openStore(next, n, cow, seg)
	if err != nil {
		return err
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		delete(n.stores, cow.ID)
		return fmt.Errorf("snapshot of %s: %w: write leases are open (%w)", n.name, blockdev.ErrInUse, err)
	}
	if err := g.commit(next, why); err != nil {
		f.Thaw(nil)
		delete(n.stores, cow.ID)
		return err
	}
	if n.set == nil {
		n.phys = swap.New(f.Inner(), g.cfg.Pool)
		n.set = g.newSet(n)
		n.snaps = map[ondisk.UUID]*snap.Snapshot{}
	}
	n.snaps[cow.ID] = n.set.Add(cow.Name, st, g.bytes(seg.Count))
	f.Thaw(n.set.Origin())
	return nil
}

func freeName(v *meta.VG, prefix string) string {
	for i := 0; ; i++ {
		if n := fmt.Sprintf("%s%d", prefix, i); v.LV(n) == nil {
			return n
		}
	}
}

// removeSnapshot takes a snapshot out of the metadata and from its origin.
func (g *Group) removeSnapshot(ctx context.Context, cow *meta.LV, why string) error {
	hidden, seg := g.g.VG.SnapshotSegment(cow.Name)
	if err := g.idle(cow); err != nil {
		return err
	}
	next := g.g.VG.Clone()
	next.RemoveLV(next.LV(hidden.Name))
	next.RemoveLV(next.LV(cow.Name))
	origin := g.g.VG.LV(seg.Origin)
	n := g.nodes[origin.ID]
	if n == nil {
		return g.commit(next, why)
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("removing snapshot %s: %w: write leases on its origin are open (%w)", cow.Name, blockdev.ErrInUse, err)
	}
	if err := g.commit(next, why); err != nil {
		f.Thaw(nil)
		return err
	}
	return g.detach(n, cow.ID, f)
}

// detach takes a snapshot out of an active, frozen origin.
func (g *Group) detach(n *node, cow ondisk.UUID, f *swap.Frozen) error {
	left := n.set.Remove(n.snaps[cow])
	delete(n.snaps, cow)
	st := n.stores[cow]
	delete(n.stores, cow)
	if left == 0 {
		f.Thaw(n.phys.Inner())
		n.phys, n.set = n.top, nil
	} else {
		f.Thaw(n.set.Origin())
	}
	err := f.Drain(context.Background())
	return errors.Join(err, g.dropAll(st.on))
}

// reduceStore makes the store of a snapshot smaller, by no more than is free in
// it.
func (g *Group) reduceStore(ctx context.Context, next *meta.VG, cow *meta.LV, seg *meta.Segment, extents uint64, why string) error {
	if seg.Merging {
		return fmt.Errorf("cannot reduce %s/%s: it is being merged into %s", next.Name, cow.Name, seg.Origin)
	}
	o, err := g.activate(g.g.VG.LV(seg.Origin))
	if err != nil {
		return err
	}
	defer g.deactivate(o)
	vg.Truncate(cow, extents)
	s := o.snaps[cow.ID]
	shrinking, err := s.Shrink(g.bytes(cow.Extents()))
	if err != nil {
		return fmt.Errorf("cannot reduce %s/%s: %w", next.Name, cow.Name, err)
	}
	defer shrinking.End()
	return g.shrinkNode(ctx, o.stores[cow.ID], next, cow, why)
}

// Merge is lvconvert --merge of a classic snapshot: the origin shows the
// snapshot at once, and the chunks are moved in the background. The snapshot
// must not be open. The returned channel closes when everything has been moved,
// with an error on it if that failed; it goes on at the next activation then.
func (g *Group) Merge(ctx context.Context, name, why string) (<-chan error, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	cow, err := lookup(next, name)
	if err != nil {
		return nil, err
	}
	hidden, seg := next.SnapshotSegment(name)
	if seg == nil {
		if len(cow.Segments) > 0 && cow.Segments[0].Type == meta.Thin && cow.Segments[0].Origin != "" {
			done := make(chan error)
			close(done)
			return done, g.mergeThin(ctx, cow.Name, why)
		}
		return nil, fmt.Errorf("%s/%s is no snapshot", next.Name, name)
	}
	for _, s := range next.SnapshotsOf(seg.Origin) {
		if s.Merging && s != seg {
			return nil, fmt.Errorf("%s is being merged into %s already", s.COW, seg.Origin)
		}
	}
	if err := g.idle(cow); err != nil {
		return nil, err
	}
	if seg.Merging {
		// Activation goes on with it.
		n, err := g.activate(g.g.VG.LV(seg.Origin))
		if err != nil {
			return nil, err
		}
		defer g.deactivate(n)
		return n.merged, nil
	}
	seg.Merging = true
	dropImported(next.LV(seg.Origin))
	hidden.SetStatus("VISIBLE", false)
	origin := g.g.VG.LV(seg.Origin)
	n, err := g.activate(origin)
	if err != nil {
		return nil, err
	}
	defer g.deactivate(n)
	if !n.snaps[cow.ID].Usage().Valid {
		return nil, fmt.Errorf("cannot merge %s/%s: %w", next.Name, name, snap.ErrInvalid)
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return nil, fmt.Errorf("merging %s: %w: leases on its origin are open (%w)", name, blockdev.ErrInUse, err)
	}
	if err := g.commit(next, why); err != nil {
		f.Thaw(nil)
		return nil, err
	}
	err = n.set.StartMerge(n.snaps[cow.ID])
	f.Thaw(n.set.Origin())
	if err != nil {
		return nil, err
	}
	g.mergeInBackground(n)
	return n.merged, nil
}

func (g *Group) lvByID(id ondisk.UUID) *meta.LV {
	for _, lv := range g.g.VG.LVs {
		if lv.ID == id {
			return lv
		}
	}
	return nil
}

// mergeInBackground moves the chunks; the origin stays active meanwhile. g.mu
// is held.
func (g *Group) mergeInBackground(n *node) {
	done := make(chan error, 1)
	n.merged = done
	n.users++
	n.background++
	g.background.Add(1)
	go func() {
		defer g.background.Done()
		defer close(done)
		err := g.runMerge(n)
		g.mu.Lock()
		n.background--
		err = errors.Join(err, g.deactivate(n))
		g.mu.Unlock()
		if err != nil {
			done <- err
			g.cfg.notice("merging into %s: %v", n.name, err)
		}
	}()
}

// runMerge does the steps until the snapshot is empty, and takes it away. It
// ends early when the group is closed, and goes on when it is opened again.
func (g *Group) runMerge(n *node) error {
	for done := false; !done; {
		select {
		case <-g.stop:
			return nil
		default:
		}
		var err error
		if done, err = n.set.MergeStep(); err != nil {
			return err
		}
	}
	for {
		select {
		case <-g.stop:
			return nil
		default:
		}
		if done, err := g.endMerge(n); done || err != nil {
			return err
		}
	}
}

// endMerge takes the empty snapshot away; done is false when leases were open
// for too long to keep everybody else waiting.
func (g *Group) endMerge(n *node) (done bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return true, nil
	}
	origin := g.lvByID(n.id)
	next := g.g.VG.Clone()
	var cow *meta.LV
	for _, lv := range g.g.VG.LVs {
		for _, s := range lv.Segments {
			if s.Type == meta.Snapshot && s.Merging && s.Origin == origin.Name {
				cow = g.g.VG.LV(s.COW)
				next.RemoveLV(next.LV(lv.Name))
				next.RemoveLV(next.LV(s.COW))
			}
		}
	}
	if cow == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return false, nil
	}
	if err := g.commit(next, "merge of snapshot "+cow.Name+" is complete"); err != nil {
		f.Thaw(nil)
		return true, err
	}
	return true, g.detach(n, cow.ID, f)
}
