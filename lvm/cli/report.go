package cli

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/internal/usage"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// reportFlags are the options that all reports share.
type reportFlags struct {
	options, units, format, sort, separator string
	selection                               string
	noHeadings, noSuffix, all, segments     bool
	aligned, prefixes, asRows               bool
}

// reports are pvs, vgs and lvs, and what shows their fields.
type reports struct{ *app }

func (a reports) all() []*cobra.Command {
	return []*cobra.Command{
		a.report("pvs", "Report on physical volumes", "pv"),
		a.report("vgs", "Report on volume groups", "vg"),
		a.report("lvs", "Report on logical volumes", "lv"),
	}
}

// add defines the options of a report as flags: those that lvm2's display commands
// take too, and the rest.
func (o *reportFlags) add(f *pflag.FlagSet, displays bool) {
	f.StringVarP(&o.options, "options", "o", "", "columns, comma separated; +LIST adds, #LIST is all but; help lists them")
	f.StringVar(&o.units, "units", "r", "units of sizes: rRhHbBsSkKmMgGtTpPeE, perhaps with a number before")
	f.StringVarP(&o.sort, "sort", "O", "", "columns to sort by, -COLUMN for the reverse")
	f.StringVarP(&o.selection, "select", "S", "", "show what this is true of, like 'lv_size>1g && lv_name=~^data'")
	f.StringVar(&o.separator, "separator", " ", "what stands between columns")
	f.BoolVar(&o.noHeadings, "noheadings", false, "leave the headings out")
	f.BoolVar(&o.noSuffix, "nosuffix", false, "leave the unit of sizes out")
	f.BoolVar(&o.aligned, "aligned", false, "align columns although there is a separator")
	if o.format = "basic"; displays {
		return
	}
	f.StringVar(&o.format, "reportformat", "basic", "basic or json")
	f.BoolVar(&o.prefixes, "nameprefixes", false, "print NAME='value' pairs")
	f.BoolVar(&o.asRows, "rows", false, "print columns as rows")
	f.BoolVarP(&o.all, "all", "a", false, "hidden logical volumes, or devices that are no physical volumes, too")
}

// defaultColumns are what reports show unless told.
var defaultColumns = map[string]string{
	"pv": "pv_name,vg_name,pv_fmt,pv_attr,pv_size,pv_free",
	"vg": "vg_name,pv_count,lv_count,snap_count,vg_attr,vg_size,vg_free",
	"lv": "lv_name,vg_name,lv_attr,lv_size,pool_lv,origin,data_percent,metadata_percent,move_pv,mirror_log,copy_percent,convert_lv",
}

func (a reports) report(name, short, kind string) *cobra.Command {
	var o reportFlags
	c := &cobra.Command{Use: name + " [options] [NAME...]", Short: short}
	o.add(c.Flags(), false)
	if kind != "vg" {
		c.Flags().BoolVar(&o.segments, "segments", false, "one line for each segment")
	}
	c.RunE = func(_ *cobra.Command, args []string) error { return a.showReport(o, kind, args) }
	return c
}

// showReport prints the table of pvs, vgs or lvs (kind pv, vg, lv) for the names in
// args.
func (a reports) showReport(o reportFlags, kind string, args []string) error {
	if o.options == "help" || o.options == "?" {
		a.listFields(kind)
		return nil
	}
	cols := defaultColumns[kind]
	if o.segments {
		cols = map[string]string{"lv": "lv_name,vg_name,lv_attr,stripes,segtype,seg_size", "pv": cols + ",pvseg_start,pvseg_size"}[kind]
	}
	r, err := newReport(o, kind, cols)
	if err != nil {
		return err
	}
	s, err := a.scan()
	if err != nil {
		return err
	}
	if err := a.rows(s, r, r.kind, o, args); err != nil {
		return err
	}
	r.selectRows()
	r.sortRows()
	r.print(a.app, o, r.kind)
	for _, g := range s.Groups {
		for _, n := range g.Notices {
			fmt.Fprintln(a.err, "  WARNING: "+n)
		}
	}
	for _, err := range s.Broken {
		fmt.Fprintln(a.err, "  WARNING: "+err.Error())
	}
	return nil
}

