package vg

import (
	"fmt"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// PVOptions are the choices of pvcreate. The zero value is lvm2's default: one
// metadata area of just under 1 MiB, extents from 1 MiB on.
type PVOptions struct {
	Force        bool // overwrite foreign signatures or an older PV
	InUse        bool // overwrite a PV that says that it belongs to a group
	UUID         meta.UUID
	MetadataSize uint64 // bytes; 0 the default
	Copies       int    // metadata areas: 0 means 1; 2 puts another at the end; -1 none
	DataAlign    uint64 // bytes; 0 is 1 MiB
}

const defaultAlign = 1 << 20

// CreatePV makes d a physical volume.
func (c Config) CreatePV(d *Disk, o PVOptions) error {
	unlock, err := c.lockGlobal()
	if err != nil {
		return err
	}
	defer unlock()
	if d.Dev == nil || d.Dev.Info().ReadOnly {
		return fmt.Errorf("%s: %w", d.Path, blockdev.ErrReadOnly)
	}
	if d.InUse() && !o.InUse {
		return inUse(d)
	}
	if d.Label != nil && !o.Force {
		return fmt.Errorf("%s already is a physical volume (%s); force to make a new one of it", d.Path, d.Label.UUID)
	}
	if err := d.guard(o.Force); err != nil {
		return err
	}
	l, err := d.layOut(&o)
	if err != nil {
		return err
	}
	// Other sectors that a label could be in must not hold an old one.
	for s := 0; s < ondisk.ScanSectors; s++ {
		if s != l.Sector {
			if err := d.wipeLabel(s); err != nil {
				return err
			}
		}
	}
	for _, m := range l.Meta {
		h := ondisk.MDAHeader{Start: m.Offset, Size: m.Size}
		if err := d.writeAt(h.Append(nil), int64(m.Offset)); err != nil {
			return wrapf(err, "%s: writing the metadata area", d.Path)
		}
	}
	if err := d.Dev.Flush(); err != nil {
		return wrapf(err, "%s", d.Path)
	}
	d.Label = l
	if err := d.writeLabel(); err != nil {
		return err
	}
	return d.Read()
}

// layOut says where everything is to lie on d as a new physical volume.
func (d *Disk) layOut(o *PVOptions) (*ondisk.Label, error) {
	align := o.DataAlign
	if align == 0 {
		align = defaultAlign
	}
	mda := ondisk.Area{Offset: ondisk.MDAStart, Size: ondisk.MDADefault}
	if o.MetadataSize != 0 {
		mda.Size = (o.MetadataSize + ondisk.SectorSize - 1) &^ (ondisk.SectorSize - 1)
	}
	start := (mda.Offset + mda.Size + align - 1) / align * align
	if o.MetadataSize != 0 {
		mda.Size = start - mda.Offset // lvm2 too gives the area all the room before the data
	}
	if o.Copies < 0 {
		start = align
	}
	size, end := uint64(d.Size()), align // end: room behind the metadata area, for data or another one
	if o.Copies >= 2 {
		end = max(mda.Size&^(align-1), align)
	}
	if size < start+end {
		return nil, fmt.Errorf("%s has %d bytes: too small for a physical volume (at least %d)", d.Path, size, start+end)
	}
	l := &ondisk.Label{Sector: ondisk.LabelSector, UUID: o.UUID, DevSize: size,
		Data: []ondisk.Area{{Offset: start}}, ExtVersion: 2}
	if l.UUID.IsZero() {
		l.UUID = ondisk.NewUUID()
	}
	if o.Copies >= 0 {
		l.Meta = append(l.Meta, mda)
	}
	if o.Copies >= 2 {
		l.Meta = append(l.Meta, ondisk.Area{Offset: (size - end) &^ (align - 1), Size: end})
	}
	return l, nil
}

// wipeLabel takes away the label that may be in sector s.
func (d *Disk) wipeLabel(s int) error {
	b := make([]byte, ondisk.SectorSize)
	if err := d.readAt(b, int64(s)*ondisk.SectorSize); err != nil {
		return wrapf(err, "%s", d.Path)
	}
	if string(b[:8]) != "LABELONE" {
		return nil
	}
	clear(b[:32])
	return d.writeAt(b, int64(s)*ondisk.SectorSize)
}

// inUse refuses a disk whose mark says that it belongs to a group.
func inUse(d *Disk) error {
	return fmt.Errorf("%s belongs to a volume group: take it out with vgreduce first; if the group does not have it, because a vgextend, vgreduce or vgremove was interrupted, -ff overrides this", d.Path)
}

// RemovePV makes d an ordinary device again. force does so even if it says that it belongs to a group: the mark
// is made before a group has it, and outlives an interrupted removal.
func (c Config) RemovePV(d *Disk, force bool) error {
	unlock, err := c.lockGlobal()
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case d.Label == nil:
		return fmt.Errorf("%s is no physical volume", d.Path)
	case d.InUse() && !force:
		return inUse(d)
	}
	if err := d.wipeLabel(d.Label.Sector); err != nil {
		return err
	}
	if err := d.Dev.Flush(); err != nil {
		return err
	}
	return d.Read()
}

