package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// snapshots is the part of a Group that has the classic snapshots: an origin is active
// with all of its snapshots. The group's mu is held but where a merge goes on in the
// background; that takes it between its steps.
type snapshots struct {
	md  *metadata
	act *activeSet

	mu         sync.Locker // the group's
	background *sync.WaitGroup
	stop       <-chan struct{} // closed when merges are to stop
	steps      sync.RWMutex    // read-locked by each step of a merge; taken before mu
}

// newSet makes the set of an origin's snapshots.
func (ss *snapshots) newSet(n *node) *snap.Set {
	set := snap.NewSet(n.phys, ss.md.cfg.Pool, func(s string) { ss.md.cfg.notice("%s", s) })
	set.OnLost(func(s *snap.Snapshot) <-chan error {
		done := make(chan error, 1)
		ss.background.Go(func() { done <- ss.tagLost(n, s) })
		return done
	})
	return set
}

// tagLost takes down in the group that a snapshot is lost. The disk that failed its
// store may have a part of the group's metadata, too.
func (ss *snapshots) tagLost(n *node, s *snap.Snapshot) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	next := ss.md.group.VG.Clone()
	for id, o := range n.snaps {
		if lv := ss.md.byID(id); o == s && lv != nil {
			next.LV(lv.Name).SetTag(lostTag, true)
			return ss.md.commitBy(ss.md.group.CommitWherePossible, next, "snapshot "+lv.Name+" is lost")
		}
	}
	return nil // the snapshot has been removed
}

// buildOrigin puts the snapshots over an origin whose table is active. All of
// them: a write that missed one would destroy it.
func (ss *snapshots) buildOrigin(n *node, lv *meta.LV) error {
	set := ss.newSet(n)
	n.snaps = map[ondisk.UUID]*snap.Snapshot{}
	var merging *snap.Snapshot
	for _, seg := range ss.md.group.VG.SnapshotsOf(lv.Name) {
		cow := ss.md.group.VG.LV(seg.COW)
		st, err := ss.openStore(ss.md.group.VG, n, cow, seg)
		if err != nil {
			return err
		}
		s := set.Add(cow.Name, st, ss.md.bytes(seg.Count))
		n.snaps[cow.ID] = s
		if seg.Merging {
			merging = s
		}
	}
	n.set = set
	n.top = swap.New(set.Origin(), ss.md.cfg.Pool)
	if merging != nil {
		if err := set.StartMerge(merging); err != nil {
			ss.md.cfg.notice("logical volume %s/%s: the merge of its snapshot cannot go on: %v", ss.md.group.VG.Name, lv.Name, err)
			return nil
		}
		ss.mergeInBackground(n)
	}
	return nil
}

// openStore opens a snapshot's store. Its node, the LV as it would be if it were
// no snapshot, is kept by the origin.
func (ss *snapshots) openStore(v *meta.VG, origin *node, cow *meta.LV, seg *meta.Segment) (*snap.Store, error) {
	c := &node{id: cow.ID, name: cow.Name, users: 1}
	t, err := ss.act.tableFor(v, c, cow)
	if err != nil {
		ss.act.dropAll(c.on)
		return nil, err
	}
	c.phys = swap.New(t, ss.md.cfg.Pool)
	c.top = c.phys
	st, err := snap.OpenStore(c.phys, int64(seg.ChunkSize)*ondisk.SectorSize)
	if err != nil {
		ss.act.dropAll(c.on)
		return nil, fmt.Errorf("snapshot %s: %w", cow.Name, err)
	}
	if slices.Contains(cow.Tags, lostTag) {
		if err := st.Invalidate(); err != nil {
			ss.md.cfg.notice("snapshot %s is invalid, and its store still cannot take that down: %v", cow.Name, err)
		}
	}
	if origin.stores == nil {
		origin.stores = map[ondisk.UUID]*node{}
	}
	origin.stores[cow.ID] = c
	return st, nil
}

// buildSnapshot activates a snapshot: its origin does the work.
func (ss *snapshots) buildSnapshot(n *node, lv *meta.LV, seg *meta.Segment) error {
	if seg.Merging {
		return fmt.Errorf("it is being merged into %s", seg.Origin)
	}
	o, err := ss.act.activate(ss.md.group.VG.LV(seg.Origin))
	if err != nil {
		return err
	}
	n.on = append(n.on, o)
	n.snap = o.snaps[lv.ID]
	n.snap.SetReadOnly(!lv.Is("WRITE"))
	n.phys = o.stores[lv.ID].phys
	n.top = swap.New(n.snap, ss.md.cfg.Pool)
	return nil
}

