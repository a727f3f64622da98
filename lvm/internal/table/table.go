// Package table maps a linear address space onto pieces of other devices,
// whole or striped, as the "linear" and "striped" targets of device-mapper do.
//
//	linear    |====== A ======|=== B ===|
//	striped   | A0 | B0 | C0 | A1 | B1 | C1 | ...      each one chunk long
//
// Nothing is copied: a lease within one piece is filled by the disk below, in
// one call; one across several is made of leases on them, kept in its own state.
// So a volume on mapped disks lends the disks' mappings to readers.
package table

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"softiser/blockdev"
	"softiser/lvm/internal/swap"
)

// Stripe is a place on a lower device.
type Stripe struct {
	Dev blockdev.Device
	Off int64 // bytes

	// Disk: Dev is no table itself, nor has one below, and may lend into the
	// table's own leases.
	Disk bool
}

// Run is a range of the table, striped over one or more places.
type Run struct {
	Len     int64 // bytes; a multiple of len(Stripes)*Chunk when striped
	Stripes []Stripe
	Chunk   int64 // bytes, with more than one stripe
}

type run struct {
	Run
	start int64
}

// Device is an immutable table. Lower devices belong to whoever made it.
type Device struct {
	info blockdev.Info
	runs []run
	devs []blockdev.Device // each once
}

// New makes a table of runs in order. id is its Info.ID.
func New(id string, runs []Run) (*Device, error) {
	d := &Device{info: blockdev.Info{BlockSize: 512, PhysBlockSize: 512, Discard: true, ZeroesOnTrim: true, Backend: "lvm", ID: id}}
	for _, r := range runs {
		if r.Len <= 0 || len(r.Stripes) == 0 || len(r.Stripes) > 1 && (r.Chunk <= 0 || r.Len%(r.Chunk*int64(len(r.Stripes))) != 0) {
			return nil, fmt.Errorf("table %s: run of %d bytes over %d stripes of %d", id, r.Len, len(r.Stripes), r.Chunk)
		}
		per := r.Len / int64(len(r.Stripes))
		for _, s := range r.Stripes {
			i := s.Dev.Info()
			if s.Off < 0 || s.Off > i.Size || per > i.Size-s.Off {
				return nil, fmt.Errorf("table %s: %d bytes at %d lie outside %s, which has %d", id, per, s.Off, i.ID, i.Size)
			}
			if (s.Off|per|r.Chunk)%int64(i.BlockSize) != 0 {
				return nil, fmt.Errorf("table %s: a run on %s is not aligned to its blocks of %d bytes", id, i.ID, i.BlockSize)
			}
			d.combine(i)
			if !slices.Contains(d.devs, s.Dev) {
				d.devs = append(d.devs, s.Dev)
			}
		}
		d.runs = append(d.runs, run{r, d.info.Size})
		d.info.Size += r.Len
	}
	d.info.CacheID = cacheID(d.devs)
	return d, nil
}

func (d *Device) combine(i blockdev.Info) {
	d.info.BlockSize = max(d.info.BlockSize, i.BlockSize)
	d.info.PhysBlockSize = max(d.info.PhysBlockSize, i.PhysBlockSize)
	d.info.ReadOnly = d.info.ReadOnly || i.ReadOnly
	d.info.WriteCache = d.info.WriteCache || i.WriteCache
	d.info.Discard = d.info.Discard && i.Discard
	d.info.DiscardAlign = max(d.info.DiscardAlign, i.DiscardAlign)
	d.info.ZeroesOnTrim = d.info.ZeroesOnTrim && i.ZeroesOnTrim
	d.info.Thin = d.info.Thin || i.Thin
	d.info.Rotational = d.info.Rotational || i.Rotational
}

// cacheID names the caches of all disks together: if one of them is another, what
// was written to the table may be lost.
func cacheID(devs []blockdev.Device) string {
	var ids []string
	for _, dev := range devs {
		id := dev.Info().CacheID
		if id == "" {
			return ""
		}
		ids = append(ids, id)
	}
	return strings.Join(ids, "+")
}

// SetReadOnly makes every write fail; call it before the table is used.
func (d *Device) SetReadOnly() { d.info.ReadOnly = true }

// Info implements blockdev.Device.
func (d *Device) Info() blockdev.Info { return d.info }

// find returns the index of the run that holds off.
func (d *Device) find(off int64) int {
	if len(d.runs) == 1 {
		return 0
	}
	return sort.Search(len(d.runs), func(i int) bool { return d.runs[i].start > off }) - 1
}

