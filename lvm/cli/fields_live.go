package cli

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// liveFlag is a flag of a volume that is in use. lvm2 asks the kernel; without
// an answer both say unknown.
func liveFlag(f func(*row) (on, known bool), s string) func(*row) string {
	return func(r *row) string {
		on, known := f(r)
		if !known {
			return "unknown"
		}
		return word(on, s)
	}
}

// activity is for where a volume is active: known once the target was asked.
func activity(f func(*liveLV) bool, s string) func(*row) string {
	return liveFlag(func(r *row) (bool, bool) { return f(r.live), r.live.known }, s)
}

// device is for what lvm2 asks of the device of an active volume.
func device(f func(*liveLV) bool, s string) func(*row) string {
	return liveFlag(func(r *row) (bool, bool) { return f(r.live), r.live.active }, s)
}

// status is for what lvm2 reads in the status of an active snapshot or pool.
func status(is func(*row) bool, f func(*liveLV) bool, s string) func(*row) string {
	return liveFlag(func(r *row) (bool, bool) { return f(r.live), r.live.active && is(r) }, s)
}

func isPool(r *row) bool { return segment(r.lv, meta.ThinPool) != nil }

func isClassic(r *row) bool {
	_, s := r.x.VG.SnapshotSegment(r.lv.Name)
	return s != nil
}

func no(*liveLV) bool { return false }

// number is the number that a key has in the text of a volume, -1 without it.
func number(key string) func(*row) (int64, bool) {
	return func(r *row) (int64, bool) {
		if n, ok := integer(r.lv, key); ok {
			return n, true
		}
		return -1, true
	}
}

func integer(lv *meta.LV, key string) (int64, bool) {
	v, ok := lv.Value(key)
	if !ok || v.Kind != meta.Number {
		return 0, false
	}
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, err == nil
}

func minusOne(*row) (int64, bool) { return -1, true }

func text(v meta.Value, ok bool) string {
	if !ok {
		return ""
	}
	return v.Text
}

