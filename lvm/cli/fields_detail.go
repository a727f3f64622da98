package cli

import (
	"strings"

	"softiser/lvm/meta"
)

// What lvm2 prints for a flag: its name, or nothing.
func word(on bool, s string) string {
	if on {
		return s
	}
	return ""
}

func lvStr(f func(v *meta.VG, lv *meta.LV) string) func(*row) string {
	return func(r *row) string { return f(r.x.VG, r.lv) }
}

// uuidOf is the UUID of the volume that f names.
func uuidOf(f func(v *meta.VG, lv *meta.LV) string) func(*row) string {
	return lvStr(func(v *meta.VG, lv *meta.LV) string {
		if o := v.LV(f(v, lv)); o != nil {
			return o.ID.String()
		}
		return ""
	})
}

func segment(lv *meta.LV, typ string) *meta.Segment {
	if len(lv.Segments) > 0 && lv.Segments[0].Type == typ {
		return lv.Segments[0]
	}
	return nil
}

func partOf(f func(*meta.Segment) string, typ string) func(*meta.VG, *meta.LV) string {
	return func(_ *meta.VG, lv *meta.LV) string {
		if s := segment(lv, typ); s != nil {
			return f(s)
		}
		return ""
	}
}

var detailFields = []field{
	{name: "origin_uuid", kind: "lv", width: 38, heading: "Origin UUID", help: "Unique identifier of the origin", str: uuidOf(originOf)},
	{name: "pool_lv_uuid", kind: "lv", width: 38, heading: "Pool UUID", help: "Unique identifier of the pool", str: uuidOf(partOf(func(s *meta.Segment) string { return s.Pool }, meta.Thin))},
	{name: "data_lv_uuid", kind: "lv", width: 38, heading: "Data UUID", help: "Unique identifier of a pool's data volume", str: uuidOf(partOf(func(s *meta.Segment) string { return s.Pool }, meta.ThinPool))},
	{name: "metadata_lv_uuid", kind: "lv", width: 38, heading: "Meta UUID", help: "Unique identifier of a pool's metadata volume", str: uuidOf(partOf(func(s *meta.Segment) string { return s.Metadata }, meta.ThinPool))},
	{name: "lv_layout", kind: "lv", width: 10, heading: "Layout", help: "How it lies on the devices", str: lvStr(layout)},
	{name: "lv_role", kind: "lv", width: 10, heading: "Role", help: "What it is for", str: lvStr(role)},
	{name: "lv_parent", kind: "lv", heading: "Parent", help: "The volume it is a part of", str: lvStr(func(v *meta.VG, lv *meta.LV) string {
		for _, o := range v.LVs {
			if s := segment(o, meta.ThinPool); s != nil && (s.Metadata == lv.Name || s.Pool == lv.Name) {
				return o.Name
			}
		}
		return ""
	})},
	{name: "lv_ancestors", kind: "lv", heading: "Ancestors", help: "Origins, and their origins", str: lvStr(ancestors)},
	{name: "lv_full_ancestors", kind: "lv", heading: "FAncestors", help: "Origins, and their origins", str: lvStr(ancestors)},
	{name: "lv_descendants", kind: "lv", heading: "Descendants", help: "Snapshots, and their snapshots", str: lvStr(descendants)},
	{name: "lv_full_descendants", kind: "lv", heading: "FDescendants", help: "Snapshots, and their snapshots", str: lvStr(descendants)},
	{name: "lv_dm_path", kind: "lv", heading: "DMPath", help: "Path that device-mapper would give it", str: lvStr(func(v *meta.VG, lv *meta.LV) string {
		double := strings.NewReplacer("-", "--")
		return "/dev/mapper/" + double.Replace(v.Name) + "-" + double.Replace(lv.Name)
	})},
	{name: "lv_skip_activation", kind: "lv", width: 15, heading: "SkipAct", help: "Whether lvm2 skips it on activation", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return word(lv.Is("ACTIVATION_SKIP"), "skip activation") })},
	{name: "lv_autoactivation", kind: "lv", heading: "AutoAct", help: "Whether lvm2 activates it by itself", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return word(!lv.Is("NOAUTOACTIVATE"), "enabled") })},

	{name: "thin_count", kind: "seg", heading: "#Thins", help: "Number of thin volumes in a pool", num: func(r *row) (n int64, ok bool) {
		for _, o := range r.x.VG.LVs {
			if s := segment(o, meta.Thin); s != nil && s.Pool == r.lv.Name {
				n++
			}
		}
		return n, segment(r.lv, meta.ThinPool) != nil
	}},
	{name: "zero", kind: "seg", heading: "Zero", help: "Whether a pool zeroes new blocks", str: func(r *row) string {
		s := segment(r.lv, meta.ThinPool)
		if t := segment(r.lv, meta.Thin); t != nil && r.x.VG.LV(t.Pool) != nil {
			s = segment(r.x.VG.LV(t.Pool), meta.ThinPool)
		}
		if s == nil {
			return "unknown"
		}
		return word(s.ZeroNew, "zero")
	}},
	{name: "data_stripes", kind: "seg", heading: "#DStr", help: "Number of stripes with data", num: func(r *row) (int64, bool) {
		if s := segOf(r); s.Type == meta.Striped {
			return int64(len(s.Stripes)), true
		}
		return int64(len(word(segOf(r).Type == meta.ThinPool, "1"))), true
	}},
	{name: "data_copies", kind: "seg", heading: "#Cpy", help: "Number of copies of the data", num: func(*row) (int64, bool) { return 1, true }},
	{name: "seg_tags", kind: "seg", heading: "Seg Tags", help: "Tags of the segment", str: func(r *row) string { return tags(segOf(r).Tags) }},

	{name: "pv_allocatable", kind: "pv", width: 11, heading: "Allocatable", help: "Whether extents of it may be used", str: pvFlag(func(r *row) bool { return r.pv.Allocatable() }, "allocatable")},
	{name: "pv_exported", kind: "pv", width: 10, heading: "Exported", help: "Whether its group is exported", str: pvFlag(func(r *row) bool { return r.x.VG.Is("EXPORTED") }, "exported")},
	{name: "pv_missing", kind: "pv", width: 10, heading: "Missing", help: "Whether it is missing", str: pvFlag(func(r *row) bool { return r.disk == nil || r.pv.Missing() }, "missing")},
	{name: "pv_in_use", kind: "pv", heading: "PInUse", help: "Whether a group uses it", str: pvFlag(func(r *row) bool { return true }, "used")},
	{name: "pv_mda_used_count", kind: "pv", heading: "#PMdaUse", help: "Number of metadata areas in use", num: func(r *row) (int64, bool) {
		if r.disk == nil {
			return 0, true
		}
		return int64(len(r.disk.Areas)), true
	}},
	{name: "pv_ext_vsn", kind: "pv", heading: "PExtVsn", help: "Version of the header's extension", num: func(r *row) (int64, bool) {
		if r.disk == nil || r.disk.Label == nil {
			return 0, true
		}
		return int64(r.disk.Label.ExtVersion), true
	}},

	{name: "vg_permissions", kind: "vg", width: 10, heading: "VPerms", help: "Permissions", str: vgStr(func(v *meta.VG) string {
		if v.Is("WRITE") {
			return "writeable"
		}
		return "read-only"
	})},
	{name: "vg_extendable", kind: "vg", width: 10, heading: "Extendable", help: "Whether devices can be added", str: vgStr(func(v *meta.VG) string { return word(v.Is("RESIZEABLE"), "extendable") })},
	{name: "vg_exported", kind: "vg", width: 10, heading: "Exported", help: "Whether it is exported", str: vgStr(func(v *meta.VG) string { return word(v.Is("EXPORTED"), "exported") })},
	{name: "vg_autoactivation", kind: "vg", heading: "AutoAct", help: "Whether lvm2 activates it by itself", str: vgStr(func(v *meta.VG) string { return word(!v.Is("NOAUTOACTIVATE"), "enabled") })},
	{name: "vg_partial", kind: "vg", width: 10, heading: "Partial", help: "Whether a device is missing", str: func(r *row) string {
		return word(r.x != nil && len(r.x.Disks) < len(r.x.VG.PVs), "partial")
	}},
	{name: "vg_allocation_policy", kind: "vg", width: 10, heading: "AllocPol", help: "Allocation policy", str: vgStr(func(v *meta.VG) string {
		if v.Alloc == "" {
			return "normal"
		}
		return v.Alloc
	})},
	{name: "vg_clustered", kind: "vg", width: 10, heading: "Clustered", help: "Whether it is clustered", str: vgStr(func(v *meta.VG) string { return word(v.Is("CLUSTERED"), "clustered") })},
	{name: "vg_shared", kind: "vg", width: 7, heading: "Shared", help: "Whether machines share it", str: vgStr(func(v *meta.VG) string { return word(v.LockType != "" && v.LockType != "none", "shared") })},
	{name: "vg_systemid", kind: "vg", heading: "System ID", help: "The machine it belongs to", str: vgStr(func(v *meta.VG) string { return v.SystemID })},
	{name: "vg_lock_type", kind: "vg", heading: "LockType", help: "Lock manager", str: vgStr(func(v *meta.VG) string { return v.LockType })},
	{name: "vg_mda_count", kind: "vg", heading: "#VMda", help: "Number of metadata areas", num: vgAreas},
	{name: "vg_mda_used_count", kind: "vg", heading: "#VMdaUse", help: "Number of metadata areas in use", num: vgAreas},
	{name: "vg_mda_free", kind: "vg", width: 9, heading: "VMdaFree", help: "Free space of the smallest metadata area", size: vgArea(true)},
	{name: "vg_mda_size", kind: "vg", width: 9, heading: "VMdaSize", help: "Size of the smallest metadata area", size: vgArea(false)},
}

