package vg

import (
	"errors"
	"fmt"
	"io"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// Disk is an opened device that may be a physical volume.
type Disk struct {
	Path  string
	Dev   blockdev.Device // nil: opened for reading only
	Label *Label          // nil: no label
	Areas []*Area

	r    io.ReaderAt
	size int64
}

// Label is what makes a device a physical volume: its UUID, its size, and where its
// metadata areas and its data are, offsets and sizes in bytes. It is read from one of the
// first four sectors.
type Label = ondisk.Label

// Extent is a range of bytes of a physical volume, as its Label names them.
type Extent = ondisk.Area

// Area is one metadata area as found on its disk.
type Area struct {
	Disk *Disk
	VG   *meta.VG // nil: no text (orphan), or damaged
	Err  error    // why it is damaged

	loc    Extent
	header *ondisk.MDAHeader // nil when damaged
}

// NewDisk looks at a device that is open for reading and writing.
func NewDisk(path string, dev blockdev.Device) (*Disk, error) {
	d := &Disk{Path: path, Dev: dev, r: dev, size: dev.Info().Size}
	return d, d.Read()
}

// NewReader looks at a device of size bytes that is only read: for reports.
func NewReader(path string, r io.ReaderAt, size int64) (*Disk, error) {
	d := &Disk{Path: path, r: r, size: size}
	return d, d.Read()
}

// Size is the size of the device, bytes.
func (d *Disk) Size() int64 {
	if d.Dev != nil {
		return d.Dev.Info().Size
	}
	return d.size
}

// Read reads label and metadata (again). Damage in an area is recorded there
// and is no error; a device without label is none either.
func (d *Disk) Read() error {
	d.Label, d.Areas = nil, nil
	head := make([]byte, ondisk.ScanSectors*ondisk.SectorSize)
	if d.Size() < int64(len(head)) {
		return nil
	}
	if err := d.readAt(head, 0); err != nil {
		return wrapf(err, "%s: reading the label", d.Path)
	}
	l, err := ondisk.FindLabel(head)
	if errors.Is(err, ondisk.ErrNoLabel) {
		return nil
	}
	if err != nil {
		return wrapf(err, "%s", d.Path)
	}
	d.Label = l
	for _, m := range l.Meta {
		a := &Area{Disk: d, loc: m}
		a.Err = a.read()
		d.Areas = append(d.Areas, a)
	}
	return nil
}

// InUse reports whether the label says that the PV belongs to a group.
func (d *Disk) InUse() bool { return d.Label != nil && d.Label.ExtFlags&ondisk.PVInUse != 0 }

// Ignored reports whether the area holds no current text on purpose.
func (a *Area) Ignored() bool {
	return a.header != nil && a.header.Committed.Flags&ondisk.LocnIgnored != 0
}

// Size of the area and what is free in it, bytes.
func (a *Area) Size() (size, free uint64) {
	if a.header == nil {
		return a.loc.Size, 0
	}
	return a.header.Size, a.header.Free(a.header.Committed.Size)
}

// read reads the area's header and the text that it points to, and checks both.
func (a *Area) read() error {
	size := uint64(a.Disk.Size())
	if a.loc.Offset > size || a.loc.Size > size-a.loc.Offset || a.loc.Size < 2*ondisk.MDAHeaderLen {
		return fmt.Errorf("%s: metadata area %d+%d lies outside the device", a.Disk.Path, a.loc.Offset, a.loc.Size)
	}
	b := make([]byte, ondisk.MDAHeaderLen)
	if err := a.Disk.readAt(b, int64(a.loc.Offset)); err != nil {
		return wrapf(err, "%s: reading the metadata area", a.Disk.Path)
	}
	h, err := ondisk.ParseMDAHeader(b, a.loc.Offset)
	if err != nil {
		return wrapf(err, "%s", a.Disk.Path)
	}
	if h.Size > size-a.loc.Offset {
		return fmt.Errorf("%s: metadata area says %d bytes, beyond the end of the device", a.Disk.Path, h.Size)
	}
	a.header = h
	c := h.Committed
	if c.Offset == 0 || c.Size == 0 || a.Ignored() {
		return nil
	}
	if c.Size > meta.MaxText {
		return fmt.Errorf("%s: metadata text of %d bytes: more than %d are not read", a.Disk.Path, c.Size, meta.MaxText)
	}
	text := make([]byte, c.Size)
	p, q := h.Split(c.Offset, c.Size)
	err = a.Disk.readAt(text[:p.Size], int64(p.Offset))
	if err == nil && q.Size > 0 {
		err = a.Disk.readAt(text[p.Size:], int64(q.Offset))
	}
	if err != nil {
		return wrapf(err, "%s: reading the metadata text", a.Disk.Path)
	}
	if ondisk.CRC(text) != c.Checksum {
		return fmt.Errorf("%s: metadata text: %w", a.Disk.Path, ondisk.ErrChecksum)
	}
	vg, err := meta.Load(text)
	if err != nil {
		return wrapf(err, "%s", a.Disk.Path)
	}
	a.VG = vg
	return nil
}

// readAt and writeAt reach ranges that are not multiples of the device's
// block, as label and text are on a disk with blocks of 4096 bytes.
func (d *Disk) readAt(p []byte, off int64) error {
	if d.Dev == nil {
		_, err := d.r.ReadAt(p, off)
		return err
	}
	bs := int64(d.Dev.Info().BlockSize)
	if (off|int64(len(p)))&(bs-1) == 0 {
		_, err := d.Dev.ReadAt(p, off)
		return err
	}
	lo, hi := off&^(bs-1), (off+int64(len(p))+bs-1)&^(bs-1)
	b := make([]byte, hi-lo)
	if _, err := d.Dev.ReadAt(b, lo); err != nil {
		return err
	}
	copy(p, b[off-lo:])
	return nil
}

func (d *Disk) writeAt(p []byte, off int64) error {
	if d.Dev == nil {
		return fmt.Errorf("%s: opened for reading only: %w", d.Path, blockdev.ErrReadOnly)
	}
	bs := int64(d.Dev.Info().BlockSize)
	if (off|int64(len(p)))&(bs-1) == 0 {
		_, err := d.Dev.WriteAt(p, off)
		return err
	}
	lo, hi := off&^(bs-1), (off+int64(len(p))+bs-1)&^(bs-1)
	b := make([]byte, hi-lo)
	if _, err := d.Dev.ReadAt(b, lo); err != nil {
		return err
	}
	copy(b[off-lo:], p)
	_, err := d.Dev.WriteAt(b, lo)
	return err
}

// writeLabel stores the label in its sector and makes it durable.
func (d *Disk) writeLabel() error {
	b, err := d.Label.Append(nil)
	if err != nil {
		return wrapf(err, "%s", d.Path)
	}
	if err := d.writeAt(b, int64(d.Label.Sector)*ondisk.SectorSize); err != nil {
		return wrapf(err, "%s: writing the label", d.Path)
	}
	return d.Dev.Flush()
}

// setInUse changes the label's mark and its device size when needed.
func (d *Disk) setInUse(on bool) error {
	l := d.Label
	flags := l.ExtFlags &^ ondisk.PVInUse
	if on {
		flags |= ondisk.PVInUse
	}
	if l.ExtVersion != 0 && flags == l.ExtFlags {
		return nil
	}
	l.ExtVersion, l.ExtFlags = 2, flags
	return d.writeLabel()
}
