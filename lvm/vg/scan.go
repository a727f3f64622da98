package vg

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// Group is a volume group and the disks it was found on.
type Group struct {
	VG      *meta.VG
	Disks   map[meta.UUID]*Disk // by PV UUID; absent: missing
	Stale   []*Area             // copies that are damaged or older: repaired by the next commit
	Notices []string            // what a user should know

	cfg   Config
	fresh bool // not on disk yet
}

// Scan is the result of looking at a set of disks.
type Scan struct {
	Groups  []*Group
	Orphans []*Disk // PVs of no group
	Blank   []*Disk // devices without a label
	Broken  []error // groups that cannot be used, and why
}

// ScanDisks sorts disks into groups.
func ScanDisks(cfg Config, disks []*Disk) *Scan {
	s := &Scan{}
	byID, twice := map[ondisk.UUID]*Disk{}, map[ondisk.UUID]bool{}
	for _, d := range disks {
		if d.Label == nil {
			s.Blank = append(s.Blank, d)
			continue
		}
		if o := byID[d.Label.UUID]; o != nil {
			twice[d.Label.UUID] = true
			s.Broken = append(s.Broken, fmt.Errorf("%s and %s are both physical volume %s: one is a copy; leave it out or change its UUID", o.Path, d.Path, d.Label.UUID))
			continue
		}
		byID[d.Label.UUID] = d
	}
	best := map[ondisk.UUID]*meta.VG{}
	for _, d := range disks {
		for _, a := range d.Areas {
			if a.VG != nil && (best[a.VG.ID] == nil || a.VG.Seqno > best[a.VG.ID].Seqno) {
				best[a.VG.ID] = a.VG
			}
		}
	}
	owned := map[*Disk]bool{}
	for _, vg := range best {
		err := apart(vg, disks)
		if err != nil {
			s.Broken = append(s.Broken, err)
		}
		// Which of two disks is the copy nobody can tell.
		if err != nil || slices.ContainsFunc(vg.PVs, func(pv *meta.PV) bool { return twice[pv.ID] }) {
			for _, d := range disks {
				owned[d] = owned[d] || d.holds(vg.ID) || d.Label != nil && vg.PVByID(d.Label.UUID) != nil
			}
			continue
		}
		s.Groups = append(s.Groups, newGroup(cfg, vg, byID, best, owned))
	}
	slices.SortFunc(s.Groups, func(a, b *Group) int {
		return cmp.Or(strings.Compare(a.VG.Name, b.VG.Name), bytes.Compare(a.VG.ID[:], b.VG.ID[:]))
	})
	for _, d := range disks {
		if d.Label == nil || owned[d] || twice[d.Label.UUID] {
			continue
		}
		if err := damage(d); d.InUse() && err != nil {
			s.Broken = append(s.Broken, err)
			continue
		}
		s.Orphans = append(s.Orphans, d)
	}
	return s
}

// apart says that two disks hold different texts of vg with the same number, of which nobody can tell which is
// the newer one: each was changed while the other disk was away. lvm2 compares checksums; its versions
// that stamp each copy by itself make what differs in nothing else.
func apart(vg *meta.VG, disks []*Disk) error {
	var first *Area
	for _, d := range disks {
		for _, a := range d.Areas {
			switch {
			case a.VG == nil || a.VG.ID != vg.ID || a.VG.Seqno != vg.Seqno:
			case first == nil:
				first = a
			case a.header.Committed.Checksum != first.header.Committed.Checksum && !bytes.Equal(a.VG.Text(&meta.Stamp{}), first.VG.Text(&meta.Stamp{})):
				return fmt.Errorf("%s and %s hold different metadata of volume group %q with seqno %d, as each was changed without the other: give the devices of one side alone, or restore one of the two to all with lvm2's vgcfgrestore",
					first.Disk.Path, d.Path, vg.Name, vg.Seqno)
			}
		}
	}
	return nil
}

// holds reports whether an area of the disk has a text of the group.
func (d *Disk) holds(group ondisk.UUID) bool {
	return slices.ContainsFunc(d.Areas, func(a *Area) bool { return a.VG != nil && a.VG.ID == group })
}

