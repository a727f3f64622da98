package lvm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// moveRun bounds how much is copied while the writes of one volume wait, bytes.
const moveRun = 32 << 20

// mover is the part of a Group that moves extents. The group's mu is held.
type mover struct {
	md  *metadata
	act *activeSet
}

// MoveProgress is told how many of the extents have moved.
type MoveProgress func(done, total uint64)

// Move is pvmove: it takes extents off a PV while the volumes on it are in use.
// Each step copies a run of extents, with the writes of that volume held for as
// long as the copy takes, and then commits metadata in which the run lies at
// its new place. So every state on disk is an ordinary one: after a crash, what
// has moved has moved, and calling Move again does the rest.
//
// from picks the extents (Len 0: to the end of the PV); only limits it to one
// volume unless ""; to are the PVs to use, any other if empty.
func (g *Group) Move(ctx context.Context, from vg.Range, only string, to []vg.Range, policy string, progress MoveProgress, why string) error {
	if len(to) > 0 {
		if to = outside(to, from); len(to) == 0 {
			return fmt.Errorf("the destination is what is to be moved: %w", vg.ErrNoExtents)
		}
	}
	var done, total uint64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.mu.Lock()
		left := toMove(g.md.group.VG, from, only)
		if total == 0 {
			if total = left; total == 0 {
				path := devicePath(g.md.group, from.PV)
				g.mu.Unlock()
				return fmt.Errorf("no data to move on %s", path)
			}
		}
		var n uint64
		var err error
		if left > 0 {
			n, err = g.moves.one(ctx, from, only, to, policy, why)
		}
		g.mu.Unlock()
		if err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		if done += n; progress != nil {
			progress(done, total)
		}
	}
}

// devicePath is where the physical volume of a name in the metadata lies.
func devicePath(x *vg.Group, name string) string {
	for _, pv := range x.VG.PVs {
		if d := x.Disks[pv.ID]; pv.Name == name && d != nil {
			return d.Path
		}
	}
	return name
}

// overlap clips the extents of an area to the range.
func overlap(r vg.Range, off, n uint64) (lo, hi uint64) {
	lo, hi = max(off, r.Off), off+n
	if r.Len != 0 {
		hi = min(hi, r.Off+r.Len)
	}
	return lo, max(lo, hi)
}

// outside takes from to what is to be moved: it would never end there.
func outside(to []vg.Range, from vg.Range) []vg.Range {
	end := func(r vg.Range) uint64 {
		if r.Len == 0 {
			return math.MaxUint64
		}
		return r.Off + r.Len
	}
	var out []vg.Range
	for _, r := range to {
		if r.PV != from.PV {
			out = append(out, r)
			continue
		}
		if r.Off < from.Off {
			out = append(out, vg.Range{PV: r.PV, Off: r.Off, Len: min(end(r), from.Off) - r.Off})
		}
		if lo := max(r.Off, end(from)); lo < end(r) {
			b := vg.Range{PV: r.PV, Off: lo}
			if r.Len != 0 {
				b.Len = end(r) - lo
			}
			out = append(out, b)
		}
	}
	return out
}

// toMove counts the extents that are left to move.
func toMove(v *meta.VG, from vg.Range, only string) (n uint64) {
	for _, lv := range v.LVs {
		if only != "" && lv.Name != only {
			continue
		}
		for _, s := range lv.Segments {
			for _, a := range s.Stripes {
				if a.Name == from.PV {
					lo, hi := overlap(from, a.Off, s.AreaLen())
					n += hi - lo
				}
			}
		}
	}
	return n
}

// one moves the first run that is left.
func (mv *mover) one(ctx context.Context, from vg.Range, only string, to []vg.Range, policy, why string) (uint64, error) {
	next := mv.md.group.VG.Clone()
	for _, lv := range next.LVs {
		if only != "" && lv.Name != only {
			continue
		}
		for si, s := range lv.Segments {
			for ai, a := range s.Stripes {
				if a.Name != from.PV {
					continue
				}
				lo, hi := overlap(from, a.Off, s.AreaLen())
				if lo == hi {
					continue
				}
				return mv.area(ctx, next, lv, si, ai, lo-a.Off, hi-lo, to, policy, why)
			}
		}
	}
	return 0, errors.New("nothing is left to move")
}