var liveFields = []field{
	{name: "lv_active_locally", kind: "lv", width: 10, toRight: true, heading: "ActLocal", help: "Whether it is served here", str: activity(func(l *liveLV) bool { return l.active }, "active locally")},
	{name: "lv_active_remotely", kind: "lv", width: 10, toRight: true, heading: "ActRemote", help: "Never: groups are of one machine", str: activity(no, "active remotely")},
	{name: "lv_active_exclusively", kind: "lv", width: 10, toRight: true, heading: "ActExcl", help: "Whether it is served here alone", str: activity(func(l *liveLV) bool { return l.active }, "active exclusively")},
	{name: "lv_device_open", kind: "lv", width: 10, toRight: true, heading: "DevOpen", help: "Whether it is open", str: device(func(l *liveLV) bool { return l.open }, "open")},
	{name: "lv_suspended", kind: "lv", width: 10, toRight: true, heading: "Suspended", help: "Never, while it is served", str: device(no, "suspended")},
	{name: "lv_live_table", kind: "lv", width: 20, toRight: true, heading: "LiveTable", help: "Whether it is served", str: device(func(l *liveLV) bool { return l.active }, "live table present")},
	{name: "lv_inactive_table", kind: "lv", width: 20, toRight: true, heading: "InactiveTable", help: "Never, while it is served", str: device(no, "inactive table present")},
	{name: "lv_kernel_major", kind: "lv", heading: "KMaj", help: "-1: no device of the kernel", num: minusOne},
	{name: "lv_kernel_minor", kind: "lv", heading: "KMin", help: "-1: no device of the kernel", num: minusOne},
	{name: "lv_kernel_read_ahead", kind: "lv", heading: "KRahead", help: "-1: no device of the kernel", num: minusOne},
	{name: "lv_health_status", kind: "lv", width: 15, heading: "Health", help: "What is wrong with it", str: health},
	{name: "lv_check_needed", kind: "lv", width: 15, toRight: true, heading: "CheckNeeded", help: "Whether a pool's metadata needs a check; such a pool is not opened", str: status(isPool, no, "check needed")},
	{name: "lv_merge_failed", kind: "lv", width: 15, toRight: true, heading: "MergeFailed", help: "Whether the merge of a snapshot failed", str: status(isClassic, no, "merge failed")},
	{name: "lv_snapshot_invalid", kind: "lv", width: 15, toRight: true, heading: "SnapInvalid", help: "Whether a snapshot has overflowed", str: status(isClassic, func(l *liveLV) bool { return l.invalid }, "snapshot invalid")},
	{name: "kernel_discards", kind: "lv", heading: "KDiscards", help: "What a pool that is served does with discards", str: func(r *row) string {
		if s := segment(r.lv, meta.ThinPool); s != nil && r.live.active {
			return s.Discards
		}
		return ""
	}},

	{name: "lv_allocation_locked", kind: "lv", width: 10, toRight: true, heading: "AllocLock", help: "Whether its place is locked", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return word(lv.Is("LOCKED"), "allocation locked") })},
	{name: "lv_fixed_minor", kind: "lv", width: 10, toRight: true, heading: "FixMin", help: "Whether lvm2 gives it a fixed device number", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return word(lv.Is("FIXED_MINOR"), "fixed minor") })},
	{name: "lv_major", kind: "lv", heading: "Maj", help: "Its fixed major number, or -1", num: number("major")},
	{name: "lv_minor", kind: "lv", heading: "Min", help: "Its fixed minor number, or -1", num: number("minor")},
	{name: "lv_merging", kind: "lv", width: 10, toRight: true, heading: "Merging", help: "Whether it is being merged, or merged into", str: lvStr(func(v *meta.VG, lv *meta.LV) string { return word(merging(v, lv), "merging") })},
	{name: "lv_read_ahead", kind: "lv", heading: "Rahead", help: "How far lvm2's device reads ahead", size: readAhead, without: "auto"},
	{name: "lv_modules", kind: "lv", heading: "Modules", help: "Kernel modules that lvm2 would need for it", str: lvStr(modules)},
	{name: "lv_profile", kind: "lv", heading: "LProfile", help: "Profile of lvm2's", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return text(lv.Value("profile")) })},
	{name: "lv_lockargs", kind: "lv", heading: "LLockArgs", help: "What lvmlockd has for it", str: lvStr(func(_ *meta.VG, lv *meta.LV) string { return text(lv.Value("lock_args")) })},
	{name: "raidintegrityblocksize", kind: "lv", heading: "IntegBlkSize", help: "-1: without integrity", num: minusOne},
	{name: "writecache_block_size", kind: "lv", heading: "WCacheBlkSize", help: "-1: without a write cache", num: minusOne},

	{name: "region_size", kind: "seg", heading: "Region", help: "0: no mirror", size: func(*row) (uint64, bool) { return 0, true }},
	{name: "seg_le_ranges", kind: "seg", heading: "LE Ranges", help: "Extents below, hidden volumes in brackets", str: leRanges},

	{name: "pv_major", kind: "pv", width: 3, heading: "Maj", help: "Major number of the device; -1: a file", str: func(r *row) string { return deviceNumber(r, unix.Major) }},
	{name: "pv_minor", kind: "pv", width: 3, heading: "Min", help: "Minor number of the device; -1: a file", str: func(r *row) string { return deviceNumber(r, unix.Minor) }},
	{name: "pv_ba_start", kind: "pv", heading: "BA Start", help: "Where the boot loader's area begins", size: bootArea(true)},
	{name: "pv_ba_size", kind: "pv", heading: "BA Size", help: "Size of the boot loader's area", size: bootArea(false)},
	{name: "pvseg_start", kind: "pvseg", heading: "Start", help: "First extent of a run of extents of one use", num: func(r *row) (int64, bool) { return int64(r.run.Off), true }},
	{name: "pvseg_size", kind: "pvseg", heading: "SSize", help: "Extents of the run", num: func(r *row) (int64, bool) { return int64(r.run.Len), true }},

	{name: "vg_sysid", kind: "vg", heading: "SYS ID", help: "The machine it belongs to", str: vgStr(func(v *meta.VG) string { return v.SystemID })},
	{name: "vg_lock_args", kind: "vg", heading: "VLockArgs", help: "What lvmlockd has for it", str: vgStr(func(v *meta.VG) string { return text(v.Value("lock_args")) })},
	{name: "vg_profile", kind: "vg", heading: "VProfile", help: "Profile of lvm2's", str: vgStr(func(v *meta.VG) string { return text(v.Value("profile")) })},
	{name: "vg_mda_copies", kind: "vg", toRight: true, heading: "#VMdaCps", help: "Metadata areas that are to be in use", str: vgStr(func(v *meta.VG) string {
		switch v.Copies {
		case 0:
			return "unmanaged"
		case 1<<32 - 1:
			return "all"
		}
		return strconv.FormatUint(v.Copies, 10)
	})},
}