// pvOf describes a fresh disk as a PV of a group with that extent size.
func pvOf(d *Disk, extentSize uint64) (*meta.PV, error) {
	if d.Label == nil || len(d.Label.Data) == 0 {
		return nil, fmt.Errorf("%s is no physical volume: use pvcreate first", d.Path)
	}
	pv := &meta.PV{ID: d.Label.UUID, Device: d.Path, Status: []string{"ALLOCATABLE"},
		DevSize: uint64(d.Size()) / ondisk.SectorSize, PEStart: d.Label.Data[0].Offset / ondisk.SectorSize}
	pv.PECount = d.extents(pv.PEStart, extentSize)
	if pv.PECount == 0 {
		return nil, fmt.Errorf("%s has no room for an extent of %d sectors", d.Path, extentSize)
	}
	return pv, nil
}

// extents counts what fits between start and the end, or a metadata area there.
func (d *Disk) extents(start, extentSize uint64) uint64 {
	end := uint64(d.Size()) / ondisk.SectorSize
	for _, m := range d.Label.Meta {
		if s := m.Offset / ondisk.SectorSize; s > start && s < end {
			end = s
		}
	}
	if end <= start {
		return 0
	}
	return (end - start) / extentSize
}

// ResizePV takes the present size of the device, or size bytes if not 0, into
// the metadata. It refuses to cut off extents that are in use.
func (g *Group) ResizePV(pv *meta.PV, size uint64, why string) error {
	d, err := g.Disk(pv)
	if err != nil {
		return err
	}
	have := uint64(d.Size())
	if size == 0 {
		size = have
	}
	if size > have {
		return fmt.Errorf("%s has only %d bytes", d.Path, have)
	}
	next := g.VG.Clone()
	npv := next.PVByID(pv.ID)
	npv.DevSize = size / ondisk.SectorSize
	if npv.DevSize < npv.PEStart {
		return fmt.Errorf("%s: %d bytes do not even reach the first extent", d.Path, size)
	}
	n := (npv.DevSize - npv.PEStart) / next.ExtentSize
	if m := d.extents(npv.PEStart, next.ExtentSize); n > m {
		n = m
	}
	for _, u := range Used(next)[npv.Name] {
		if u.Off+u.Len > n {
			return fmt.Errorf("%s: extent %d is in use by %q and beyond the new end (%d extents): move it away with pvmove first", d.Path, u.Off+u.Len-1, u.LV, n)
		}
	}
	npv.PECount = n
	if err := g.Commit(next, why); err != nil {
		return err
	}
	if d.Label.DevSize != size {
		d.Label.DevSize = size
		return d.writeLabel()
	}
	return nil
}
