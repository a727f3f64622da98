package lvm

import (
	"context"
	"errors"
	"fmt"
	"math"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/internal/table"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// moveRun bounds how much is copied while the writes of one volume wait, bytes.
const moveRun = 32 << 20

// MoveOptions say which extents Move takes where.
type MoveOptions struct {
	From   vg.Range   // extents of a PV; Len 0: to its end
	Volume string     // of this one only; "": of all
	To     []vg.Range // the PVs to use; nil: any other
	Policy string     // of allocation, see vg.Allocate
	// Progress is told how many of the extents have moved; nil: nobody is.
	Progress func(done, total uint64)
}

// Move is pvmove: it takes extents off a PV while the volumes on it are in use.
// Each step copies a run of extents, with the writes of that volume held for as
// long as the copy takes, and then commits metadata in which the run lies at
// its new place. So every state on disk is an ordinary one: after a crash, what
// has moved has moved, and calling Move again does the rest.
func (g *Group) Move(ctx context.Context, o MoveOptions, why string) error {
	if len(o.To) > 0 {
		if o.To = outside(o.To, o.From); len(o.To) == 0 {
			return fmt.Errorf("the destination is what is to be moved: %w", vg.ErrNoExtents)
		}
	}
	var done, total uint64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		g.mu.Lock()
		left := o.extents(g.md.group.VG)
		if total == 0 {
			if total = left; total == 0 {
				path := devicePath(g.md.group, o.From.PV)
				g.mu.Unlock()
				return fmt.Errorf("no data to move on %s", path)
			}
		}
		var n uint64
		var err error
		if left > 0 {
			n, err = g.moves.step(ctx, &o, why)
		}
		g.mu.Unlock()
		if err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		if done += n; o.Progress != nil {
			o.Progress(done, total)
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

// run is a row of extents in one area of a segment.
type run struct {
	lv            *meta.LV
	segment, area int
	skip, n       uint64 // where in the area, how many
}

// runs are what is to be moved, an area at a time.
func (o *MoveOptions) runs(v *meta.VG) (all []run) {
	for _, lv := range v.LVs {
		if o.Volume != "" && lv.Name != o.Volume {
			continue
		}
		for si, s := range lv.Segments {
			for ai, a := range s.Stripes {
				if a.Name != o.From.PV {
					continue
				}
				if lo, hi := overlap(o.From, a.Off, s.AreaLen()); lo < hi {
					all = append(all, run{lv, si, ai, lo - a.Off, hi - lo})
				}
			}
		}
	}
	return all
}

// extents counts what is to be moved.
func (o *MoveOptions) extents(v *meta.VG) (n uint64) {
	for _, r := range o.runs(v) {
		n += r.n
	}
	return n
}

// allocate finds a place for the first extents of r, as many as are moved in one step and fit there.
func (o *MoveOptions) allocate(v *meta.VG, r run) (place meta.Area, n uint64, err error) {
	stripes := r.lv.Segments[r.segment].Stripes
	src := stripes[r.area].Name
	avoid := map[string]bool{src: true}
	for i, a := range stripes {
		if i != r.area && o.Policy != "anywhere" {
			avoid[a.Name] = true // the stripes of a segment stay on different PVs
		}
	}
	if len(o.To) > 0 && o.Policy == "anywhere" {
		delete(avoid, src)
	}
	most := max(1, moveRun/(v.ExtentSize*ondisk.SectorSize))
	segs, err := vg.Allocate(v, vg.Request{Extents: min(r.n, most), Policy: o.Policy, From: o.To, Avoid: avoid})
	if err != nil {
		return meta.Area{}, 0, err
	}
	return segs[0].Stripes[0], segs[0].Count, nil
}

// mover is the part of a Group that moves extents. The group's mu is held.
type mover struct {
	md  *metadata
	act *activeSet
}

// move is one step: extents of a volume, where they are, and where they will be.
type move struct {
	volume   string
	from, to meta.Area
	n        uint64
	next     *meta.VG // the metadata in which they are there
}

// step moves some of the extents that are left, and says how many.
func (mv *mover) step(ctx context.Context, o *MoveOptions, why string) (uint64, error) {
	next := mv.md.group.VG.Clone()
	left := o.runs(next)
	if len(left) == 0 {
		return 0, errors.New("nothing is left to move")
	}
	r := left[0]
	to, n, err := o.allocate(next, r)
	if err != nil {
		return 0, err
	}
	seg := splitSegment(r.lv, r.segment, r.skip, n)
	m := move{volume: r.lv.Name, from: seg.Stripes[r.area], to: to, n: n, next: next}
	seg.Stripes[r.area] = to
	if err := next.Check(); err != nil {
		return 0, err
	}
	if err := mv.carryOut(ctx, &m, why); err != nil {
		return 0, err
	}
	return n, nil
}

// carryOut copies the extents while writes of the volume are held, and has it use their new place.
func (mv *mover) carryOut(ctx context.Context, m *move, why string) error {
	node, err := mv.act.activate(mv.md.group.VG.LV(m.volume))
	if err != nil {
		return err
	}
	defer mv.act.deactivate(node)
	if node.phys == nil {
		return fmt.Errorf("%s has no extents of its own", m.volume)
	}
	extent := int64(m.next.ExtentSize) * ondisk.SectorSize
	src, err := mv.act.place(mv.md.group.VG, node, m.from, extent)
	if err != nil {
		return err
	}
	dst, err := mv.act.place(m.next, node, m.to, extent)
	if err != nil {
		return err
	}
	f, err := node.phys.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("moving %s: %w", m.volume, err)
	}
	t, err := mv.commit(node, src, dst, m, why)
	if err != nil {
		f.Thaw(nil)
		return fmt.Errorf("moving %s: %w", m.volume, err)
	}
	was := node.top.Info()
	f.Thaw(t)
	if node.top != node.phys {
		node.top.Announce(was) // an origin: other disks may not do what its old ones did
	}
	// The old extents are free in the metadata; nobody may get them while a
	// lease still reads there.
	return f.Drain(context.WithoutCancel(ctx))
}

// commit copies, commits, and returns the table of the volume from then on.
func (mv *mover) commit(node *node, src, dst table.Stripe, m *move, why string) (blockdev.Device, error) {
	// Flushes of the volume are about dst from then on: what src has lost must not be forgotten.
	if err := src.Dev.Flush(); err != nil {
		return nil, err
	}
	if err := copyRange(src.Dev, src.Off, dst.Dev, dst.Off, int64(m.n*m.next.ExtentSize*ondisk.SectorSize)); err != nil {
		return nil, err
	}
	if err := dst.Dev.Flush(); err != nil {
		return nil, err
	}
	if err := mv.md.commit(m.next, why); err != nil {
		return nil, err
	}
	return mv.act.tableFor(mv.md.group.VG, node, mv.md.group.VG.LV(m.volume))
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
