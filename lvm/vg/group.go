package vg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// GroupOptions are the choices of vgcreate.
type GroupOptions struct {
	ExtentSize uint64 // sectors; 0 is 8192: 4 MiB
	MaxLV      uint64
	MaxPV      uint64
	Alloc      string // "" is normal
	Tags       []string
}

// DefaultExtent is lvm2's default extent size, sectors.
const DefaultExtent = 8192

// Create makes a volume group of disks, each of which is a PV of no group.
func (c Config) Create(name string, disks []*Disk, o GroupOptions, why string) (*Group, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if o.ExtentSize == 0 {
		o.ExtentSize = DefaultExtent
	}
	if o.ExtentSize&(o.ExtentSize-1) != 0 && o.ExtentSize%256 != 0 {
		return nil, fmt.Errorf("extent size of %d sectors is neither a power of two nor a multiple of 128 KiB", o.ExtentSize)
	}
	if o.ExtentSize > meta.MaxExtentSize {
		return nil, fmt.Errorf("extent size of %d sectors is more than %d, the largest that is understood", o.ExtentSize, meta.MaxExtentSize)
	}
	g := &Group{cfg: c, fresh: true, Disks: map[ondisk.UUID]*Disk{}}
	g.VG = &meta.VG{Name: name, ID: ondisk.NewUUID(), Format: "lvm2", Status: []string{"RESIZEABLE", "READ", "WRITE"},
		ExtentSize: o.ExtentSize, MaxLV: o.MaxLV, MaxPV: o.MaxPV, Alloc: o.Alloc, Tags: o.Tags}
	if len(disks) == 0 {
		return nil, fmt.Errorf("volume group %q needs at least one physical volume", name)
	}
	return g, g.extend(disks, why)
}

// Extend adds disks to the group.
func (g *Group) Extend(disks []*Disk, why string) error {
	if !g.VG.Is("RESIZEABLE") {
		return fmt.Errorf("volume group %q is not resizeable", g.VG.Name)
	}
	return g.extend(disks, why)
}

// extend adds disks to the group.
func (g *Group) extend(disks []*Disk, why string) error {
	next := g.VG
	if !g.fresh {
		next = g.VG.Clone()
	}
	if next.MaxPV != 0 && uint64(len(next.PVs)+len(disks)) > next.MaxPV {
		return fmt.Errorf("volume group %q takes at most %d physical volumes", next.Name, next.MaxPV)
	}
	for _, d := range disks {
		if d.InUse() {
			return fmt.Errorf("%s already belongs to a volume group; if none has it, because a vgextend, vgreduce or vgremove was interrupted, make it anew (pvcreate -ff)", d.Path)
		}
		pv, err := pvOf(d, next.ExtentSize)
		if err != nil {
			return err
		}
		if next.PVByID(pv.ID) != nil {
			return fmt.Errorf("%s is given twice", d.Path)
		}
		next.AddPV(pv)
	}
	// The labels say "in use" before the text names the disks: a cut between
	// the two leaves disks that vgcreate refuses, never disks in two groups.
	var err error
	for _, d := range disks {
		g.Disks[d.Label.UUID] = d
		if err = d.setInUse(true); err != nil {
			break
		}
	}
	if err == nil {
		err = g.Commit(next, why)
	}
	if err != nil {
		for _, d := range disks {
			if g.Disks[d.Label.UUID] == nil {
				break // so far it has come
			}
			delete(g.Disks, d.Label.UUID)
			if e := d.setInUse(false); e != nil {
				g.note("%v", e)
			}
		}
	}
	return err
}

// Reduce takes empty PVs out of the group; missing ones too when they hold
// nothing.
func (g *Group) Reduce(pvs []*meta.PV, why string) error {
	next := g.VG.Clone()
	used := Used(next)
	var disks []*Disk
	for _, pv := range pvs {
		npv := next.PVByID(pv.ID)
		if npv == nil {
			return fmt.Errorf("physical volume %s is not in volume group %q", pv.ID, next.Name)
		}
		if u := used[npv.Name]; len(u) > 0 {
			return fmt.Errorf("physical volume %s is still in use by %q: move it away with pvmove first", pv.Device, u[0].LV)
		}
		next.RemovePV(npv)
		if d := g.Disks[pv.ID]; d != nil {
			disks = append(disks, d)
		}
	}
	if len(next.PVs) == 0 {
		return fmt.Errorf("cannot take the last physical volume out of %q: use vgremove", next.Name)
	}
	if err := g.Commit(next, why); err != nil {
		return err
	}
	var errs []error
	for _, d := range disks {
		delete(g.Disks, d.Label.UUID)
		if err := d.release(); err != nil {
			errs = append(errs, fmt.Errorf("%w (it is out of the group, and still marked: pvremove -ff)", err))
		}
	}
	return errors.Join(errs...)
}

// Remove ends the group; it must have no logical volumes.
func (g *Group) Remove(why string) error {
	if n := len(g.VG.LVs); n > 0 {
		return fmt.Errorf("volume group %q still has %s", g.VG.Name, english.Plural(n, "logical volume", ""))
	}
	unlock, err := g.cfg.lock(g.VG.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := g.verifyUnchanged(); err != nil {
		return err
	}
	if err := g.cfg.archive(g.VG, "Created *before* "+why); err != nil {
		return err
	}
	for _, d := range g.Disks {
		if err := d.release(); err != nil {
			return err
		}
	}
	return nil
}

// Rename gives the group another name.
func (g *Group) Rename(name, why string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	next := g.VG.Clone()
	next.Name = name
	return g.Commit(next, why)
}

// release clears a disk's metadata areas and its mark: an orphan PV is left.
func (d *Disk) release() error {
	for _, a := range d.Areas {
		h := ondisk.MDAHeader{Start: a.loc.Offset, Size: a.loc.Size}
		if err := d.writeAt(h.Append(nil), int64(a.loc.Offset)); err != nil {
			return wrapf(err, "%s: clearing the metadata area", d.Path)
		}
	}
	if err := d.Dev.Flush(); err != nil {
		return err
	}
	if err := d.setInUse(false); err != nil {
		return err
	}
	return d.Read()
}

// CheckName says why a name is not one that lvm2 accepts.
func CheckName(name string) error { return meta.CheckName(name) }

// CheckLVName also refuses the names that lvm2 keeps for itself.
func CheckLVName(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	for _, p := range []string{"pvmove", "snapshot"} {
		if strings.HasPrefix(name, p) {
			return fmt.Errorf("name %q: names that begin with %q are reserved", name, p)
		}
	}
	for _, p := range []string{"_mlog", "_mimage", "_rimage", "_rmeta", "_tdata", "_tmeta", "_cdata", "_cmeta", "_corig", "_pmspare", "_vdata", "_vorigin", "_imeta", "_iorig"} {
		if strings.Contains(name, p) {
			return fmt.Errorf("name %q: names with %q in them are reserved", name, p)
		}
	}
	return nil
}
