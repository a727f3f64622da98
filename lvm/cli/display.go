package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// displayCommands are pvdisplay, vgdisplay and lvdisplay.
type displayCommands struct{ reports }

func (a displayCommands) all() []*cobra.Command {
	return []*cobra.Command{
		a.display("pvdisplay [PV...]", "Show physical volumes in full", "pv"),
		a.display("vgdisplay [VG...]", "Show volume groups in full", "vg"),
		a.display("lvdisplay [VG[/LV]...]", "Show logical volumes in full", "lv"),
	}
}

// displayFlags are the options of lvm2's display commands. columns makes a report of
// them, whose own options mean something only then.
type displayFlags struct {
	reportFlags
	columns, colon, maps, short bool
}

// check refuses options that contradict each other, as lvm2 does.
func (o *displayFlags) check(cmd *cobra.Command, kind string) error {
	given := func(names ...string) string {
		for _, n := range names {
			if f := cmd.Flags().Lookup(n); f != nil && f.Changed {
				return n
			}
		}
		return ""
	}
	if o.columns {
		if n := given("colon", "maps", "short"); n != "" {
			return usage.Errorf("incompatible options selected: --columns and --%s", n)
		}
		return nil
	}
	only := []string{"options", "sort", "noheadings", "separator", "aligned"}
	if kind == "pv" {
		only = append(only, "all")
	}
	if n := given(only...); n != "" {
		return usage.Errorf("incompatible options selected: --%s is for --columns", n)
	}
	if n := given("maps", "short"); o.colon && n != "" {
		return usage.Errorf("option -c is not allowed with option --%s", n)
	}
	return nil
}

// display is a command that shows the objects of a report one after another.
func (a displayCommands) display(use, short, kind string) *cobra.Command {
	var o displayFlags
	c := &cobra.Command{Use: use, Short: short}
	f := c.Flags()
	o.add(f, true)
	f.BoolVarP(&o.columns, "columns", "C", false, "show columns, as "+kind+"s does")
	f.BoolVarP(&o.colon, "colon", "c", false, "one line for each, of values with colons between them")
	switch kind {
	case "lv":
		f.BoolVarP(&o.all, "all", "a", false, "hidden logical volumes too")
		f.BoolVarP(&o.maps, "maps", "m", false, "show where the extents are")
		f.BoolVar(&o.segments, "segments", false, "with --columns: one line for each segment")
	case "pv":
		f.BoolVarP(&o.all, "all", "a", false, "with --columns: devices that are no physical volumes too")
		f.BoolVarP(&o.maps, "maps", "m", false, "show what the extents are used for")
	}
	if kind != "lv" {
		f.BoolVarP(&o.short, "short", "s", false, "show sizes only")
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(cmd, kind); err != nil {
			return err
		}
		if o.columns {
			return a.showReport(o.reportFlags, kind, args)
		}
		return a.showAll(o, kind, args)
	}
	return c
}

// showAll shows one object after another.
func (a displayCommands) showAll(o displayFlags, kind string, args []string) error {
	s, err := a.scan()
	if err != nil {
		return err
	}
	r, err := newReport(o.reportFlags, kind, kind+"_name")
	if err != nil {
		return err
	}
	if r.kind != kind {
		return fmt.Errorf("selection by columns of volumes or devices is not done for groups here")
	}
	if err := a.rows(s, r, kind, reportFlags{all: o.all && kind == "lv"}, args); err != nil {
		return err
	}
	r.selectRows()
	d := displayer{app: a.app, o: o, unit: r.unit}
	show := map[string]func(*row){"lv": d.displayLV, "vg": d.displayVG, "pv": d.displayPV}[kind]
	switch {
	case o.short:
		show = map[string]func(*row){"vg": d.shortVG, "pv": d.shortPV}[kind]
	case o.colon:
		show = map[string]func(*row){"lv": d.colonLV, "vg": d.colonVG, "pv": d.colonPV}[kind]
	}
	// A selection by columns of segments has made a row of each.
	for _, x := range slices.CompactFunc(r.rows, func(x, y row) bool { return x.x == y.x && x.lv == y.lv && x.pv == y.pv && x.disk == y.disk }) {
		show(&x)
	}
	return nil
}

