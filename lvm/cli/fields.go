package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// field is a column. Exactly one of str, num and size is set.
type field struct {
	name, kind, heading, help string
	width                     int    // at least
	toRight                   bool   // a text that stands to the right, as lvm2's flags do
	without                   string // printed where num or size have no value
	str                       func(*row) string
	num                       func(*row) (int64, bool)
	size                      func(*row) (uint64, bool) // bytes
}

func (f *field) right() bool {
	return f.toRight || f.num != nil || f.size != nil || strings.HasSuffix(f.name, "_percent") && f.name != "copy_percent" || f.name == "zero" || f.name == "pv_in_use"
}

func (f *field) text(r *row, u unit, suffix bool) string {
	switch {
	case f.str != nil:
		return f.str(r)
	case f.num != nil:
		if n, ok := f.num(r); ok {
			return strconv.FormatInt(n, 10)
		}
	default:
		if n, ok := f.size(r); ok {
			return u.format(n, suffix)
		}
	}
	return f.without
}

func (f *field) compare(a, b *row) int {
	switch {
	case f.str != nil:
		// Hidden volumes stand where their names belong.
		return cmp.Compare(strings.Trim(f.str(a), "[]"), strings.Trim(f.str(b), "[]"))
	case f.num != nil:
		x, _ := f.num(a)
		y, _ := f.num(b)
		return cmp.Compare(x, y)
	}
	x, _ := f.size(a)
	y, _ := f.size(b)
	return cmp.Compare(x, y)
}

// findField finds a column by lvm2's rules: the prefix may be left out, and
// neither case nor underscores count.
func findField(name, kind string) *field {
	name = plainName(name)
	for _, n := range []string{name, kind + name} {
		for i := range fields {
			if plainName(fields[i].name) == n {
				return &fields[i]
			}
		}
	}
	for i := range fields {
		if _, short, ok := strings.Cut(fields[i].name, "_"); ok && plainName(short) == name && (kind == "" || fields[i].kind == kind) {
			return &fields[i]
		}
	}
	return nil
}

func plainName(column string) string { return strings.ToLower(strings.ReplaceAll(column, "_", "")) }

func extentsOf(f func(*row) (uint64, bool)) func(*row) (uint64, bool) {
	return func(r *row) (uint64, bool) {
		n, ok := f(r)
		if !ok || r.x == nil {
			return 0, ok
		}
		return n * r.x.VG.ExtentSize * 512, ok
	}
}

func vgTotals(v *meta.VG) (total, free uint64) {
	for _, pv := range v.PVs {
		total += pv.PECount
		free += vg.Free(v, pv)
	}
	return total, free
}

func tags(ss []string) string { return strings.Join(ss, ",") }

func pct(p *float64) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", *p)
}

func segOf(r *row) *meta.Segment {
	if r.seg != nil {
		return r.seg
	}
	if r.lv != nil && len(r.lv.Segments) > 0 {
		return r.lv.Segments[0]
	}
	return nil
}

func empty(*row) string { return "" }

var fields = slices.Concat(basicFields, detailFields, liveFields, absentFields)

// readAhead is how lvm2's kernel devices read ahead: a size, or its own choice. In the
// text -1 is not at all.
func readAhead(r *row) (uint64, bool) {
	n, ok := integer(r.lv, "read_ahead")
	if !ok || n == 0 {
		return 0, false
	}
	return uint64(max(n, 0)) * 512, true
}