// area moves up to n extents, from extent skip of one area on.
func (mv *mover) area(ctx context.Context, next *meta.VG, lv *meta.LV, si, ai int, skip, n uint64, to []vg.Range, policy, why string) (uint64, error) {
	extent := int64(next.ExtentSize) * ondisk.SectorSize
	n = min(n, max(1, uint64(moveRun/extent)))
	src := lv.Segments[si].Stripes[ai]
	avoid := map[string]bool{src.Name: true}
	for i, a := range lv.Segments[si].Stripes {
		if i != ai && policy != "anywhere" {
			avoid[a.Name] = true // the stripes of a segment stay on different PVs
		}
	}
	if len(to) > 0 && policy == "anywhere" {
		delete(avoid, src.Name)
	}
	segs, err := vg.Allocate(next, vg.Request{Extents: n, Policy: policy, From: to, Avoid: avoid})
	if err != nil {
		return 0, err
	}
	n = segs[0].Count // what does not fit here is moved by the next step
	dst := segs[0].Stripes[0]
	seg := splitSegment(lv, si, skip, n)
	seg.Stripes[ai] = dst
	if err := next.Check(); err != nil {
		return 0, err
	}
	return n, mv.relocate(ctx, next, lv, src, skip, dst, n*uint64(extent), extent, why)
}

// relocate copies, commits and switches.
func (mv *mover) relocate(ctx context.Context, next *meta.VG, lv *meta.LV, src meta.Area, skip uint64, dst meta.Area, bytes uint64, extent int64, why string) error {
	node, err := mv.act.activate(mv.md.group.VG.LV(lv.Name))
	if err != nil {
		return err
	}
	defer mv.act.deactivate(node)
	if node.phys == nil {
		return fmt.Errorf("%s has no extents of its own", lv.Name)
	}
	src.Off += skip
	a, err := mv.act.place(mv.md.group.VG, node, src, extent)
	if err != nil {
		return err
	}
	b, err := mv.act.place(next, node, dst, extent)
	if err != nil {
		return err
	}
	f, err := node.phys.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("moving %s: %w", lv.Name, err)
	}
	var t blockdev.Device
	// Flushes of the volume are about b from then on: what a has lost must not be forgotten.
	if err = a.Dev.Flush(); err == nil {
		err = copyRange(a.Dev, a.Off, b.Dev, b.Off, int64(bytes))
	}
	if err == nil {
		if err = b.Dev.Flush(); err == nil {
			if err = mv.md.commit(next, why); err == nil {
				t, err = mv.act.tableFor(mv.md.group.VG, node, mv.md.group.VG.LV(lv.Name))
			}
		}
	}
	if err != nil {
		f.Thaw(nil)
		return fmt.Errorf("moving %s: %w", lv.Name, err)
	}
	f.Thaw(t)
	// The old extents are free in the metadata; nobody may get them while a
	// lease still reads there.
	return f.Drain(context.WithoutCancel(ctx))
}

// splitSegment cuts a segment so that n extents of each area, from skip on,
// are a segment of their own, and returns it.
func splitSegment(lv *meta.LV, si int, skip, n uint64) *meta.Segment {
	s := lv.Segments[si]
	total, k := s.AreaLen(), uint64(len(s.Stripes))
	var out []*meta.Segment
	var mid *meta.Segment
	for _, c := range []struct{ off, n uint64 }{{0, skip}, {skip, n}, {skip + n, total - skip - n}} {
		if c.n == 0 {
			continue
		}
		p := s.Copy()
		p.Start, p.Count = s.Start+c.off*k, c.n*k
		for i := range p.Stripes {
			p.Stripes[i].Off += c.off
		}
		if c.off == skip && c.n == n {
			mid = p
		}
		out = append(out, p)
	}
	lv.Segments = append(lv.Segments[:si:si], append(out, lv.Segments[si+1:]...)...)
	return mid
}

// copyRange copies n bytes between devices through a buffer.
func copyRange(src blockdev.Device, from int64, dst blockdev.Device, to, n int64) error {
	buf := make([]byte, min(n, 1<<20))
	for n > 0 {
		p := buf[:min(int64(len(buf)), n)]
		if _, err := src.ReadAt(p, from); err != nil {
			return err
		}
		if _, err := dst.WriteAt(p, to); err != nil {
			return err
		}
		from, to, n = from+int64(len(p)), to+int64(len(p)), n-int64(len(p))
	}
	return nil
}
