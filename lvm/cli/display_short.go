package cli

import (
	"fmt"
	"strings"

	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// What lvm2's display commands print instead of one value a line: with colons between
// the values, sizes only, and where the extents are.

// colons prints values as programs of old take them.
func (d *displayer) colons(values ...any) {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprint(v)
	}
	d.say("%s", strings.Join(words, ":"))
}

// bit is n if on.
func bit(on bool, n int) int {
	if on {
		return n
	}
	return 0
}

func (d *displayer) colonLV(r *row) {
	lv, ahead := r.lv, int64(-1)
	if n, ok := readAhead(r); ok {
		ahead = int64(n / 512)
	}
	const noNumber, noMajor, noMinor = -1, -1, -1
	d.colons("/dev/"+r.x.VG.Name+"/"+lv.Name, r.x.VG.Name, 1+bit(lv.Is("WRITE"), 2), bit(r.live.active, 1), noNumber, bit(r.live.open, 1),
		lv.Extents()*r.x.VG.ExtentSize, lv.Extents(), noNumber, bit(lv.Alloc == "contiguous", 2), ahead, noMajor, noMinor)
}

func (d *displayer) colonVG(r *row) {
	v := r.x.VG
	total, free := vgTotals(v)
	access, status := "r", 0x100
	if v.Is("WRITE") {
		access, status = "r/w", 0x300
	}
	status += bit(v.Is("RESIZEABLE"), 4) + bit(v.Is("EXPORTED"), 2)
	lvs, _ := findField("lv_count", "vg").num(r)
	const noNumber, noMaximum = -1, -1
	d.colons(v.Name, access, status, noNumber, v.MaxLV, lvs, d.openLVs(v), noMaximum, v.MaxPV, len(v.PVs), len(r.x.Disks),
		total*v.ExtentSize/2, v.ExtentSize/2, total, total-free, free, v.ID)
}

func (d *displayer) colonPV(r *row) {
	d.announce(r)
	name, id := findField("pv_name", "pv").str(r), findField("pv_uuid", "pv").str(r)
	const noNumber = -1
	if r.pv == nil {
		d.colons(name, "", r.disk.Size()/512, noNumber, 0, 0, noNumber, 0, 0, 0, 0, id)
		return
	}
	v, free := r.x.VG, vg.Free(r.x.VG, r.pv)
	may := bit(r.pv.Allocatable(), 8)
	d.colons(name, v.Name, r.pv.DevSize, noNumber, may+bit(v.Is("EXPORTED"), 2), may, noNumber, v.ExtentSize/2, r.pv.PECount, free, r.pv.PECount-free, id)
}

// announce says what is special about a physical volume.
func (d *displayer) announce(r *row) {
	switch name := findField("pv_name", "pv").str(r); {
	case r.pv == nil:
		d.say("%q is a new physical volume of %q", name, d.size(uint64(r.disk.Size())))
	case r.x.VG.Is("EXPORTED"):
		d.say("Physical volume %q of volume group %q is exported", name, r.x.VG.Name)
	}
}

func (d *displayer) shortVG(r *row) {
	v, es := r.x.VG, r.x.VG.ExtentSize*512
	total, free := vgTotals(v)
	d.say("%q %-9s [%-9s used / %s free]", v.Name, d.size(total*es), d.size((total-free)*es), d.size(free*es))
}

func (d *displayer) shortPV(r *row) {
	var free uint64
	if r.pv != nil {
		free = vg.Free(r.x.VG, r.pv) * r.x.VG.ExtentSize * 512
	} else {
		free = uint64(r.disk.Size())
	}
	d.say("Device %q has a capacity of %s", findField("pv_name", "pv").str(r), d.size(free))
}

// openLVs counts the volumes of a group that are open.
func (d *displayer) openLVs(v *meta.VG) (n int) {
	live := d.live(v.Name)
	for _, lv := range v.LVs {
		if v.Shown(lv) && live.of(lv, v).open {
			n++
		}
	}
	return n
}

// mapLV shows the segments of a volume.
func (d *displayer) mapLV(r *row) {
	d.say("--- Segments ---")
	for _, s := range r.lv.Segments {
		kind := "Logical"
		if s.Type == meta.Thin {
			kind = "Virtual"
		}
		d.say("%s extents %d to %d:", kind, s.Start, s.Start+s.Count-1)
		d.mapSegment(r, s)
		d.say(" ")
	}
	d.say(" ")
}

// mapSegment prints where a segment lies, for lvdisplay -m.
func (d *displayer) mapSegment(r *row, s *meta.Segment) {
	typ := s.Type
	if typ == meta.Striped && len(s.Stripes) == 1 {
		typ = "linear"
	}
	d.say("  Type\t\t%s", typ)
	switch s.Type {
	case meta.Thin:
		d.say("  Device ID\t\t%d", s.DeviceID)
	case meta.ThinPool:
		zero := "no"
		if s.ZeroNew {
			zero = "yes"
		}
		thins, _ := findField("thin_count", "seg").num(r)
		d.say("  Monitoring\t\t%s", "") // dmeventd's
		d.say("  Chunk size\t\t%s", d.size(s.ChunkSize*512))
		d.say("  Discards\t\t%s", s.Discards)
		d.say("  Thin count\t\t%d", thins)
		d.say("  Transaction ID\t%d", s.TransactionID)
		d.say("  Zero new blocks\t%s", zero)
	case meta.Striped:
		if len(s.Stripes) == 1 {
			d.mapArea(r, "  ", s, s.Stripes[0])
			return
		}
		d.say("  Stripes\t\t%d", len(s.Stripes))
		d.say("  Stripe size\t\t%s", d.size(s.StripeSize*512))
		for i, a := range s.Stripes {
			d.say("  Stripe %d:", i)
			d.mapArea(r, "    ", s, a)
		}
	}
}

// mapArea shows where a stripe of a segment is.
func (d *displayer) mapArea(r *row, indent string, s *meta.Segment, a meta.Area) {
	what, name := "Logical volume", a.Name
	if pv := r.x.VG.PV(a.Name); pv != nil {
		what, name = "Physical volume", findField("pv_name", "pv").str(&row{x: r.x, pv: pv, disk: r.x.Disks[pv.ID]})
	}
	d.say("%s%s\t%s", indent, what, name)
	d.say("%s%s extents\t%d to %d", indent, strings.TrimSuffix(what, " volume"), a.Off, a.Off+s.AreaLen()-1)
}

// mapPV shows what the extents of a physical volume are used for.
func (d *displayer) mapPV(r *row) {
	if r.pv == nil {
		d.say(" ")
		return
	}
	d.say("--- Physical Segments ---")
	for _, u := range pvRuns(r.x.VG, r.pv) {
		d.say("Physical extent %d to %d:", u.Off, u.Off+u.Len-1)
		lv, s := segmentAt(r.x.VG, r.pv.Name, u)
		if s == nil {
			d.say("  FREE")
			continue
		}
		d.say("  Logical volume\t/dev/%s/%s", r.x.VG.Name, lv.Name)
		d.say("  Logical extents\t%d to %d", s.Start, s.Start+s.Count-1)
	}
	d.say(" ")
}

// segmentAt finds whose run of extents it is, nil for a free one.
func segmentAt(v *meta.VG, pv string, u vg.Use) (*meta.LV, *meta.Segment) {
	lv := v.LV(u.LV)
	if lv == nil {
		return nil, nil
	}
	for _, s := range lv.Segments {
		for _, a := range s.Stripes {
			if a.Name == pv && a.Off == u.Off {
				return lv, s
			}
		}
	}
	return nil, nil
}