// row is what a field is computed from.
type row struct {
	x    *vg.Group
	pv   *meta.PV
	disk *vg.Disk
	lv   *meta.LV
	seg  *meta.Segment
	live *liveLV
	run  vg.Use // of a PV, in a report by segments
}

// report is a table being made.
type report struct {
	of     string // what the command reports on
	kind   string // of its rows: "lv", "vg" or "pv"
	fields []*field
	keys   []sortKey
	// What -S selects, nil for everything, and the columns that it asks about.
	selects  condition
	selected []*field
	unit     unit
	suffix   bool
	rows     []row
}

type sortKey struct {
	f    *field
	back bool
}

// newReport resolves the options of a report: columns, units, order and selection.
func newReport(o reportFlags, kind, columns string) (*report, error) {
	u, err := parseUnits(o.units)
	if err != nil {
		return nil, err
	}
	if o.format != "basic" && o.format != "json" {
		return nil, usage.Errorf("report format %q: must be basic or json", o.format)
	}
	r := &report{of: kind, unit: u, suffix: !o.noSuffix}
	names := strings.Split(columns, ",")
	for _, part := range splitOptions(o.options) {
		list := strings.Split(part[1:], ",")
		switch part[0] {
		case '=':
			names = list
		case '+':
			names = append(names, list...)
		case '-', '#':
			names = slices.DeleteFunc(names, func(n string) bool {
				f := findField(n, kind)
				return slices.ContainsFunc(list, func(l string) bool { return findField(l, kind) == f })
			})
		}
	}
	for _, n := range names {
		if all := strings.TrimSuffix(n, "_all"); all != n || n == "all" {
			for i := range fields {
				if n == "all" && fields[i].kind == kind || fields[i].kind == all {
					r.fields = append(r.fields, &fields[i])
				}
			}
			continue
		}
		f := findField(n, kind)
		if f == nil {
			return nil, fmt.Errorf("unrecognised field: %s (-o help lists them)", n)
		}
		r.fields = append(r.fields, f)
	}
	if o.sort == "" { // as lvm2 does, whether these columns are shown or not
		o.sort = map[string]string{"lv": "vg_name,lv_name", "vg": "vg_name", "pv": "pv_name"}[kind]
	}
	for _, k := range strings.Split(o.sort, ",") {
		name := strings.TrimLeft(k, "+-")
		f := findField(name, kind)
		if f == nil {
			return nil, fmt.Errorf("unrecognised sort field: %s", name)
		}
		r.keys = append(r.keys, sortKey{f, k[0] == '-'})
	}
	if o.selection != "" {
		var err error
		if r.selects, r.selected, err = parseSelection(o.selection, kind); err != nil {
			return nil, err
		}
	}
	return r, r.settleKind(kind)
}

// settleKind makes a report of groups one of volumes or devices if columns ask
// for that, as lvm2 does; volumes and devices do not mix.
func (r *report) settleKind(kind string) error {
	r.kind = kind
	of := func(f *field) error {
		k := f.kind
		switch k {
		case "seg":
			k = "lv"
		case "pvseg":
			k = "pv"
		}
		switch {
		case k == "vg" || k == r.kind:
		case r.kind == "vg":
			r.kind = k
		default:
			return fmt.Errorf("the columns of volumes and of devices cannot be in one report: %s; use lvs and pvs", f.name)
		}
		return nil
	}
	for _, f := range r.fields {
		if err := of(f); err != nil {
			return err
		}
	}
	for _, k := range r.keys {
		if err := of(k.f); err != nil {
			return err
		}
	}
	for _, f := range r.selected {
		if err := of(f); err != nil {
			return err
		}
	}
	return nil
}

// splitOptions cuts "a,b+c,d" into "=a,b" and "+c,d".
func splitOptions(s string) []string {
	if s == "" {
		return nil
	}
	if s[0] != '+' && s[0] != '-' && s[0] != '#' {
		s = "=" + s
	}
	var out []string
	start := 0
	for i := 1; i <= len(s); i++ {
		if i == len(s) || s[i] == '+' || s[i] == '#' {
			out = append(out, s[start:i])
			start = i
		}
	}
	return out
}