// displayer prints objects one after another.
type displayer struct {
	*app
	o    displayFlags
	unit unit
}

// size is a size with its unit in words: "12.00 MiB".
func (d *displayer) size(n uint64) string { return d.unit.long(n, !d.o.noSuffix) }

// line prints a name and a value in lvm2's columns.
func (d *displayer) line(width int, name, format string, args ...any) {
	d.say("%-*s %s", width, name, fmt.Sprintf(format, args...))
}

// displayLV prints a logical volume as lvdisplay does.
func (d *displayer) displayLV(r *row) {
	line := d.lvLine
	v, lv := r.x.VG, r.lv
	pool, thin := segment(lv, meta.ThinPool), segment(lv, meta.Thin)
	_, snap := v.SnapshotSegment(lv.Name)
	d.say("--- Logical volume ---")
	if v.Shown(lv) {
		if pool == nil {
			line("LV Path", "/dev/%s/%s", v.Name, lv.Name)
		}
		line("LV Name", "%s", lv.Name)
	} else {
		line("Internal LV Name", "%s", lv.Name)
	}
	line("VG Name", "%s", v.Name)
	line("LV UUID", "%s", lv.ID)
	access := "read only"
	if lv.Is("WRITE") {
		access = "read/write"
	}
	line("LV Write Access", "%s", access)
	line("LV Creation host, time", "%s, %s", lv.Host, findField("lv_time", "lv").str(r))
	d.displaySource(r)
	if snap != nil {
		line("LV snapshot status", "%s destination for %s", activeWord(r.live), snap.Origin)
	}
	switch {
	case thin != nil:
		line("LV Pool name", "%s", thin.Pool)
		if thin.Origin != "" {
			line("LV Thin origin name", "%s", thin.Origin)
		}
	case pool != nil:
		line("LV Pool metadata", "%s", pool.Metadata)
		line("LV Pool data", "%s", pool.Pool)
	}
	d.displayUse(r)
	d.displaySize(r)
	line("Segments", "%d", len(lv.Segments))
	line("Allocation", "%s", findField("lv_allocation_policy", "lv").str(r))
	ahead := "auto"
	if n, ok := readAhead(r); ok {
		ahead = fmt.Sprint(n / 512)
	}
	line("Read ahead sectors", "%s", ahead)
	d.say(" ")
	if d.o.maps {
		d.mapLV(r)
	}
}

func (d *displayer) lvLine(name, format string, args ...any) { d.line(22, name, format, args...) }

// displayUse prints whether a volume is in use, where that is known.
func (d *displayer) displayUse(r *row) {
	if !r.live.known {
		return
	}
	status, open := "NOT available", 0
	if r.live.active {
		status = "available"
	}
	if r.live.open {
		open = 1
	}
	d.lvLine("LV Status", "%s", status)
	if r.live.active {
		d.lvLine("# open", "%d", open)
	}
}

// displaySize prints the size of a volume, and how full its store or its pool is.
func (d *displayer) displaySize(r *row) {
	line, lv, es := d.lvLine, r.lv, r.x.VG.ExtentSize*512
	_, snap := r.x.VG.SnapshotSegment(lv.Name)
	extents := lv.Extents()
	if snap != nil {
		extents = snap.Count
	}
	line("LV Size", "%s", d.size(extents*es))
	line("Current LE", "%d", extents)
	if snap != nil {
		line("COW-table size", "%s", d.size(lv.Extents()*es))
		line("COW-table LE", "%d", lv.Extents())
		if r.live.data != nil {
			line("Allocated to snapshot", "%s%%", pct(r.live.data))
		}
		line("Snapshot chunk size", "%s", d.size(snap.ChunkSize*512))
	}
	if r.live.data == nil {
		return
	}
	if segment(lv, meta.ThinPool) != nil {
		line("Allocated pool data", "%s%%", pct(r.live.data))
		line("Allocated metadata", "%s%%", pct(r.live.meta))
	}
	if segment(lv, meta.Thin) != nil {
		line("Mapped size", "%s%%", pct(r.live.data))
	}
}