var basicFields = []field{
	{name: "lv_name", kind: "lv", width: 4, heading: "LV", help: "Name; hidden ones in brackets", str: func(r *row) string {
		if r.x.VG.Shown(r.lv) {
			return r.lv.Name
		}
		return "[" + r.lv.Name + "]"
	}},
	{name: "lv_uuid", kind: "lv", heading: "LV UUID", help: "Unique identifier", str: func(r *row) string { return r.lv.ID.String() }},
	{name: "lv_full_name", kind: "lv", heading: "LV", help: "VG/LV", str: func(r *row) string { return r.x.VG.Name + "/" + r.lv.Name }},
	{name: "lv_path", kind: "lv", heading: "Path", help: "Path that lvm2 would give it", str: func(r *row) string {
		if !r.x.VG.Shown(r.lv) || len(r.lv.Segments) > 0 && r.lv.Segments[0].Type == meta.ThinPool {
			return ""
		}
		return "/dev/" + r.x.VG.Name + "/" + r.lv.Name
	}},
	{name: "lv_attr", kind: "lv", heading: "Attr", help: "Attributes, see lvs(8)", str: lvAttr},
	{name: "lv_active", kind: "lv", heading: "Active", help: "active while it is served", str: func(r *row) string {
		if r.live.active {
			return "active"
		}
		return ""
	}},
	{name: "lv_size", kind: "lv", heading: "LSize", help: "Size; of a classic snapshot that of its store", size: extentsOf(func(r *row) (uint64, bool) { return r.lv.Extents(), true })},
	{name: "lv_metadata_size", kind: "lv", heading: "MSize", help: "Size of a pool's metadata", size: extentsOf(func(r *row) (uint64, bool) {
		if s := segOf(r); s != nil && s.Type == meta.ThinPool {
			return r.x.VG.LV(s.Metadata).Extents(), true
		}
		return 0, false
	})},
	{name: "pool_lv", kind: "lv", heading: "Pool", help: "Pool of a thin volume", str: func(r *row) string {
		if s := segOf(r); s != nil && s.Type == meta.Thin {
			return s.Pool
		}
		return ""
	}},
	{name: "origin", kind: "lv", heading: "Origin", help: "Origin of a snapshot", str: func(r *row) string { return originOf(r.x.VG, r.lv) }},
	{name: "origin_size", kind: "lv", heading: "OSize", help: "Size of a snapshot's origin", size: extentsOf(func(r *row) (uint64, bool) {
		if _, s := r.x.VG.SnapshotSegment(r.lv.Name); s != nil {
			return s.Count, true
		}
		return r.lv.Extents(), len(r.x.VG.SnapshotsOf(r.lv.Name)) > 0
	})},
	{name: "data_percent", kind: "lv", width: 6, heading: "Data%", help: "How full a snapshot, pool or thin volume is", str: func(r *row) string { return pct(r.live.data) }},
	{name: "snap_percent", kind: "lv", width: 6, heading: "Snap%", help: "How full a snapshot is", str: func(r *row) string {
		if _, s := r.x.VG.SnapshotSegment(r.lv.Name); s != nil {
			return pct(r.live.data)
		}
		return ""
	}},
	{name: "metadata_percent", kind: "lv", width: 6, heading: "Meta%", help: "How full a pool's metadata is", str: func(r *row) string { return pct(r.live.meta) }},
	{name: "move_pv", kind: "lv", heading: "Move", help: "Always empty: moves leave no volume of their own", str: empty},
	{name: "mirror_log", kind: "lv", heading: "Log", help: "Always empty", str: empty},
	{name: "copy_percent", kind: "lv", heading: "Cpy%Sync", help: "Always empty", str: empty},
	{name: "convert_lv", kind: "lv", heading: "Convert", help: "Always empty", str: empty},
	{name: "data_lv", kind: "lv", heading: "Data", help: "Data volume of a pool", str: func(r *row) string {
		if s := segOf(r); s != nil && s.Type == meta.ThinPool {
			return "[" + s.Pool + "]"
		}
		return ""
	}},
	{name: "metadata_lv", kind: "lv", heading: "Meta", help: "Metadata volume of a pool", str: func(r *row) string {
		if s := segOf(r); s != nil && s.Type == meta.ThinPool {
			return "[" + s.Metadata + "]"
		}
		return ""
	}},
	{name: "lv_when_full", kind: "lv", width: 15, heading: "WhenFull", help: "What a full pool does", str: func(r *row) string {
		switch s := segOf(r); {
		case s == nil || s.Type != meta.ThinPool:
			return ""
		case r.lv.Is("ERROR_WHEN_FULL"):
			return "error"
		}
		return "queue"
	}},
	{name: "lv_allocation_policy", kind: "lv", width: 10, heading: "AllocPol", help: "Allocation policy", str: func(r *row) string {
		if r.lv.Alloc == "" {
			return "inherit"
		}
		return r.lv.Alloc
	}},
	{name: "lv_permissions", kind: "lv", heading: "LPerms", help: "Permissions; of what may be written only while it is served", str: func(r *row) string {
		switch {
		case !r.lv.Is("WRITE"):
			return "read-only"
		case r.live.active:
			return "writeable"
		}
		return "unknown"
	}},
	{name: "lv_tags", kind: "lv", heading: "LV Tags", help: "Tags", str: func(r *row) string { return tags(r.lv.Tags) }},
	{name: "lv_time", kind: "lv", width: 26, heading: "CTime", help: "When it was made", str: func(r *row) string {
		if r.lv.Created == 0 {
			return ""
		}
		return time.Unix(r.lv.Created, 0).Format("2006-01-02 15:04:05 -0700")
	}},
	{name: "lv_host", kind: "lv", width: 10, heading: "Host", help: "Where it was made", str: func(r *row) string { return r.lv.Host }},
	{name: "seg_count", kind: "lv", heading: "#Seg", help: "Number of segments", num: func(r *row) (int64, bool) { return int64(len(r.lv.Segments)), true }},

	{name: "pv_name", kind: "pv", heading: "PV", help: "Name", str: func(r *row) string {
		if r.disk != nil {
			return r.disk.Path
		}
		return "[unknown]"
	}},
	{name: "pv_uuid", kind: "pv", heading: "PV UUID", help: "Unique identifier", str: func(r *row) string {
		switch {
		case r.pv != nil:
			return r.pv.ID.String()
		case r.disk.Label != nil:
			return r.disk.Label.UUID.String()
		}
		return ""
	}},
	{name: "pv_fmt", kind: "pv", heading: "Fmt", help: "Type of metadata", str: func(r *row) string {
		if r.pv == nil && r.disk.Label == nil {
			return ""
		}
		return "lvm2"
	}},
	{name: "pv_attr", kind: "pv", heading: "Attr", help: "Attributes, see pvs(8)", str: func(r *row) string {
		b := []byte("---")
		if r.pv != nil {
			if r.pv.Allocatable() {
				b[0] = 'a'
			} else {
				b[0] = 'u'
			}
			if r.disk == nil || r.pv.Missing() {
				b[2] = 'm'
			}
			if r.x.VG.Is("EXPORTED") {
				b[1] = 'x'
			}
		}
		return string(b)
	}},
	{name: "pv_size", kind: "pv", heading: "PSize", help: "Size", size: func(r *row) (uint64, bool) {
		if r.pv == nil {
			if r.disk.Label == nil {
				return 0, true
			}
			return uint64(r.disk.Size()), true
		}
		return r.pv.PECount * r.x.VG.ExtentSize * 512, true
	}},
	{name: "pv_free", kind: "pv", heading: "PFree", help: "Unallocated space", size: func(r *row) (uint64, bool) {
		if r.pv == nil {
			if r.disk.Label == nil {
				return 0, true
			}
			return uint64(r.disk.Size()), true
		}
		return vg.Free(r.x.VG, r.pv) * r.x.VG.ExtentSize * 512, true
	}},
	{name: "pv_used", kind: "pv", heading: "Used", help: "Allocated space", size: func(r *row) (uint64, bool) {
		if r.pv == nil {
			return 0, true
		}
		return (r.pv.PECount - vg.Free(r.x.VG, r.pv)) * r.x.VG.ExtentSize * 512, true
	}},
	{name: "dev_size", kind: "pv", heading: "DevSize", help: "Size of the device", size: func(r *row) (uint64, bool) {
		if r.disk == nil {
			return 0, true
		}
		return uint64(r.disk.Size()), true
	}},
	{name: "pe_start", kind: "pv", width: 7, heading: "1st PE", help: "Where the first extent begins", size: func(r *row) (uint64, bool) {
		switch {
		case r.pv != nil:
			return r.pv.PEStart * 512, true
		case r.disk.Label != nil && len(r.disk.Label.Data) > 0:
			return r.disk.Label.Data[0].Offset, true
		}
		return 0, true
	}},
	{name: "pv_pe_count", kind: "pv", width: 3, heading: "PE", help: "Number of extents", num: func(r *row) (int64, bool) {
		if r.pv == nil {
			return 0, true
		}
		return int64(r.pv.PECount), true
	}},
	{name: "pv_pe_alloc_count", kind: "pv", heading: "Alloc", help: "Number of allocated extents", num: func(r *row) (int64, bool) {
		if r.pv == nil {
			return 0, true
		}
		return int64(r.pv.PECount - vg.Free(r.x.VG, r.pv)), true
	}},
	{name: "pv_mda_count", kind: "pv", heading: "#PMda", help: "Number of metadata areas", num: func(r *row) (int64, bool) {
		if r.disk == nil {
			return 0, true
		}
		return int64(len(r.disk.Areas)), true
	}},
	{name: "pv_mda_free", kind: "pv", width: 9, heading: "PMdaFree", help: "Free space of the metadata area", size: func(r *row) (uint64, bool) { return mda(r.disk, true), true }},
	{name: "pv_mda_size", kind: "pv", width: 9, heading: "PMdaSize", help: "Size of the metadata area", size: func(r *row) (uint64, bool) { return mda(r.disk, false), true }},
	{name: "pv_tags", kind: "pv", heading: "PV Tags", help: "Tags", str: func(r *row) string {
		if r.pv == nil {
			return ""
		}
		return tags(r.pv.Tags)
	}},

	{name: "vg_name", kind: "vg", heading: "VG", help: "Name", str: func(r *row) string {
		if r.x == nil {
			return ""
		}
		return r.x.VG.Name
	}},
	{name: "vg_uuid", kind: "vg", heading: "VG UUID", help: "Unique identifier", str: vgStr(func(v *meta.VG) string { return v.ID.String() })},
	{name: "vg_fmt", kind: "vg", heading: "Fmt", help: "Type of metadata", str: vgStr(func(*meta.VG) string { return "lvm2" })},
	{name: "vg_attr", kind: "vg", heading: "Attr", help: "Attributes, see vgs(8)", str: func(r *row) string {
		if r.x == nil {
			return ""
		}
		return vgAttr(r.x)
	}},
	{name: "vg_size", kind: "vg", heading: "VSize", help: "Size", size: extentsOf(func(r *row) (uint64, bool) {
		if r.x == nil {
			return 0, true
		}
		t, _ := vgTotals(r.x.VG)
		return t, true
	})},
	{name: "vg_free", kind: "vg", heading: "VFree", help: "Unallocated space", size: extentsOf(func(r *row) (uint64, bool) {
		if r.x == nil {
			return 0, true
		}
		_, f := vgTotals(r.x.VG)
		return f, true
	})},
	{name: "vg_extent_size", kind: "vg", heading: "Ext", help: "Size of an extent", size: extentsOf(func(r *row) (uint64, bool) { return 1, r.x != nil })},
	{name: "vg_extent_count", kind: "vg", heading: "#Ext", help: "Number of extents", num: vgNum(func(v *meta.VG) int64 { t, _ := vgTotals(v); return int64(t) })},
	{name: "vg_free_count", kind: "vg", heading: "Free", help: "Number of free extents", num: vgNum(func(v *meta.VG) int64 { _, f := vgTotals(v); return int64(f) })},
	{name: "max_lv", kind: "vg", heading: "MaxLV", help: "Most logical volumes", num: vgNum(func(v *meta.VG) int64 { return int64(v.MaxLV) })},
	{name: "max_pv", kind: "vg", heading: "MaxPV", help: "Most physical volumes", num: vgNum(func(v *meta.VG) int64 { return int64(v.MaxPV) })},
	{name: "pv_count", kind: "vg", heading: "#PV", help: "Number of physical volumes", num: vgNum(func(v *meta.VG) int64 { return int64(len(v.PVs)) })},
	{name: "lv_count", kind: "vg", heading: "#LV", help: "Number of logical volumes", num: vgNum(func(v *meta.VG) (n int64) {
		for _, lv := range v.LVs {
			if v.Shown(lv) {
				n++
			}
		}
		return n
	})},
	{name: "snap_count", kind: "vg", heading: "#SN", help: "Number of snapshots", num: vgNum(func(v *meta.VG) (n int64) {
		for _, lv := range v.LVs {
			if len(lv.Segments) > 0 && lv.Segments[0].Type == meta.Snapshot {
				n++
			}
		}
		return n
	})},
	{name: "vg_seqno", kind: "vg", heading: "Seq", help: "Revision of the metadata", num: vgNum(func(v *meta.VG) int64 { return int64(v.Seqno) })},
	{name: "vg_tags", kind: "vg", heading: "VG Tags", help: "Tags", str: vgStr(func(v *meta.VG) string { return tags(v.Tags) })},
	{name: "vg_missing_pv_count", kind: "vg", heading: "#PV Missing", help: "Number of missing physical volumes", num: func(r *row) (int64, bool) {
		if r.x == nil {
			return 0, true
		}
		return int64(len(r.x.VG.PVs) - len(r.x.Disks)), true
	}},

	{name: "segtype", kind: "seg", heading: "Type", help: "Type of segment", str: func(r *row) string {
		switch s := segOf(r); {
		case s == nil:
			return ""
		case s.Type == meta.Striped && len(s.Stripes) == 1:
			return "linear"
		default:
			return s.Type
		}
	}},
	{name: "stripes", kind: "seg", heading: "#Str", help: "Number of stripes", num: func(r *row) (int64, bool) {
		s := segOf(r)
		if s == nil {
			return 0, false
		}
		switch s.Type {
		case meta.Striped:
			return int64(len(s.Stripes)), true
		case meta.ThinPool:
			return 1, true
		}
		return 0, true
	}},
	{name: "stripe_size", kind: "seg", heading: "Stripe", help: "Stripe size", size: func(r *row) (uint64, bool) { return segOf(r).StripeSize * 512, true }},
	{name: "chunk_size", kind: "seg", heading: "Chunk", help: "Chunk size of snapshots and pools", size: func(r *row) (uint64, bool) {
		if _, s := r.x.VG.SnapshotSegment(r.lv.Name); s != nil {
			return s.ChunkSize * 512, true
		}
		return segOf(r).ChunkSize * 512, true
	}},
	{name: "discards", kind: "seg", heading: "Discards", help: "What a pool does with discards", str: func(r *row) string {
		s := segOf(r)
		if p := r.x.VG.LV(s.Pool); s.Type == meta.Thin && p != nil && len(p.Segments) > 0 {
			s = p.Segments[0]
		}
		return s.Discards
	}},
	{name: "transaction_id", kind: "seg", heading: "TransId", help: "Transaction of pools and thin volumes", num: func(r *row) (int64, bool) {
		s := segOf(r)
		return int64(s.TransactionID), s.Type == meta.Thin || s.Type == meta.ThinPool
	}},
	{name: "thin_id", kind: "seg", heading: "ThId", help: "Device id of a thin volume", num: func(r *row) (int64, bool) {
		s := segOf(r)
		return int64(s.DeviceID), s.Type == meta.Thin
	}},
	{name: "seg_start", kind: "seg", heading: "Start", help: "Start of the segment", size: extentsOf(func(r *row) (uint64, bool) { return segOf(r).Start, true })},
	{name: "seg_start_pe", kind: "seg", heading: "Start", help: "Start in extents", num: func(r *row) (int64, bool) { return int64(segOf(r).Start), true }},
	{name: "seg_size", kind: "seg", heading: "SSize", help: "Size of the segment", size: extentsOf(func(r *row) (uint64, bool) { return segOf(r).Count, true })},
	{name: "seg_size_pe", kind: "seg", heading: "SSize", help: "Size in extents", num: func(r *row) (int64, bool) { return int64(segOf(r).Count), true }},
	{name: "seg_pe_ranges", kind: "seg", heading: "PE Ranges", help: "Extents on the devices", str: func(r *row) string { return places(r, true) }},
	{name: "devices", kind: "seg", heading: "Devices", help: "Devices and first extents", str: func(r *row) string { return places(r, false) }},
}