// bySegments reports whether a column, a sort key or the selection is about segments.
func (r *report) bySegments() bool {
	seg := func(f *field) bool { return strings.HasSuffix(f.kind, "seg") }
	return slices.ContainsFunc(r.fields, seg) || slices.ContainsFunc(r.selected, seg) ||
		slices.ContainsFunc(r.keys, func(k sortKey) bool { return seg(k.f) })
}

// rows collects the objects of a report.
func (a reports) rows(s *vg.Scan, r *report, kind string, o reportFlags, args []string) error {
	seg := o.segments || r.bySegments()
	want := &named{args: args, found: map[string]bool{}}
	for _, x := range s.Groups {
		switch kind {
		case "vg":
			if want.any(append([]string{x.VG.Name}, x.VG.Tags...)...) {
				r.rows = append(r.rows, row{x: x})
			}
		case "pv":
			r.addPVs(x, want, seg)
		case "lv":
			r.addLVs(x, a.live(x.VG.Name), want, seg, o.all)
		}
	}
	if kind == "pv" && r.of != "vg" { // which is about devices of groups
		for _, d := range append(s.Orphans, blanks(s, o.all)...) {
			if want.any(d.Path) {
				r.rows = append(r.rows, row{disk: d})
			}
		}
	}
	return want.missing()
}

// addPVs adds a row for each device of a group; seg: for each run of its extents.
func (r *report) addPVs(x *vg.Group, want *named, seg bool) {
	for _, pv := range x.VG.PVs {
		d := x.Disks[pv.ID]
		name := pv.Device
		if d != nil {
			name = d.Path
		}
		if r.of == "vg" {
			name = x.VG.Name
		}
		if !want.any(name) {
			continue
		}
		runs := []vg.Use{{}}
		if seg {
			runs = pvRuns(x.VG, pv)
		}
		for _, u := range runs {
			r.rows = append(r.rows, row{x: x, pv: pv, disk: d, run: u})
		}
	}
}

// addLVs adds a row for each volume of a group, all: hidden ones too; seg: for each of its segments.
func (r *report) addLVs(x *vg.Group, live liveGroup, want *named, seg, all bool) {
	for _, lv := range x.VG.LVs {
		isSnap := len(lv.Segments) > 0 && lv.Segments[0].Type == meta.Snapshot
		if isSnap || !all && !x.VG.Shown(lv) || !want.any(append([]string{x.VG.Name, x.VG.Name + "/" + lv.Name}, lv.Tags...)...) {
			continue
		}
		l := live.of(lv, x.VG)
		if !seg {
			r.rows = append(r.rows, row{x: x, lv: lv, live: l})
			continue
		}
		for _, g := range lv.Segments {
			r.rows = append(r.rows, row{x: x, lv: lv, seg: g, live: l})
		}
	}
}

func blanks(s *vg.Scan, all bool) []*vg.Disk {
	if all {
		return s.Blank
	}
	return nil
}

// selectRows leaves those that -S selects.
func (r *report) selectRows() {
	if r.selects != nil {
		r.rows = slices.DeleteFunc(r.rows, func(x row) bool { return !r.selects(&x) })
	}
}

func (r *report) sortRows() {
	sort.SliceStable(r.rows, func(i, j int) bool {
		for _, k := range r.keys {
			c := k.f.compare(&r.rows[i], &r.rows[j])
			if k.back {
				c = -c
			}
			if c != 0 {
				return c < 0
			}
		}
		return false
	})
}

func (a reports) listFields(kind string) {
	lists := map[string][]string{"lv": {"lv", "vg", "seg"}, "pv": {"pv", "vg", "pvseg"}, "vg": {"lv", "pv", "vg", "seg", "pvseg"}}
	for _, k := range lists[kind] {
		for i := range fields {
			if fields[i].kind == k {
				fmt.Fprintf(a.err, "    %-22s - %s\n", fields[i].name, fields[i].help)
			}
		}
	}
}