// SnapshotOptions describe a classic snapshot.
type SnapshotOptions struct {
	Origin  string
	Name    string     // "" picks lvol0, lvol1, ...
	Extents uint64     // of the store
	Chunk   int64      // bytes; 0 is 4096
	Policy  string     // as that of CreateOptions, like From
	From    []vg.Range // where the store may lie
	Tags    []string

	ReadOnly bool
}

// Snapshot is lvcreate -s on a volume that is not thin. It waits, at most until
// ctx ends, for write leases on the origin.
func (g *Group) Snapshot(ctx context.Context, o SnapshotOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.snaps.create(ctx, o, why)
}

// create makes a classic snapshot: a store, and what ties it to the origin.
func (ss *snapshots) create(ctx context.Context, o SnapshotOptions, why string) error {
	next := ss.md.group.VG.Clone()
	origin, err := lookup(next, o.Origin)
	if err != nil {
		return err
	}
	if err := plain(next, origin, "snapshot"); err != nil {
		return err
	}
	if err := Whole(next, origin); err != nil { // nothing would tell it of the snapshot
		return err
	}
	if _, s := next.SnapshotSegment(o.Origin); s != nil {
		return fmt.Errorf("cannot snapshot %s/%s: it is a snapshot itself; use a thin volume for snapshots of snapshots", next.Name, o.Origin)
	}
	if !mayBeOrigin(origin) {
		return fmt.Errorf("cannot snapshot %s/%s in this way: it is no linear or striped volume; a thin one is snapshotted without a size", next.Name, o.Origin)
	}
	// It would show what is below the merge, and not what the origin does.
	if err := notMerging(next, o.Origin, "snapshot"); err != nil {
		return err
	}
	if o.Chunk == 0 {
		o.Chunk = snap.DefaultChunk
	}
	if o.Chunk < 4096 || o.Chunk > 512<<10 || o.Chunk&(o.Chunk-1) != 0 {
		return fmt.Errorf("snapshot chunk size of %d bytes: must be a power of two from 4 KiB to 512 KiB", o.Chunk)
	}
	cow, err := ss.md.newLV(next, o.Name)
	if err != nil {
		return err
	}
	cow.SetStatus("VISIBLE", false)
	cow.SetStatus("WRITE", !o.ReadOnly)
	cow.Tags, cow.Alloc = o.Tags, policyWord(o.Policy)
	segs, err := vg.Allocate(next, vg.Request{Extents: o.Extents, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	vg.Append(cow, segs)
	hidden := ss.md.bareLV(freeName(next, "snapshot"), true)
	seg := &meta.Segment{Count: origin.Extents(), Type: meta.Snapshot, ChunkSize: uint64(o.Chunk / ondisk.SectorSize), Origin: o.Origin, COW: cow.Name}
	hidden.Segments = []*meta.Segment{seg}
	next.LVs = append(next.LVs, cow, hidden)
	if err := ss.act.zeroNew(next, cow, 4096); err != nil {
		return err
	}
	n := ss.act.nodes[origin.ID]
	if n == nil {
		return ss.md.commit(next, why)
	}
	return ss.createLive(ctx, n, next, cow, seg, why)
}

// createLive adds a snapshot to an origin that is in use. All that can fail
// is done before the metadata says that there is a snapshot.
func (ss *snapshots) createLive(ctx context.Context, n *node, next *meta.VG, cow *meta.LV, seg *meta.Segment, why string) error {
	st, err := ss.openStore(next, n, cow, seg)
	if err != nil {
		return err
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		err = fmt.Errorf("snapshot of %s: %w: write leases are open (%w)", n.name, blockdev.ErrInUse, err)
		return errors.Join(err, ss.act.dropStore(n, cow.ID))
	}
	// What was acknowledged belongs to the snapshot.
	if err = f.Inner().Flush(); err == nil {
		err = ss.md.commit(next, why)
	}
	if err != nil {
		f.Thaw(nil)
		return errors.Join(err, ss.act.dropStore(n, cow.ID))
	}
	if n.set == nil {
		n.phys = swap.New(f.Inner(), ss.md.cfg.Pool)
		n.set = ss.newSet(n)
		n.snaps = map[ondisk.UUID]*snap.Snapshot{}
	}
	n.snaps[cow.ID] = n.set.Add(cow.Name, st, ss.md.bytes(seg.Count))
	f.Thaw(n.set.Origin())
	return nil
}

// notMerging refuses an origin, or a snapshot, while a snapshot is merged into it, or it is merged.
func notMerging(v *meta.VG, name, verb string) error {
	segs := v.SnapshotsOf(name)
	if _, seg := v.SnapshotSegment(name); seg != nil {
		segs = append(segs, seg)
	}
	for _, s := range segs {
		if s.Merging {
			return fmt.Errorf("cannot %s %s/%s: %s is being merged into %s", verb, v.Name, name, s.COW, s.Origin)
		}
	}
	return nil
}

func freeName(v *meta.VG, prefix string) string {
	for i := 0; ; i++ {
		if n := fmt.Sprintf("%s%d", prefix, i); v.LV(n) == nil {
			return n
		}
	}
}

// remove takes a snapshot out of the metadata and from its origin.
func (ss *snapshots) remove(ctx context.Context, cow *meta.LV, why string) error {
	hidden, seg := ss.md.group.VG.SnapshotSegment(cow.Name)
	if err := ss.act.idle(cow); err != nil {
		return err
	}
	origin := ss.md.group.VG.LV(seg.Origin)
	if seg.Merging { // the origin needs it, unless it is lost
		o, err := ss.act.activate(origin)
		if err != nil {
			return err
		}
		defer ss.act.deactivate(o)
		if o.snaps[cow.ID].Usage().Valid {
			return notMerging(ss.md.group.VG, cow.Name, "remove")
		}
	}
	next := ss.md.group.VG.Clone()
	next.RemoveLV(next.LV(hidden.Name))
	next.RemoveLV(next.LV(cow.Name))
	n := ss.act.nodes[origin.ID]
	if n == nil {
		return ss.md.commit(next, why)
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("removing snapshot %s: %w: write leases on its origin are open (%w)", cow.Name, blockdev.ErrInUse, err)
	}
	if err := ss.md.commit(next, why); err != nil {
		f.Thaw(nil)
		return err
	}
	return ss.detach(n, cow.ID, f)
}

// detach takes a snapshot out of an active, frozen origin.
func (ss *snapshots) detach(n *node, cow ondisk.UUID, f *swap.Frozen) error {
	left := n.set.Remove(n.snaps[cow])
	delete(n.snaps, cow)
	if left == 0 {
		f.Thaw(n.phys.Inner())
		n.phys, n.set = n.top, nil
	} else {
		f.Thaw(n.set.Origin())
	}
	err := f.Drain(context.Background())
	return errors.Join(err, ss.act.dropStore(n, cow))
}

// reduceStore makes the store of a snapshot smaller, by no more than is free in
// it.
func (ss *snapshots) reduceStore(ctx context.Context, next *meta.VG, cow *meta.LV, seg *meta.Segment, extents uint64, why string) error {
	if seg.Merging {
		return fmt.Errorf("cannot reduce %s/%s: it is being merged into %s", next.Name, cow.Name, seg.Origin)
	}
	o, err := ss.act.activate(ss.md.group.VG.LV(seg.Origin))
	if err != nil {
		return err
	}
	defer ss.act.deactivate(o)
	vg.Truncate(cow, extents)
	s := o.snaps[cow.ID]
	shrinking, err := s.Shrink(ss.md.bytes(cow.Extents()))
	if err != nil {
		return fmt.Errorf("cannot reduce %s/%s: %w", next.Name, cow.Name, err)
	}
	defer shrinking.End()
	return ss.act.shrinkNode(ctx, o.stores[cow.ID], next, cow, why)
}

// Merge is lvconvert --merge of a snapshot. A classic one's origin shows the snapshot at
// once, and the chunks are moved in the background; a thin one's takes the snapshot's
// place. The snapshot must not be open. The returned channel closes when everything has
// been moved, with an error on it if that failed; it goes on at the next activation then.
func (g *Group) Merge(ctx context.Context, name, why string) (<-chan error, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	lv, err := lookup(g.md.group.VG, name)
	if err != nil {
		return nil, err
	}
	if _, seg := g.md.group.VG.SnapshotSegment(name); seg != nil {
		return g.snaps.merge(ctx, name, why)
	}
	if len(lv.Segments) > 0 && lv.Segments[0].Type == meta.Thin && lv.Segments[0].Origin != "" {
		done := make(chan error)
		close(done)
		return done, g.pools.merge(ctx, name, why)
	}
	return nil, fmt.Errorf("%s/%s is no snapshot", g.md.group.VG.Name, name)
}

// merge begins, or goes on with, the merge of a classic snapshot.
func (ss *snapshots) merge(ctx context.Context, name, why string) (<-chan error, error) {
	next := ss.md.group.VG.Clone()
	cow := next.LV(name)
	hidden, seg := next.SnapshotSegment(name)
	for _, s := range next.SnapshotsOf(seg.Origin) {
		if s.Merging && s != seg {
			return nil, fmt.Errorf("%s is being merged into %s already", s.COW, seg.Origin)
		}
	}
	if err := ss.act.idle(cow); err != nil {
		return nil, err
	}
	if seg.Merging {
		// Activation goes on with it.
		n, err := ss.act.activate(ss.md.group.VG.LV(seg.Origin))
		if err != nil {
			return nil, err
		}
		defer ss.act.deactivate(n)
		return n.merged, nil
	}
	seg.Merging = true
	dropImported(next.LV(seg.Origin))
	hidden.SetStatus("VISIBLE", false)
	origin := ss.md.group.VG.LV(seg.Origin)
	n, err := ss.act.activate(origin)
	if err != nil {
		return nil, err
	}
	defer ss.act.deactivate(n)
	if !n.snaps[cow.ID].Usage().Valid {
		return nil, fmt.Errorf("cannot merge %s/%s: %w", next.Name, name, snap.ErrInvalid)
	}
	// Until it is merged the origin is read and written there, in its own blocks.
	if s, o := n.snaps[cow.ID].Info().BlockSize, n.top.Info().BlockSize; s > o {
		return nil, fmt.Errorf("cannot merge %s/%s: it is on disks with blocks of %d bytes, and %s has blocks of %d", next.Name, name, s, seg.Origin, o)
	}
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return nil, fmt.Errorf("merging %s: %w: leases on its origin are open (%w)", name, blockdev.ErrInUse, err)
	}
	if err := ss.md.commit(next, why); err != nil {
		f.Thaw(nil)
		return nil, err
	}
	err = n.set.StartMerge(n.snaps[cow.ID])
	f.Thaw(n.set.Origin())
	if err != nil {
		return nil, err
	}
	ss.mergeInBackground(n)
	return n.merged, nil
}

// mergeInBackground moves the chunks; the origin stays active meanwhile.
func (ss *snapshots) mergeInBackground(n *node) {
	done := make(chan error, 1)
	n.merged = done
	n.users++
	n.background++
	ss.background.Add(1)
	go func() {
		defer ss.background.Done()
		defer close(done)
		err := ss.runMerge(n)
		ss.mu.Lock()
		n.background--
		err = errors.Join(err, ss.act.deactivate(n))
		name := n.name
		ss.mu.Unlock()
		if err != nil {
			done <- err
			ss.md.cfg.notice("merging into %s: %v", name, err)
		}
	}()
}

// runMerge does the steps until the snapshot is empty, and takes it away. It
// ends early when the group is closed, and goes on when it is opened again.
func (ss *snapshots) runMerge(n *node) error {
	for done := false; !done; {
		select {
		case <-ss.stop:
			return nil
		default:
		}
		var err error
		ss.steps.RLock()
		done, err = n.set.MergeStep()
		ss.steps.RUnlock()
		if err != nil {
			return err
		}
	}
	for {
		select {
		case <-ss.stop:
			return nil
		default:
		}
		if done, err := ss.endMerge(n); done || err != nil {
			return err
		}
	}
}

// endMerge takes the empty snapshot away; done is false when leases were open
// for too long to keep everybody else waiting.
func (ss *snapshots) endMerge(n *node) (done bool, err error) {
	ss.steps.RLock()
	defer ss.steps.RUnlock()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.md.closed {
		return true, nil
	}
	origin := ss.md.byID(n.id)
	next := ss.md.group.VG.Clone()
	var cow *meta.LV
	for _, lv := range ss.md.group.VG.LVs {
		for _, s := range lv.Segments {
			if s.Type == meta.Snapshot && s.Merging && s.Origin == origin.Name {
				cow = ss.md.group.VG.LV(s.COW)
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
	if err := ss.md.commit(next, "merge of snapshot "+cow.Name+" is complete"); err != nil {
		f.Thaw(nil)
		return true, err
	}
	return true, ss.detach(n, cow.ID, f)
}
