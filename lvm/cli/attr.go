package cli

import (
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
	b := []byte("----------")
	v, lv := r.x.VG, r.lv
	seg := segOf(r)
	_, snapSeg := v.SnapshotSegment(lv.Name)
	origin := v.SnapshotsOf(lv.Name)
	merging := false
	for _, s := range origin {
		merging = merging || s.Merging
	}
	var pool *meta.Segment
	if seg != nil && seg.Type == meta.ThinPool {
		pool = seg
	}
	switch {
	case strings.HasSuffix(lv.Name, "_pmspare") && !lv.Visible() || isPart(v, lv, true):
		b[0] = 'e'
	case isPart(v, lv, false):
		b[0] = 'T'
	case snapSeg != nil && snapSeg.Merging:
		b[0] = 'S'
	case snapSeg != nil:
		b[0] = 's'
	case merging:
		b[0] = 'O'
	case len(origin) > 0:
		b[0] = 'o'
	case pool != nil:
		b[0] = 't'
	case seg != nil && seg.Type == meta.Thin:
		b[0] = 'V'
	}
	b[1] = 'r'
	if lv.Is("WRITE") {
		b[1] = 'w'
	}
	b[2] = map[string]byte{"": 'i', "contiguous": 'c', "cling": 'l', "normal": 'n', "anywhere": 'a'}[lv.Alloc]
	if r.live.active {
		b[4] = 'a'
	}
	if r.live.open {
		b[5] = 'o'
	}
	if r.live.invalid {
		b[4] = 'I'
	}
	if pool == nil && seg != nil && seg.Type == meta.Thin {
		if p := v.LV(seg.Pool); p != nil && len(p.Segments) > 0 {
			pool = p.Segments[0]
		}
	}
	switch {
	case pool != nil:
		b[6] = 't'
	case snapSeg != nil || len(origin) > 0:
		b[6] = 's'
	}
	if pool != nil && pool.ZeroNew {
		b[7] = 'z'
	}
	for _, s := range lv.Segments {
		for _, a := range s.Stripes {
			if pv := v.PV(a.Name); pv != nil && r.x.Disks[pv.ID] == nil {
				b[8] = 'p'
			}
		}
	}
	if lv.Is("ACTIVATION_SKIP") {
		b[9] = 'k'
	}
	return string(b)
}

// isPart reports whether lv is the metadata or data volume of a pool.
func isPart(v *meta.VG, lv *meta.LV, metadata bool) bool {
	for _, o := range v.LVs {
		for _, s := range o.Segments {
			if s.Type == meta.ThinPool && (metadata && s.Metadata == lv.Name || !metadata && s.Pool == lv.Name) {
				return true
			}
		}
	}
	return false
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