func vgStr(f func(*meta.VG) string) func(*row) string {
	return func(r *row) string {
		if r.x == nil {
			return ""
		}
		return f(r.x.VG)
	}
}

func vgNum(f func(*meta.VG) int64) func(*row) (int64, bool) {
	return func(r *row) (int64, bool) {
		if r.x == nil {
			return 0, true
		}
		return f(r.x.VG), true
	}
}

func mda(d *vg.Disk, free bool) (n uint64) {
	if d == nil {
		return 0
	}
	for i, a := range d.Areas {
		size, left := a.Size()
		if free {
			size = left
		}
		if i == 0 || size < n {
			n = size
		}
	}
	return n
}

// places lists where a segment lies.
func places(r *row, withRange bool) string {
	s := segOf(r)
	as := s.Stripes
	if s.Type == meta.ThinPool {
		as = []meta.Area{{Name: s.Pool}}
	}
	var out []string
	for _, a := range as {
		name := a.Name
		if pv := r.x.VG.PV(a.Name); pv != nil {
			name = pv.Device
			if d := r.x.Disks[pv.ID]; d != nil {
				name = d.Path
			}
		}
		n := s.AreaLen()
		if withRange {
			out = append(out, fmt.Sprintf("%s:%d-%d", name, a.Off, a.Off+n-1))
		} else {
			out = append(out, fmt.Sprintf("%s(%d)", name, a.Off))
		}
	}
	if withRange {
		return strings.Join(out, " ")
	}
	return strings.Join(out, ",")
}