// displaySource lists the classic snapshots of a volume.
func (d *displayer) displaySource(r *row) {
	v := r.x.VG
	name, live := "LV snapshot status", d.live(v.Name)
	for _, lv := range v.LVs {
		if _, s := v.SnapshotSegment(lv.Name); s == nil || s.Origin != r.lv.Name {
			continue
		}
		if name != "" {
			d.lvLine(name, "source of")
			name = ""
		}
		d.lvLine("", "%s [%s]", lv.Name, activeWord(live.of(lv, v)))
	}
}

func activeWord(l *liveLV) string {
	if l.active && !l.invalid {
		return "active"
	}
	return "INACTIVE"
}

// displayVG prints a volume group as vgdisplay does.
func (d *displayer) displayVG(r *row) {
	line := func(name, format string, args ...any) { d.line(21, name, format, args...) }
	v, es := r.x.VG, r.x.VG.ExtentSize*512
	number := func(column string) int64 { n, _ := findField(column, "vg").num(r); return n }
	total, free := vgTotals(v)
	access, status := "read", ""
	if v.Is("WRITE") {
		access = "read/write"
	}
	if v.Is("EXPORTED") {
		status = "exported/"
	}
	if v.Is("RESIZEABLE") {
		status += "resizable"
	} else {
		status += "NOT resizable"
	}
	d.say("--- Volume group ---")
	line("VG Name", "%s", v.Name)
	line("System ID", "%s", v.SystemID)
	line("Format", "lvm2")
	line("Metadata Areas", "%d", number("vg_mda_count"))
	line("Metadata Sequence No", "%d", v.Seqno)
	line("VG Access", "%s", access)
	line("VG Status", "%s", status)
	line("MAX LV", "%d", v.MaxLV)
	line("Cur LV", "%d", number("lv_count"))
	line("Open LV", "%d", d.openLVs(v))
	line("Max PV", "%d", v.MaxPV)
	line("Cur PV", "%d", len(v.PVs))
	line("Act PV", "%d", len(r.x.Disks))
	line("VG Size", "%s", d.size(total*es))
	line("PE Size", "%s", d.size(es))
	line("Total PE", "%d", total)
	line("Alloc PE / Size", "%d / %s", total-free, d.size((total-free)*es))
	line("Free  PE / Size", "%d / %s", free, d.size(free*es))
	line("VG UUID", "%s", v.ID)
	d.say(" ")
}

// displayPV prints a physical volume as pvdisplay does, one that belongs to no group
// among them.
func (d *displayer) displayPV(r *row) {
	line := func(name, format string, args ...any) { d.line(21, name, format, args...) }
	text := func(column string) string { return findField(column, "pv").str(r) }
	d.announce(r)
	var group, size string
	var es, total, free uint64
	title, allocatable := "--- NEW Physical volume ---", "NO"
	if r.pv != nil {
		title, group, es = "--- Physical volume ---", r.x.VG.Name, r.x.VG.ExtentSize*512
		total, free = r.pv.PECount, vg.Free(r.x.VG, r.pv)
		if r.x.VG.Is("EXPORTED") {
			group += " (exported)"
		}
		device := r.pv.DevSize * 512
		size = fmt.Sprintf("%s / not usable %s", d.size(device), d.size(device-total*es))
		if r.pv.Allocatable() {
			allocatable = "yes "
			if free == 0 {
				allocatable = "yes (but full)"
			}
		}
	} else {
		size = d.size(uint64(r.disk.Size()))
	}
	d.say("%s", title)
	line("PV Name", "%s", text("pv_name"))
	line("VG Name", "%s", group)
	line("PV Size", "%s", size)
	line("Allocatable", "%s", allocatable)
	line("PE Size", "%s", d.size(es))
	line("Total PE", "%d", total)
	line("Free PE", "%d", free)
	line("Allocated PE", "%d", total-free)
	line("PV UUID", "%s", text("pv_uuid"))
	d.say(" ")
	if d.o.maps {
		d.mapPV(r)
	}
}