// damage describes a disk that says it belongs to a group of which no
// readable copy was found.
func damage(d *Disk) error {
	var why []string
	for _, a := range d.Areas {
		if a.Err != nil {
			why = append(why, a.Err.Error())
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%s belongs to a volume group, but %w (%s); restore it from an archive with lvm2's vgcfgrestore", d.Path, ErrDamaged, strings.Join(why, "; "))
}

// newGroup puts together a group from its metadata and the disks that were found, and
// notes what is missing. best has the newest text of each group.
func newGroup(cfg Config, vg *meta.VG, byID map[ondisk.UUID]*Disk, best map[ondisk.UUID]*meta.VG, owned map[*Disk]bool) *Group {
	g := &Group{VG: vg, Disks: map[ondisk.UUID]*Disk{}, cfg: cfg}
	for _, pv := range vg.PVs {
		d := byID[pv.ID]
		if d == nil {
			g.note("physical volume %s (%s) of volume group %q is missing", pv.ID, pv.Device, vg.Name)
			continue
		}
		if o := d.movedTo(vg, best); o != nil {
			g.note("physical volume %s (%s) of volume group %q belongs to %q now, and is missing here", pv.ID, d.Path, vg.Name, o.Name)
			continue
		}
		owned[d] = true
		g.Disks[pv.ID] = d
		if pv.Missing() {
			g.note("physical volume %s (%s) was missing before and has come back: its content may be old", pv.ID, d.Path)
		}
		for _, a := range d.Areas {
			switch {
			case a.Ignored():
			case a.Err != nil:
				g.Stale = append(g.Stale, a)
				g.note("%v; the copy with seqno %d is used", a.Err, vg.Seqno)
			case a.VG == nil || a.VG.ID != vg.ID || a.VG.Seqno != vg.Seqno:
				g.Stale = append(g.Stale, a)
				g.note("%s holds older metadata than seqno %d", d.Path, vg.Seqno)
			}
		}
	}
	return g
}

// movedTo returns the group that a disk of vg has gone to: both texts name it, and its own is the
// other one. vg comes from a disk that was away when the group was removed from the others.
func (d *Disk) movedTo(vg *meta.VG, best map[ondisk.UUID]*meta.VG) *meta.VG {
	for _, a := range d.Areas {
		if a.VG != nil && a.VG.ID != vg.ID && best[a.VG.ID].PVByID(d.Label.UUID) != nil {
			return best[a.VG.ID]
		}
	}
	return nil
}

func (g *Group) note(format string, a ...any) {
	g.Notices = append(g.Notices, fmt.Sprintf(format, a...))
}

// Find returns the group called name, which must be the only one: with ErrAmbiguous it is not.
func (s *Scan) Find(name string) (*Group, error) {
	var found *Group
	for _, g := range s.Groups {
		switch {
		case g.VG.Name != name:
		case found == nil:
			found = g
		case found.VG.ID != g.VG.ID:
			return nil, fmt.Errorf("volume group name %q %w: %s and %s are called so. Rename one (vgrename, with its devices alone), or give only the devices of one",
				name, ErrAmbiguous, found.where(), g.where())
		}
	}
	if found != nil {
		return found, nil
	}
	if len(s.Broken) > 0 {
		return nil, fmt.Errorf("volume group %q: %w", name, errors.Join(s.Broken...))
	}
	return nil, fmt.Errorf("volume group %q %w", name, ErrNotFound)
}

// where tells a group from others of its name.
func (g *Group) where() string {
	var paths []string
	for _, d := range g.Disks {
		paths = append(paths, d.Path)
	}
	slices.Sort(paths)
	return fmt.Sprintf("%s on %s", g.VG.ID, strings.Join(paths, ", "))
}

// Disk returns the disk of a PV, or an error that names it.
func (g *Group) Disk(pv *meta.PV) (*Disk, error) {
	if d := g.Disks[pv.ID]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%s (%s): %w", pv.ID, pv.Device, ErrMissing)
}

// PVByPath returns the PV that lies on the device of that path.
func (g *Group) PVByPath(path string) *meta.PV {
	for _, pv := range g.VG.PVs {
		if d := g.Disks[pv.ID]; d != nil && d.Path == path {
			return pv
		}
	}
	return nil
}