// health is what lvm2 says of a volume that is not as it should be.
func health(r *row) string {
	switch {
	case lvAttr(r)[8] == 'p':
		return "partial"
	case !r.live.active:
		return ""
	case r.live.failed:
		return "metadata_read_only"
	case r.live.full:
		return "out_of_data"
	}
	return ""
}

func merging(v *meta.VG, lv *meta.LV) bool {
	if _, s := v.SnapshotSegment(lv.Name); s != nil && s.Merging {
		return true
	}
	for _, s := range v.SnapshotsOf(lv.Name) {
		if s.Merging {
			return true
		}
	}
	if s := segment(lv, meta.Thin); s != nil && s.Merge != "" {
		return true
	}
	for _, o := range v.LVs {
		if s := segment(o, meta.Thin); s != nil && s.Merge == lv.Name {
			return true
		}
	}
	return false
}

// modules are the kernel's modules behind a volume, beside those that
// device-mapper always has.
func modules(v *meta.VG, lv *meta.LV) string {
	_, snap := v.SnapshotSegment(lv.Name)
	switch {
	case segment(lv, meta.Thin) != nil:
		return "thin,thin-pool"
	case segment(lv, meta.ThinPool) != nil:
		return "thin-pool"
	case snap != nil || len(v.SnapshotsOf(lv.Name)) > 0:
		return "snapshot"
	}
	return ""
}

// leRanges lists where a segment lies, by lvm2's newer rules.
func leRanges(r *row) string {
	s := strings.ReplaceAll(places(r, true), " ", ",")
	if seg := segOf(r); seg.Type == meta.ThinPool {
		return "[" + strings.Replace(s, ":", "]:", 1)
	}
	return s
}

func deviceNumber(r *row, of func(uint64) uint32) string {
	var st unix.Stat_t
	if r.disk == nil || unix.Stat(r.disk.Path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "-1"
	}
	return strconv.FormatUint(uint64(of(st.Rdev)), 10)
}

func bootArea(start bool) func(*row) (uint64, bool) {
	return func(r *row) (uint64, bool) {
		if r.disk == nil || r.disk.Label == nil || len(r.disk.Label.Boot) == 0 {
			return 0, true
		}
		if start {
			return r.disk.Label.Boot[0].Offset, true
		}
		return r.disk.Label.Boot[0].Size, true
	}
}

// pvRuns lists the runs of extents of a PV that are of one use, free ones too.
func pvRuns(v *meta.VG, pv *meta.PV) (out []vg.Use) {
	var at uint64
	for _, u := range vg.Used(v)[pv.Name] {
		if u.Off > at {
			out = append(out, vg.Use{Off: at, Len: u.Off - at})
		}
		out = append(out, u)
		at = u.Off + u.Len
	}
	if at < pv.PECount {
		out = append(out, vg.Use{Off: at, Len: pv.PECount - at})
	}
	return out
}