func pvFlag(f func(*row) bool, s string) func(*row) string {
	return func(r *row) string { return word(r.pv != nil && f(r), s) }
}

func vgAreas(r *row) (n int64, ok bool) {
	if r.x != nil {
		for _, d := range r.x.Disks {
			n += int64(len(d.Areas))
		}
	}
	return n, true
}

// vgArea is the size of the smallest metadata area of a group.
func vgArea(free bool) func(*row) (uint64, bool) {
	return func(r *row) (least uint64, ok bool) {
		if r.x == nil {
			return 0, true
		}
		first := true
		for _, d := range r.x.Disks {
			if n := mda(d, free); len(d.Areas) > 0 && (first || n < least) {
				least, first = n, false
			}
		}
		return least, true
	}
}

func layout(_ *meta.VG, lv *meta.LV) string {
	if len(lv.Segments) == 0 {
		return ""
	}
	switch s := lv.Segments[0]; {
	case s.Type == meta.ThinPool:
		return "thin,pool"
	case s.Type == meta.Thin:
		return "thin,sparse"
	case s.Type != meta.Striped:
		return s.Type
	}
	for _, s := range lv.Segments {
		if len(s.Stripes) > 1 {
			return "striped"
		}
	}
	return "linear"
}

// role is lvm2's lv_role: what a volume is to other volumes of its group.
func role(v *meta.VG, lv *meta.LV) string {
	switch {
	case segment(lv, meta.ThinPool) != nil:
		return "private"
	case strings.HasSuffix(lv.Name, "_pmspare") && !lv.Visible():
		return "private,pool,spare"
	case isPoolMetadata(v, lv):
		return "private,thin,pool,metadata"
	case isPoolData(v, lv):
		return "private,thin,pool,data"
	case !v.Shown(lv):
		return "private"
	}
	out := []string{"public"}
	switch n := len(v.SnapshotsOf(lv.Name)); {
	case n > 1:
		out = append(out, "origin", "thickorigin", "multithickorigin")
	case n == 1:
		out = append(out, "origin", "thickorigin")
	}
	switch n := len(thinChildren(v, lv)); {
	case n > 1:
		out = append(out, "origin", "thinorigin", "multithinorigin")
	case n == 1:
		out = append(out, "origin", "thinorigin")
	}
	if _, s := v.SnapshotSegment(lv.Name); s != nil {
		out = append(out, "snapshot", "thicksnapshot")
	}
	if s := segment(lv, meta.Thin); s != nil && s.Origin != "" {
		out = append(out, "snapshot", "thinsnapshot")
	}
	return strings.Join(out, ",")
}

func thinChildren(v *meta.VG, lv *meta.LV) (out []*meta.LV) {
	for _, o := range v.LVs {
		if s := segment(o, meta.Thin); s != nil && s.Origin == lv.Name {
			out = append(out, o)
		}
	}
	return out
}

func ancestors(v *meta.VG, lv *meta.LV) string {
	var out []string
	for len(out) <= len(v.LVs) { // in a damaged text origins may form a ring
		name := originOf(v, lv)
		if lv = v.LV(name); lv == nil {
			break
		}
		out = append(out, name)
	}
	return strings.Join(out, ",")
}

func descendants(v *meta.VG, lv *meta.LV) string {
	var out []string
	var add func(lv *meta.LV)
	add = func(lv *meta.LV) {
		for _, s := range v.SnapshotsOf(lv.Name) {
			out = append(out, s.COW)
		}
		for _, o := range thinChildren(v, lv) {
			if len(out) > len(v.LVs) {
				return
			}
			out = append(out, o.Name)
			add(o)
		}
	}
	add(lv)
	return strings.Join(out, ",")
}
