package vg

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"softiser/internal/durable"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// TestAreaBounds: what a label or a header says of an area that does not lie within
// the device is damage, and nothing outside is read.
func TestAreaBounds(t *testing.T) {
	const size = 16 << 20
	for name, loc := range map[string]ondisk.Area{
		"behind the end":    {Offset: size + 4096, Size: 1 << 20},
		"across the end":    {Offset: size - 4096, Size: 8192},
		"around the world":  {Offset: 4096, Size: math.MaxUint64 - 4095},
		"the end overflows": {Offset: math.MaxUint64 - 511, Size: 1 << 20},
		"without room":      {Offset: 4096, Size: 2*ondisk.MDAHeaderLen - 1},
	} {
		dev := lvmtest.New(size)
		l := ondisk.Label{Sector: 1, UUID: ondisk.NewUUID(), DevSize: size, Data: []ondisk.Area{{Offset: 1 << 20}}, Meta: []ondisk.Area{loc}}
		sector, err := l.Append(nil)
		if err == nil {
			_, err = dev.WriteAt(sector, 512)
		}
		h := ondisk.MDAHeader{Start: 4096, Size: 1 << 20} // a good one, where a small area would be
		if err == nil {
			_, err = dev.WriteAt(h.Append(nil), 4096)
		}
		if err != nil {
			t.Fatal(err)
		}
		d, err := NewDisk("d", dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Areas[0].Err; err == nil || !strings.Contains(err.Error(), "lies outside the device") || d.Areas[0].header != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	dev := lvmtest.New(size)
	mustPV(t, testConfig(t), dev)
	h := ondisk.MDAHeader{Start: 4096, Size: size - 4096 + 512}
	if _, err := dev.WriteAt(h.Append(nil), 4096); err != nil {
		t.Fatal(err)
	}
	if d, err := NewDisk("d", dev); err != nil || d.Areas[0].Err == nil || !strings.Contains(d.Areas[0].Err.Error(), "beyond the end of the device") {
		t.Errorf("a header that is larger than the device: %v", err)
	}
}

// TestHugeText: a header that names a text as large as its disk takes no memory for it.
func TestHugeText(t *testing.T) {
	const size = 1 << 50
	dev := lvmtest.New(size)
	l := ondisk.Label{Sector: 1, UUID: ondisk.NewUUID(), DevSize: size, Data: []ondisk.Area{{Offset: 1 << 20}}, Meta: []ondisk.Area{{Offset: 4096, Size: size - 4096}}}
	sector, err := l.Append(nil)
	if err == nil {
		_, err = dev.WriteAt(sector, 512)
	}
	h := ondisk.MDAHeader{Start: 4096, Size: size - 4096, Committed: ondisk.Locn{Offset: 512, Size: size - 8192}}
	if err == nil {
		_, err = dev.WriteAt(h.Append(nil), 4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDisk("d", dev)
	if err != nil || d.Areas[0].Err == nil || !strings.Contains(d.Areas[0].Err.Error(), "are not read") {
		t.Errorf("%v, %+v", err, d.Areas)
	}
}

// TestTextChecksum: a text in which a digit has changed is well-formed, and damaged.
func TestTextChecksum(t *testing.T) {
	c := testConfig(t)
	dev := lvmtest.New(64 << 20)
	g, err := c.Create("vg0", mustPV(t, c, dev), GroupOptions{}, "vgcreate")
	if err == nil {
		err = addLV(g, "x", Request{Extents: 2})
	}
	if err != nil {
		t.Fatal(err)
	}
	a := g.Disks[g.VG.PVs[0].ID].Areas[0]
	p, _ := a.header.Split(a.header.Committed.Offset, a.header.Committed.Size)
	text := make([]byte, (p.Size+511)&^511)
	if _, err := dev.ReadAt(text, int64(p.Offset)); err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(text), "max_lv = 0")
	if i < 0 {
		t.Fatalf("%s", text)
	}
	text[i+len("max_lv = ")] = '9'
	if _, err := meta.Load(text[:p.Size]); err != nil {
		t.Fatal("the test's text is no text:", err)
	}
	if _, err := dev.WriteAt(text, int64(p.Offset)); err != nil {
		t.Fatal(err)
	}
	d, err := NewDisk("d", dev)
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Areas[0]; !errors.Is(a.Err, ondisk.ErrChecksum) || a.VG != nil {
		t.Errorf("%v; a text: %v", a.Err, a.VG != nil)
	}
}

// TestResizePV: the new size is that of label and metadata, leaves the area at the end
// alone, and cuts off nothing that is in use, be it a part of a run.
func TestResizePV(t *testing.T) {
	c := testConfig(t)
	dev := lvmtest.New(64 << 20)
	d, err := NewDisk("/dev/t0", dev)
	if err == nil {
		err = c.CreatePV(d, PVOptions{Copies: 2})
	}
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Create("vg0", []*Disk{d}, GroupOptions{ExtentSize: 2048}, "vgcreate")
	if err == nil {
		err = addLV(g, "x", Request{Extents: 10})
	}
	if err != nil {
		t.Fatal(err)
	}
	before := g.VG.PVs[0].PECount
	resize := func(size uint64) error { return g.ResizePV(g.VG.PVs[0], size, "pvresize") }
	if err := resize(64<<20 + 512); err == nil || g.VG.PVs[0].PECount != before {
		t.Errorf("larger than the device: %v", err)
	}
	if err := resize(64 << 20); err != nil || g.VG.PVs[0].PECount != before {
		t.Errorf("%v; %d extents, %d reach into the area at the end", err, before, g.VG.PVs[0].PECount)
	}
	if err := resize(1 << 19); err == nil {
		t.Error("the first extent is cut off")
	}
	start := g.VG.PVs[0].PEStart * 512
	for size, want := range map[uint64]uint64{start + 9<<20: 0, start + 10<<20 - 512: 0, start + 10<<20: 10} {
		err := resize(size)
		if (err == nil) != (want > 0) || err != nil && !strings.Contains(err.Error(), "move it away with pvmove") {
			t.Errorf("%d bytes: %v", size, err)
		}
		if want == 0 {
			continue
		}
		if got := g.VG.PVs[0]; got.PECount != want || got.DevSize != size/512 {
			t.Errorf("%d bytes: %d extents, %d sectors", size, got.PECount, got.DevSize)
		}
		if again, err := NewDisk("/dev/t0", dev); err != nil || again.Label.DevSize != size {
			t.Errorf("the label says %d bytes (%v), not %d", again.Label.DevSize, err, size)
		}
	}
}

// TestFilesAreDurable: archives and backups are on disk, with their names, before the
// change that they are of begins.
func TestFilesAreDurable(t *testing.T) {
	c := testConfig(t)
	l := &loggedDisk{Disk: lvmtest.New(16 << 20)}
	d, err := NewDisk("/dev/t0", l)
	if err == nil {
		err = c.CreatePV(d, PVOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Create("vg0", []*Disk{d}, GroupOptions{ExtentSize: 128}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	files, dirs := durable.SyncFile, durable.SyncDir
	t.Cleanup(func() { durable.SyncFile, durable.SyncDir = files, dirs })
	durable.SyncFile = func(f *os.File) error { l.log = append(l.log, "file"); return files(f) }
	durable.SyncDir = func(dir string) error { l.log = append(l.log, "name"); return dirs(dir) }
	l.log = nil
	if err := g.Commit(g.VG.Clone(), "nothing"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"file", "name", "text", "flush", "header", "flush", "header", "flush", "file", "name"}; !slices.Equal(l.log, want) {
		t.Errorf("a commit does %v", l.log)
	}
	broken := errors.New("broken")
	for _, fail := range []func(){func() { durable.SyncFile = func(*os.File) error { return broken } }, func() { durable.SyncFile = files; durable.SyncDir = func(string) error { return broken } }} {
		fail()
		l.log = nil
		if err := g.Commit(g.VG.Clone(), "nothing"); !errors.Is(err, broken) || len(l.log) > 0 {
			t.Errorf("without an archive: %v; the disk: %v", err, l.log)
		}
	}
}

// TestAreasDoNotOverlap: two metadata areas lie beside each other in the device, or it is refused.
func TestAreasDoNotOverlap(t *testing.T) {
	cfg := Config{LockDir: "-"}
	for size := int64(9 << 20); size <= 20<<20; size += 1<<20 - 4096 {
		d, err := NewDisk("d", lvmtest.New(size))
		if err != nil {
			t.Fatal(err)
		}
		err = cfg.CreatePV(d, PVOptions{Copies: 2, MetadataSize: 8 << 20})
		if err != nil {
			if d.Label != nil || size >= 18<<20 {
				t.Errorf("%d bytes: %v", size, err)
			}
			continue
		}
		m := d.Label.Meta
		if len(m) != 2 || m[0].Offset+m[0].Size > m[1].Offset || m[1].Offset+m[1].Size > uint64(size) {
			t.Errorf("%d bytes: the areas are %v", size, m)
		}
	}
}

// TestExtentSizes: no group is made that could not be read again.
func TestExtentSizes(t *testing.T) {
	cfg := Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-"}
	for _, n := range []uint64{meta.MaxExtentSize, 2 * meta.MaxExtentSize} {
		dev := lvmtest.New(4 << 40)
		d, err := NewDisk("d", dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.CreatePV(d, PVOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = cfg.Create("vg0", []*Disk{d}, GroupOptions{ExtentSize: n}, "vgcreate")
		if again, e := NewDisk("d", dev); e != nil || again.InUse() && again.Areas[0].VG == nil {
			t.Errorf("extents of %d sectors: %v, then %v", n, err, again.Areas[0].Err)
		}
		if (err == nil) != (n <= meta.MaxExtentSize) {
			t.Errorf("extents of %d sectors: %v", n, err)
		}
	}
}

// TestLayOut: data and metadata areas lie where lvm2 puts them (pvcreate(8): --metadatasize,
// --dataalignment, --metadatacopies), and extents end before an area behind them.
func TestLayOut(t *testing.T) {
	const mib = 1 << 20
	first := ondisk.Area{Offset: 4096, Size: mib - 4096}
	for _, tt := range []struct {
		size    int64
		o       PVOptions
		data    uint64
		meta    []ondisk.Area
		extents uint64 // of 4 MiB
	}{
		{64 * mib, PVOptions{}, mib, []ondisk.Area{first}, 15},
		{2 * mib, PVOptions{}, mib, []ondisk.Area{first}, 0},
		{2*mib - 512, PVOptions{}, 0, nil, 0},
		{65 * mib, PVOptions{MetadataSize: 1000}, mib, []ondisk.Area{first}, 16},
		{65 * mib, PVOptions{MetadataSize: mib - 4096}, mib, []ondisk.Area{first}, 16},
		{65 * mib, PVOptions{MetadataSize: mib - 4095}, 2 * mib, []ondisk.Area{{Offset: 4096, Size: 2*mib - 4096}}, 15},
		{65 * mib, PVOptions{MetadataSize: 2 * mib}, 3 * mib, []ondisk.Area{{Offset: 4096, Size: 3*mib - 4096}}, 15},
		{64 * mib, PVOptions{DataAlign: 4 * mib}, 4 * mib, []ondisk.Area{first}, 15},
		{65 * mib, PVOptions{Copies: -1}, mib, nil, 16},
		{65 * mib, PVOptions{Copies: -1, DataAlign: 64 << 10}, 64 << 10, nil, 16},
		{65 * mib, PVOptions{Copies: 1}, mib, []ondisk.Area{first}, 16},
		{65 * mib, PVOptions{Copies: 2}, mib, []ondisk.Area{first, {Offset: 64 * mib, Size: mib}}, 15},
		{66*mib - 512, PVOptions{Copies: 2}, mib, []ondisk.Area{first, {Offset: 64 * mib, Size: mib}}, 15},
		{66 * mib, PVOptions{Copies: 2}, mib, []ondisk.Area{first, {Offset: 65 * mib, Size: mib}}, 16},
		{64 * mib, PVOptions{Copies: 2, MetadataSize: 2 * mib}, 3 * mib, []ondisk.Area{{Offset: 4096, Size: 3*mib - 4096}, {Offset: 62 * mib, Size: 2 * mib}}, 14},
	} {
		d, err := NewDisk("/dev/t", lvmtest.New(tt.size))
		if err != nil {
			t.Fatal(err)
		}
		tt.o.UUID = ondisk.NewUUID()
		l, err := d.layOut(&tt.o)
		if (err == nil) != (tt.data != 0) {
			t.Errorf("%d bytes, %+v: %v", tt.size, tt.o, err)
		}
		if err != nil {
			continue
		}
		if len(l.Data) != 1 || l.Data[0] != (ondisk.Area{Offset: tt.data}) || !slices.Equal(l.Meta, tt.meta) || l.UUID != tt.o.UUID || l.DevSize != uint64(tt.size) || l.Sector != 1 {
			t.Errorf("%d bytes, %+v: %+v", tt.size, tt.o, l)
		}
		d.Label = l
		pv, err := pvOf(d, 4*mib/ondisk.SectorSize)
		if (err == nil) != (tt.extents != 0) || err == nil && (pv.PECount != tt.extents || pv.PEStart != tt.data/ondisk.SectorSize || pv.DevSize != uint64(tt.size)/ondisk.SectorSize) {
			t.Errorf("%d bytes, %+v: %+v, %v", tt.size, tt.o, pv, err)
		}
	}
}

// TestOldLabels: a label may lie in each of the first four sectors. A new one leaves none of another
// program's beside it, and taken away it leaves none at all.
func TestOldLabels(t *testing.T) {
	cfg := testConfig(t)
	for at := range ondisk.ScanSectors {
		dev := lvmtest.New(8 << 20)
		old := ondisk.Label{Sector: at, UUID: ondisk.NewUUID(), DevSize: 8 << 20, Data: []ondisk.Area{{Offset: 1 << 20}}}
		b, err := old.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dev.WriteAt(b, int64(at)*ondisk.SectorSize); err != nil {
			t.Fatal(err)
		}
		labels := func() (sectors []int) {
			head := make([]byte, ondisk.ScanSectors*ondisk.SectorSize)
			if _, err := dev.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			for s := range ondisk.ScanSectors {
				if string(head[s*ondisk.SectorSize:][:8]) == "LABELONE" {
					sectors = append(sectors, s)
				}
			}
			return sectors
		}
		d, err := NewDisk("/dev/t", dev)
		if err != nil || d.Label == nil || d.Label.UUID != old.UUID {
			t.Fatalf("in sector %d: %+v, %v", at, d, err)
		}
		if err := cfg.CreatePV(d, PVOptions{}); err == nil || !slices.Equal(labels(), []int{at}) {
			t.Errorf("in sector %d: a new label beside it, unasked: %v, labels in %v", at, err, labels())
		}
		if err := cfg.CreatePV(d, PVOptions{Force: true}); err != nil || d.Label.UUID == old.UUID || !slices.Equal(labels(), []int{ondisk.LabelSector}) {
			t.Errorf("in sector %d: a new label: %v, labels in %v", at, err, labels())
		}
		if err := cfg.RemovePV(d, false); err != nil || d.Label != nil || labels() != nil {
			t.Errorf("taken away: %v, labels in %v", err, labels())
		}
		if err := cfg.RemovePV(d, false); err == nil {
			t.Error("a label that is not there was taken away")
		}
	}
}
