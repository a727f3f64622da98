package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// What lvm2 compares as numbers in a selection: counts, flags and percentages.

// flagWords are the flags, which are printed as a word or not at all, with the words
// that stand for "yes" in a selection. To lvm2 they are the numbers 1 and 0, and -1
// where it does not know.
var flagWords = map[string][]string{
	"lv_initial_image_sync": {"initial image sync", "sync"},
	"lv_image_synced":       {"image synced", "synced"},
	"lv_merging":            {"merging"},
	"lv_converting":         {"converting"},
	"lv_allocation_locked":  {"allocation locked", "locked"},
	"lv_fixed_minor":        {"fixed minor", "fixed"},
	"lv_active_locally":     {"active locally", "active", "locally"},
	"lv_active_remotely":    {"active remotely", "active", "remotely"},
	"lv_active_exclusively": {"active exclusively", "active", "exclusively"},
	"lv_merge_failed":       {"merge failed", "failed"},
	"lv_snapshot_invalid":   {"snapshot invalid", "invalid"},
	"lv_suspended":          {"suspended"},
	"lv_live_table":         {"live table present", "live table", "live"},
	"lv_inactive_table":     {"inactive table present", "inactive table", "inactive"},
	"lv_device_open":        {"open"},
	"lv_skip_activation":    {"skip activation", "skip"},
	"lv_check_needed":       {"check needed", "needed"},
	"lv_historical":         nil,
	"lv_autoactivation":     nil,
	"zero":                  {"zero"},
	"pv_allocatable":        {"allocatable"},
	"pv_exported":           {"exported"},
	"pv_missing":            {"missing"},
	"pv_in_use":             {"used", "in use"},
	"pv_duplicate":          {"duplicate"},
	"vg_extendable":         {"extendable"},
	"vg_exported":           {"exported"},
	"vg_partial":            {"partial"},
	"vg_clustered":          {"clustered"},
	"vg_shared":             {"shared"},
	"vg_autoactivation":     nil,
}

// undefined are lvm2's words for a number that is not there.
var undefined = []string{"-1", "unknown", "undefined", "undef"}

// counts compares a number or a flag.
func (f *field) counts(op, value string) (condition, error) {
	of := f.num
	words, flag := flagWords[f.name]
	if flag {
		of = f.flag
		switch {
		case len(words) == 0:
		case value == "yes" || slices.Contains(words, value):
			value = "1"
		case value == "no":
			value = "0"
		}
	}
	if slices.Contains(undefined, value) {
		if op != "=" && op != "!=" {
			return func(*row) bool { return false }, nil
		}
		return func(r *row) bool {
			n, ok := of(r)
			return (!ok || n == -1) == (op == "=")
		}, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("%q is not a whole number", value)
	}
	known := func(r *row) (int64, bool) {
		n, ok := of(r)
		return n, ok && n != -1
	}
	return ordered(op, known, n), nil
}

// flag is a flag as a number.
func (f *field) flag(r *row) (int64, bool) {
	switch f.str(r) {
	case "":
		return 0, true
	case "unknown":
		return 0, false
	}
	return 1, true
}

// percents are the columns with percentages; nil: of what is never there.
var percents = map[string]func(*row) *float64{
	"data_percent":     func(r *row) *float64 { return r.live.data },
	"metadata_percent": func(r *row) *float64 { return r.live.meta },
	"snap_percent": func(r *row) *float64 {
		if isClassic(r) {
			return r.live.data
		}
		return nil
	},
	"copy_percent": func(*row) *float64 { return nil },
	"sync_percent": func(*row) *float64 { return nil },
}

// fills compares a percentage. One that is not known is neither equal nor another.
func (f *field) fills(op, value string) (condition, error) {
	want, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
	if err != nil || want < 0 || strings.ContainsAny(value, "+eExXnN_") {
		return nil, fmt.Errorf("%q is not a percentage", value)
	}
	if want > 100 {
		return nil, fmt.Errorf("%q is more than 100", value)
	}
	millionths := func(p float64) int64 { return int64(math.Round(p * 1e6)) }
	compare := ordered(op, func(r *row) (int64, bool) { return millionths(*percents[f.name](r)), true }, millionths(want))
	return func(r *row) bool { return percents[f.name](r) != nil && compare(r) }, nil
}