// piece maps the start of [off, off+n) that is contiguous below.
func (r *run) piece(off, n int64) (s *Stripe, at, k int64) {
	rel := off - r.start
	n = min(n, r.Len-rel)
	width := int64(len(r.Stripes))
	if width == 1 {
		s = &r.Stripes[0]
		return s, s.Off + rel, n
	}
	chunk, in := rel/r.Chunk, rel%r.Chunk
	s = &r.Stripes[chunk%width]
	return s, s.Off + chunk/width*r.Chunk + in, min(n, r.Chunk-in)
}

// each calls f for the pieces of a checked range, in order.
func (d *Device) each(off, n int64, f func(dev blockdev.Device, at, n, off int64) error) error {
	for i := d.find(off); n > 0; i++ {
		r := &d.runs[i]
		for n > 0 && off < r.start+r.Len {
			s, at, k := r.piece(off, n)
			if err := f(s.Dev, at, k, off); err != nil {
				return err
			}
			off, n = off+k, n-k
		}
	}
	return nil
}

// Pieces calls f for each piece of [off, off+n) in order: where it lies below.
func (d *Device) Pieces(off, n int64, f func(dev blockdev.Device, at, n int64)) error {
	if err := d.info.Check(off, n); err != nil {
		return err
	}
	return d.each(off, n, func(dev blockdev.Device, at, n, _ int64) error { f(dev, at, n); return nil })
}

// ReadAt implements blockdev.Device.
func (d *Device) ReadAt(p []byte, off int64) (int, error) {
	if err := d.info.Check(off, int64(len(p))); err != nil {
		return 0, err
	}
	err := d.each(off, int64(len(p)), func(dev blockdev.Device, at, n, o int64) error {
		_, err := dev.ReadAt(p[o-off:o-off+n], at)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements blockdev.Device.
func (d *Device) WriteAt(p []byte, off int64) (int, error) {
	if err := d.info.CheckWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	err := d.each(off, int64(len(p)), func(dev blockdev.Device, at, n, o int64) error {
		_, err := dev.WriteAt(p[o-off:o-off+n], at)
		return err
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements blockdev.Device.
func (d *Device) Flush() error {
	for _, dev := range d.devs {
		if err := dev.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// FlushRange implements blockdev.Device.
func (d *Device) FlushRange(off, n int64) error {
	if err := d.info.Check(off, n); err != nil {
		return err
	}
	return d.each(off, n, func(dev blockdev.Device, at, n, _ int64) error { return dev.FlushRange(at, n) })
}

// Discard implements blockdev.Device.
func (d *Device) Discard(off, n int64) error {
	if err := d.info.CheckWrite(off, n); err != nil {
		return err
	}
	if !d.info.Discard {
		return blockdev.ErrNotSupported
	}
	return d.each(off, n, func(dev blockdev.Device, at, n, _ int64) error { return dev.Discard(at, n) })
}

// WriteZeroes implements blockdev.Device.
func (d *Device) WriteZeroes(off, n int64, mayUnmap bool) error {
	if err := d.info.CheckWrite(off, n); err != nil {
		return err
	}
	return d.each(off, n, func(dev blockdev.Device, at, n, _ int64) error { return dev.WriteZeroes(at, n, mayUnmap) })
}

// Erase implements blockdev.Eraser.
func (d *Device) Erase(off, n int64) error {
	if err := d.info.CheckWrite(off, n); err != nil {
		return err
	}
	return d.each(off, n, func(dev blockdev.Device, at, n, _ int64) error { return swap.Erase(dev, at, n) })
}

// Extents implements blockdev.Device.
func (d *Device) Extents(off, n int64) ([]blockdev.Extent, error) {
	if err := d.info.Check(off, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return []blockdev.Extent{{Off: off, Data: true}}, nil
	}
	var out []blockdev.Extent
	err := d.each(off, n, func(dev blockdev.Device, at, n, o int64) error {
		es, err := dev.Extents(at, n)
		for _, e := range es {
			e.Off += o - at
			if k := len(out); k > 0 && out[k-1].Data == e.Data && out[k-1].Off+out[k-1].Len == e.Off {
				out[k-1].Len += e.Len
				continue
			}
			out = append(out, e)
		}
		return err
	})
	return out, err
}

// OnResize implements blockdev.Device; a table never changes its size.
func (d *Device) OnResize(func(blockdev.Info)) func() { return func() {} }

// Close implements blockdev.Device; the lower devices stay open.
func (d *Device) Close() error { return nil }
