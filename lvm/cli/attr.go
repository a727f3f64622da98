package cli

import (
	"slices"
	"strings"

	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// liveLV is what only an open group knows of a volume.
type liveLV struct {
	active     bool
	open       bool
	data, meta *float64 // percent
	invalid    bool
	known      bool // the rest was asked for
	full       bool // a pool without free blocks
	failed     bool // a pool that takes no changes any more
}

// liveGroup asks a group that is open, in this target or for this command;
// reports on devices alone know nothing of that.
type liveGroup struct{ g *lvm.Group }

func (a *app) live(group string) liveGroup {
	if a.env.Manager != nil {
		return liveGroup{a.env.Manager.Group(group)}
	}
	return liveGroup{}
}

// of is what the running system knows of lv; without a running group nothing is known,
// and columns are blank as lvm2's.
func (l liveGroup) of(lv *meta.LV, v *meta.VG) *liveLV {
	out := &liveLV{}
	if l.g == nil {
		return out
	}
	out.known = true
	out.active, out.open = l.g.IsActive(lv.Name), l.g.IsOpen(lv.Name)
	if !out.active {
		return out // as lvm2, which asks the kernel: blank
	}
	set := func(p **float64, f float64) { *p = &f }
	if _, s := v.SnapshotSegment(lv.Name); s != nil && !s.Merging {
		if u, err := l.g.SnapshotUsage(lv.Name); err == nil {
			set(&out.data, u.Percent())
			out.invalid = !u.Valid
		}
		return out
	}
	if len(lv.Segments) == 0 {
		return out
	}
	switch s := lv.Segments[0]; s.Type {
	case meta.ThinPool:
		if u, err := l.g.PoolUsage(lv.Name); err == nil && u.DataBlocks > 0 {
			set(&out.data, float64(u.DataUsed)*100/float64(u.DataBlocks))
			set(&out.meta, float64(u.MetaUsed)*100/float64(u.MetaBlocks))
			out.full, out.failed = u.DataUsed == u.DataBlocks, u.Failed
		}
	case meta.Thin:
		if n, err := l.g.Mapped(lv.Name); err == nil {
			set(&out.data, float64(n)*100/float64(lv.Extents()*v.ExtentSize*512))
		}
	}
	return out
}

// lvAttr is lvm2's ten letters; see lvs(8).
func lvAttr(r *row) string {
	v, lv := r.x.VG, r.lv
	pool := poolOf(v, segOf(r))
	return string([]byte{
		0: lvType(v, lv, segOf(r)),
		1: lvPermissions(lv),
		2: map[string]byte{"": 'i', "contiguous": 'c', "cling": 'l', "normal": 'n', "anywhere": 'a'}[lv.Alloc],
		3: '-', // a fixed minor number, which volumes here do not have
		4: lvState(r.live),
		5: letter(r.live.open, 'o'),
		6: lvTarget(v, lv, pool),
		7: letter(pool != nil && pool.ZeroNew, 'z'),
		8: letter(isPartial(r.x, lv), 'p'),
		9: letter(lv.Is("ACTIVATION_SKIP"), 'k'),
	})
}

// letter is c where something holds, and lvm2's dash where it does not.
func letter(holds bool, c byte) byte {
	if holds {
		return c
	}
	return '-'
}

// lvType is the first letter: what kind of volume it is, or what part it plays in another one.
func lvType(v *meta.VG, lv *meta.LV, seg *meta.Segment) byte {
	_, snapshot := v.SnapshotSegment(lv.Name)
	snapshots := v.SnapshotsOf(lv.Name)
	merging := slices.ContainsFunc(snapshots, func(s *meta.Segment) bool { return s.Merging })
	switch {
	case strings.HasSuffix(lv.Name, "_pmspare") && !lv.Visible() || isPoolMetadata(v, lv):
		return 'e'
	case isPoolData(v, lv):
		return 'T'
	case snapshot != nil && snapshot.Merging:
		return 'S'
	case snapshot != nil:
		return 's'
	case merging:
		return 'O'
	case len(snapshots) > 0:
		return 'o'
	case seg != nil && seg.Type == meta.ThinPool:
		return 't'
	case seg != nil && seg.Type == meta.Thin:
		return 'V'
	}
	return '-'
}

func lvPermissions(lv *meta.LV) byte {
	if lv.Is("WRITE") {
		return 'w'
	}
	return 'r'
}

func lvState(l *liveLV) byte {
	switch {
	case l.invalid:
		return 'I'
	case l.active:
		return 'a'
	}
	return '-'
}

// lvTarget is the seventh letter: which of the kernel's targets would serve the volume.
func lvTarget(v *meta.VG, lv *meta.LV, pool *meta.Segment) byte {
	_, snapshot := v.SnapshotSegment(lv.Name)
	switch {
	case pool != nil:
		return 't'
	case snapshot != nil || len(v.SnapshotsOf(lv.Name)) > 0:
		return 's'
	}
	return '-'
}

// poolOf is the segment of the thin pool that seg is, or lies in; nil: in none.
func poolOf(v *meta.VG, seg *meta.Segment) *meta.Segment {
	switch {
	case seg == nil:
		return nil
	case seg.Type == meta.ThinPool:
		return seg
	case seg.Type == meta.Thin:
		if p := v.LV(seg.Pool); p != nil && len(p.Segments) > 0 {
			return p.Segments[0]
		}
	}
	return nil
}

// isPartial reports whether a disk that the volume lies on is missing.
func isPartial(x *vg.Group, lv *meta.LV) bool {
	for _, s := range lv.Segments {
		for _, a := range s.Stripes {
			if pv := x.VG.PV(a.Name); pv != nil && x.Disks[pv.ID] == nil {
				return true
			}
		}
	}
	return false
}

// isPoolMetadata and isPoolData report whether lv is that of a thin pool.
func isPoolMetadata(v *meta.VG, lv *meta.LV) bool {
	return inPool(v, func(pool *meta.Segment) bool { return pool.Metadata == lv.Name })
}

func isPoolData(v *meta.VG, lv *meta.LV) bool {
	return inPool(v, func(pool *meta.Segment) bool { return pool.Pool == lv.Name })
}

// inPool reports whether there is a thin pool for which match holds.
func inPool(v *meta.VG, match func(pool *meta.Segment) bool) bool {
	return slices.ContainsFunc(v.LVs, func(lv *meta.LV) bool {
		return slices.ContainsFunc(lv.Segments, func(s *meta.Segment) bool { return s.Type == meta.ThinPool && match(s) })
	})
}

// vgAttr is lvm2's six letters; see vgs(8).
func vgAttr(x *vg.Group) string {
	b := []byte("------")
	b[0] = 'r'
	if x.VG.Is("WRITE") {
		b[0] = 'w'
	}
	if x.VG.Is("RESIZEABLE") {
		b[1] = 'z'
	}
	if x.VG.Is("EXPORTED") {
		b[2] = 'x'
	}
	if len(x.Disks) < len(x.VG.PVs) {
		b[3] = 'p'
	}
	b[4] = map[string]byte{"": 'n', "normal": 'n', "contiguous": 'c', "cling": 'l', "anywhere": 'a'}[x.VG.Alloc]
	return string(b)
}
