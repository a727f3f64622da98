package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

func (a *app) displayCommands() []*cobra.Command {
	return []*cobra.Command{
		a.display("pvdisplay [PV...]", "Show physical volumes in full", "pv", a.displayPV),
		a.display("vgdisplay [VG...]", "Show volume groups in full", "vg", a.displayVG),
		a.display("lvdisplay [VG[/LV]...]", "Show logical volumes in full", "lv", a.displayLV),
	}
}

// display is a command that shows the objects of a report one after another.
func (a *app) display(use, short, kind string, show func(*row)) *cobra.Command {
	var all bool
	c := &cobra.Command{Use: use, Short: short}
	if kind == "lv" {
		c.Flags().BoolVarP(&all, "all", "a", false, "hidden logical volumes too")
	}
	for name, letter := range map[string]string{"colon": "c", "columns": "C", "maps": "m", "short": "s"} {
		c.Flags().BoolP(name, letter, false, "refused: "+kind+"s -o shows the same in columns")
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"colon", "columns", "maps", "short"} {
			if cmd.Flags().Changed(name) {
				return usage.Errorf("--%s is not done here; `%ss -o` shows the same in columns, -o help lists them", name, kind)
			}
		}
		s, err := a.scan()
		if err != nil {
			return err
		}
		r := &report{kind: kind}
		if err := a.rows(s, r, kind, reportFlags{all: all}, args); err != nil {
			return err
		}
		for i := range r.rows {
			show(&r.rows[i])
		}
		return nil
	}
	return c
}

// line prints a name and a value in lvm2's columns.
func (a *app) line(width int, name, format string, args ...any) {
	a.say("%-*s %s", width, name, fmt.Sprintf(format, args...))
}

func (a *app) displayLV(r *row) {
	line := func(name, format string, args ...any) { a.line(22, name, format, args...) }
	v, lv, es := r.x.VG, r.lv, r.x.VG.ExtentSize*512
	pool, thin := segment(lv, meta.ThinPool), segment(lv, meta.Thin)
	_, snap := v.SnapshotSegment(lv.Name)
	a.say("--- Logical volume ---")
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
	a.displaySource(r)
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
	if r.live.known {
		status, open := "NOT available", 0
		if r.live.active {
			status = "available"
		}
		if r.live.open {
			open = 1
		}
		line("LV Status", "%s", status)
		if r.live.active {
			line("# open", "%d", open)
		}
	}
	extents := lv.Extents()
	if snap != nil {
		extents = snap.Count
	}
	line("LV Size", "%s", longSize(extents*es))
	line("Current LE", "%d", extents)
	if snap != nil {
		line("COW-table size", "%s", longSize(lv.Extents()*es))
		line("COW-table LE", "%d", lv.Extents())
		if r.live.data != nil {
			line("Allocated to snapshot", "%s%%", pct(r.live.data))
		}
		line("Snapshot chunk size", "%s", longSize(snap.ChunkSize*512))
	}
	if pool != nil && r.live.data != nil {
		line("Allocated pool data", "%s%%", pct(r.live.data))
		line("Allocated metadata", "%s%%", pct(r.live.meta))
	}
	if thin != nil && r.live.data != nil {
		line("Mapped size", "%s%%", pct(r.live.data))
	}
	line("Segments", "%d", len(lv.Segments))
	line("Allocation", "%s", findField("lv_allocation_policy", "lv").str(r))
	ahead := "auto"
	if n, ok := readAhead(r); ok {
		ahead = fmt.Sprint(n / 512)
	}
	line("Read ahead sectors", "%s", ahead)
	a.say(" ")
}

// displaySource lists the classic snapshots of a volume.
func (a *app) displaySource(r *row) {
	v := r.x.VG
	name, live := "LV snapshot status", a.live(v.Name)
	for _, lv := range v.LVs {
		if _, s := v.SnapshotSegment(lv.Name); s == nil || s.Origin != r.lv.Name {
			continue
		}
		if name != "" {
			a.line(22, name, "source of")
			name = ""
		}
		a.line(22, "", "%s [%s]", lv.Name, activeWord(live.of(lv, v)))
	}
}

func activeWord(l *liveLV) string {
	if l.active && !l.invalid {
		return "active"
	}
	return "INACTIVE"
}

func (a *app) displayVG(r *row) {
	line := func(name, format string, args ...any) { a.line(21, name, format, args...) }
	v, es := r.x.VG, r.x.VG.ExtentSize*512
	number := func(column string) int64 { n, _ := findField(column, "vg").num(r); return n }
	total, free := vgTotals(v)
	access, status, open := "read", "", 0
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
	live := a.live(v.Name)
	for _, lv := range v.LVs {
		if v.Shown(lv) && live.of(lv, v).open {
			open++
		}
	}
	a.say("--- Volume group ---")
	line("VG Name", "%s", v.Name)
	line("System ID", "%s", v.SystemID)
	line("Format", "lvm2")
	line("Metadata Areas", "%d", number("vg_mda_count"))
	line("Metadata Sequence No", "%d", v.Seqno)
	line("VG Access", "%s", access)
	line("VG Status", "%s", status)
	line("MAX LV", "%d", v.MaxLV)
	line("Cur LV", "%d", number("lv_count"))
	line("Open LV", "%d", open)
	line("Max PV", "%d", v.MaxPV)
	line("Cur PV", "%d", len(v.PVs))
	line("Act PV", "%d", len(r.x.Disks))
	line("VG Size", "%s", longSize(total*es))
	line("PE Size", "%s", longSize(es))
	line("Total PE", "%d", total)
	line("Alloc PE / Size", "%d / %s", total-free, longSize((total-free)*es))
	line("Free  PE / Size", "%d / %s", free, longSize(free*es))
	line("VG UUID", "%s", v.ID)
	a.say(" ")
}

func (a *app) displayPV(r *row) {
	line := func(name, format string, args ...any) { a.line(21, name, format, args...) }
	text := func(column string) string { return findField(column, "pv").str(r) }
	var group, size string
	var es, total, free uint64
	title, allocatable := "--- NEW Physical volume ---", "NO"
	if r.pv != nil {
		title, group, es = "--- Physical volume ---", r.x.VG.Name, r.x.VG.ExtentSize*512
		total, free = r.pv.PECount, vg.Free(r.x.VG, r.pv)
		device := r.pv.DevSize * 512
		size = fmt.Sprintf("%s / not usable %s", longSize(device), longSize(device-total*es))
		if r.pv.Allocatable() {
			allocatable = "yes "
			if free == 0 {
				allocatable = "yes (but full)"
			}
		}
	} else {
		size = longSize(uint64(r.disk.Size()))
		a.say("%q is a new physical volume of %q", text("pv_name"), size)
	}
	a.say("%s", title)
	line("PV Name", "%s", text("pv_name"))
	line("VG Name", "%s", group)
	line("PV Size", "%s", size)
	line("Allocatable", "%s", allocatable)
	line("PE Size", "%s", longSize(es))
	line("Total PE", "%d", total)
	line("Free PE", "%d", free)
	line("Allocated PE", "%d", total-free)
	line("PV UUID", "%s", text("pv_uuid"))
	a.say(" ")
}

// longSize is a size with the unit in words: "12.00 MiB".
func longSize(n uint64) string {
	s := display(n, 'r', true)
	number, unit := s[:len(s)-1], s[len(s)-1:]
	switch unit {
	case " ": // zero
		return number + "   "
	case "B":
		return number + " B  "
	}
	return number + " " + strings.ToUpper(unit) + "iB"
}
