package vg

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

func testConfig(t testing.TB) Config {
	dir := t.TempDir()
	return Config{LockDir: dir + "/lock", ArchiveDir: dir + "/archive", BackupDir: dir + "/backup", Host: "h"}
}

func mustPV(t testing.TB, c Config, devs ...*lvmtest.Disk) []*Disk {
	t.Helper()
	var out []*Disk
	for i, dev := range devs {
		d, err := NewDisk(fmt.Sprintf("/dev/t%d", i), dev)
		if err == nil && d.Label == nil {
			err = c.CreatePV(d, PVOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

func scan(t testing.TB, c Config, devs ...*lvmtest.Disk) *Scan {
	t.Helper()
	var ds []*Disk
	for i, dev := range devs {
		d, err := NewDisk(fmt.Sprintf("/dev/t%d", i), dev)
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, d)
	}
	return ScanDisks(c, ds)
}

func addLV(g *Group, name string, r Request) error {
	next := g.VG.Clone()
	segs, err := Allocate(next, r)
	if err != nil {
		return err
	}
	lv := &meta.LV{Name: name, ID: ondisk.NewUUID(), Status: []string{"READ", "WRITE", "VISIBLE"}}
	Append(lv, segs)
	next.LVs = append(next.LVs, lv)
	return g.Commit(next, "test")
}

func TestGroupLife(t *testing.T) {
	for _, block := range []int{512, 4096} {
		c := testConfig(t)
		a, b := lvmtest.New(64<<20), lvmtest.New(64<<20)
		a.Block, b.Block = block, block
		g, err := c.Create("vg0", mustPV(t, c, a, b), GroupOptions{}, "vgcreate")
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 40; i++ { // several times round the ring would need more; see TestRing
			if err := addLV(g, fmt.Sprintf("lv%d", i), Request{Extents: 1}); err != nil {
				if i < 30 {
					t.Fatal(i, err)
				}
				if !errors.Is(err, ErrNoExtents) {
					t.Fatal(err)
				}
				break
			}
		}
		s := scan(t, c, a, b)
		if len(s.Groups) != 1 || len(s.Groups[0].VG.LVs) != 30 || len(s.Groups[0].Notices) != 0 || s.Groups[0].VG.Seqno != 31 {
			t.Fatalf("block %d: %+v", block, s.Groups[0])
		}
		files, _ := filepath.Glob(c.ArchiveDir + "/vg0_*.vg")
		if len(files) != 30 {
			t.Errorf("%d archives", len(files))
		}
		text, err := os.ReadFile(c.BackupDir + "/vg0")
		if err != nil {
			t.Fatal(err)
		}
		if vg, err := meta.Load(text); err != nil || vg.Seqno != 31 {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(c.LockDir + "/*"); len(left) != 0 {
			t.Errorf("lock files left: %v", left)
		}
	}
}

// TestDiskMovedOn: a disk that has gone to another group, while another disk of its old one was away, is
// not taken back by the text that comes with that.
func TestDiskMovedOn(t *testing.T) {
	c := testConfig(t)
	a, b := lvmtest.New(64<<20), lvmtest.New(64<<20)
	if _, err := c.Create("old", mustPV(t, c, a, b), GroupOptions{}, "vgcreate"); err != nil {
		t.Fatal(err)
	}
	if err := scan(t, c, a).Groups[0].Remove("vgremove"); err != nil { // b is away
		t.Fatal(err)
	}
	g, err := c.Create("new", mustPV(t, c, a), GroupOptions{}, "vgcreate")
	if err == nil {
		err = addLV(g, "lv", Request{Extents: 3})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(g *Group) error{
		(*Group).Repair,
		func(g *Group) error { return g.Remove("vgremove") },
	} {
		old, err := scan(t, c, a, b).Find("old")
		if err != nil {
			t.Fatal(err)
		}
		if len(old.Disks) != 1 || !strings.Contains(strings.Join(old.Notices, "\n"), `belongs to "new" now`) {
			t.Errorf("%d disks, %q", len(old.Disks), old.Notices)
		}
		if err := f(old); err != nil {
			t.Fatal(err)
		}
		is, err := scan(t, c, a).Find("new")
		if err != nil {
			t.Fatal(err)
		}
		if is.VG.LV("lv") == nil || len(is.Notices) != 0 {
			t.Errorf("the new group has %v, %q", is.VG.LVs, is.Notices)
		}
	}
}

// TestChangedApart: a group of which two disks were changed without each other is refused, as nobody can tell
// which is right, until one of them is the newer one.
func TestChangedApart(t *testing.T) {
	c := testConfig(t)
	a, b := lvmtest.New(64<<20), lvmtest.New(64<<20)
	if _, err := c.Create("vg0", mustPV(t, c, a, b), GroupOptions{}, "vgcreate"); err != nil {
		t.Fatal(err)
	}
	same := scan(t, c, a, b).Groups[0].VG
	for name, d := range map[string]*lvmtest.Disk{"x": a, "y": b} {
		if err := addLV(scan(t, c, d).Groups[0], name, Request{Extents: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s := scan(t, c, a, b)
		if len(s.Groups) != 0 || len(s.Orphans) != 0 || len(s.Broken) != 1 {
			t.Fatalf("%+v", s)
		}
		if _, err := s.Find("vg0"); err == nil || !strings.Contains(err.Error(), `/dev/t0 and /dev/t1 hold different metadata of volume group "vg0" with seqno 2`) {
			t.Error(err)
		}
	}
	if err := addLV(scan(t, c, a).Groups[0], "z", Request{Extents: 1}); err != nil {
		t.Fatal(err)
	}
	g, err := scan(t, c, a, b).Find("vg0")
	if err != nil || g.VG.LV("x") == nil || g.VG.LV("y") != nil || len(g.Stale) != 1 {
		t.Fatalf("%+v, %v", g, err)
	}
	// Copies that differ in their stamps alone are the same.
	if err := g.Repair(); err != nil {
		t.Fatal(err)
	}
	next := g.VG.Clone()
	next.Seqno++
	for i, d := range g.areas(next) {
		one := transaction{g: g, next: next, areas: []*Area{d}, headers: make([]ondisk.MDAHeader, 1)}
		one.text = next.Text(&meta.Stamp{Time: time.Unix(int64(i), 0)})
		for _, step := range []func(int, *Area) error{one.writeText, flush(), one.precommit, flush()} {
			if err := one.do(step); err != nil {
				t.Fatal(err)
			}
		}
		if err := one.commit(); err != nil {
			t.Fatal(err)
		}
	}
	if s := scan(t, c, a, b); len(s.Groups) != 1 || len(s.Groups[0].Stale) != 0 || s.Groups[0].VG.Seqno != same.Seqno+4 {
		t.Errorf("%+v", s)
	}
}

// TestExtendFails: a disk that cannot be marked takes those that have been with it out again.
func TestExtendFails(t *testing.T) {
	c := testConfig(t)
	a, b := lvmtest.New(64<<20), lvmtest.New(64<<20)
	disks := mustPV(t, c, a, b)
	b.CutAfter(0)
	if _, err := c.Create("vg0", disks, GroupOptions{}, "vgcreate"); err == nil {
		t.Fatal("a disk takes what it cannot")
	}
	if _, err := c.Create("vg0", mustPV(t, c, a), GroupOptions{}, "vgcreate"); err != nil {
		t.Error(err)
	}
}

// TestReduceFails: a disk that cannot be cleared leaves no other one marked.
func TestReduceFails(t *testing.T) {
	c := testConfig(t)
	devs := []*lvmtest.Disk{lvmtest.New(64 << 20), lvmtest.New(64 << 20), lvmtest.New(64 << 20)}
	g, err := c.Create("vg0", mustPV(t, c, devs...), GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	devs[1].CutAfter(0)
	if err := g.Reduce(slices.Clone(g.VG.PVs[1:]), "vgreduce"); err == nil || !strings.Contains(err.Error(), "pvremove -ff") {
		t.Fatal(err)
	}
	if s := scan(t, c, devs[0], devs[2]); len(s.Groups) != 1 || len(s.Groups[0].VG.PVs) != 1 || len(s.Orphans) != 1 || s.Orphans[0].InUse() {
		t.Errorf("%+v", s)
	}
}

// TestStaleWriter: a second process that read earlier must not overwrite.
func TestStaleWriter(t *testing.T) {
	c := testConfig(t)
	a := lvmtest.New(64 << 20)
	g, err := c.Create("vg0", mustPV(t, c, a), GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	other := scan(t, c, a).Groups[0]
	if err := addLV(g, "x", Request{Extents: 1}); err != nil {
		t.Fatal(err)
	}
	if err := addLV(other, "y", Request{Extents: 1}); !errors.Is(err, ErrChanged) {
		t.Fatal(err)
	}
}

func TestLock(t *testing.T) {
	c := testConfig(t)
	unlock, err := c.lock("vg0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.lock("vg0"); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	c.LockWait = 10 * time.Second
	done := make(chan error)
	go func() {
		u, err := c.lock("vg0")
		if err == nil {
			u()
		}
		done <- err
	}()
	unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestReadOnlyLockFolder: where nobody can lock a group nobody changes it, and it can be opened.
func TestReadOnlyLockFolder(t *testing.T) {
	dir := t.TempDir()
	runtime.LockOSThread() // for good: the thread, and its mounts, end with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("mounts of its own: %v", err)
	}
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "")); err != nil {
		t.Skipf("a read-only file system: %v", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }() // the folder is removed by this thread
	for what, at := range map[string]string{"the folder": dir, "what it is to be made in": dir + "/lvm"} {
		c := Config{LockDir: at}
		unlock, err := c.lockToSettle("vg0")
		if err != nil {
			t.Errorf("%s is read-only: the group cannot be opened: %v", what, err)
			continue
		}
		unlock()
		if _, err := c.lock("vg0"); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), at) {
			t.Errorf("%s is read-only: a change: %v", what, err)
		}
	}
}

// Two processes of one host that make physical volumes at the same time wait for each other, though
// neither wants to wait for a group.
func TestGlobalLockIsWaitedFor(t *testing.T) {
	c := testConfig(t)
	unlock, err := c.lockGlobal()
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	again, err := c.lockGlobal()
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestRepair damages one copy, then both.
func TestRepair(t *testing.T) {
	c := testConfig(t)
	a, b := lvmtest.New(64<<20), lvmtest.New(64<<20)
	g, err := c.Create("vg0", mustPV(t, c, a, b), GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	if err := addLV(g, "x", Request{Extents: 3}); err != nil {
		t.Fatal(err)
	}
	junk := []byte(strings.Repeat("junk", 128))
	for _, off := range []int64{4096, int64(4096 + g.areas(g.VG)[0].header.Committed.Offset)} {
		a2, b2 := a.Clone(), b.Clone()
		a2.WriteAt(junk, off)
		s := scan(t, c, a2, b2)
		if len(s.Groups) != 1 || len(s.Groups[0].Stale) != 1 || s.Groups[0].VG.LV("x") == nil {
			t.Fatalf("%+v", s)
		}
		if err := s.Groups[0].Repair(); err != nil {
			t.Fatal(err)
		}
		for _, d := range []*lvmtest.Disk{a2, b2} {
			r := scan(t, c, d)
			if r.Groups[0].VG.LV("x") == nil {
				t.Error("copy not repaired")
			}
		}
		a2.WriteAt(junk, 4096)
		b2.WriteAt(junk, 4096)
		s = scan(t, c, a2, b2)
		if _, err := s.Find("vg0"); !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		if len(s.Orphans) != 0 {
			t.Error("damaged members count as orphans")
		}
	}
	// One disk alone: the group is there, the other is missing.
	s := scan(t, c, a)
	if _, err := s.Groups[0].Disk(s.Groups[0].VG.PVs[1]); !errors.Is(err, ErrMissing) {
		t.Fatal(err)
	}
}

// TestTwoCopies: with two metadata areas on the only disk each repairs the other;
// with both damaged nothing is touched.
func TestTwoCopies(t *testing.T) {
	c := testConfig(t)
	dev := lvmtest.New(64 << 20)
	d, err := NewDisk("/dev/x", dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreatePV(d, PVOptions{Copies: 2}); err != nil {
		t.Fatal(err)
	}
	g, err := c.Create("vg0", []*Disk{d}, GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	if err := addLV(g, "x", Request{Extents: 3}); err != nil {
		t.Fatal(err)
	}
	if len(d.Areas) != 2 {
		t.Fatalf("%d areas", len(d.Areas))
	}
	junk := bytes.Repeat([]byte("junk"), 128)
	damage := func(on *lvmtest.Disk, area int, text bool) {
		off := int64(d.Areas[area].loc.Offset)
		if text {
			off += int64(d.Areas[area].header.Committed.Offset)
		}
		if _, err := on.WriteAt(junk, off); err != nil {
			t.Fatal(err)
		}
	}
	for first := range 2 {
		for _, text := range []bool{false, true} {
			one := dev.Clone()
			damage(one, first, text)
			s := scan(t, c, one)
			if len(s.Groups) != 1 || len(s.Groups[0].Stale) != 1 || s.Groups[0].VG.LV("x") == nil {
				t.Fatalf("area %d: %+v", first, s)
			}
			if err := s.Groups[0].Repair(); err != nil {
				t.Fatal(err)
			}
			damage(one, 1-first, text) // now only the repaired one is left
			if s := scan(t, c, one); len(s.Groups) != 1 || s.Groups[0].VG.LV("x") == nil {
				t.Errorf("area %d was not repaired", first)
			}
			both := dev.Clone()
			damage(both, first, text)
			damage(both, 1-first, !text)
			before := both.Writes()
			if _, err := scan(t, c, both).Find("vg0"); !errors.Is(err, ErrDamaged) {
				t.Errorf("both damaged: %v", err)
			}
			if both.Writes() != before {
				t.Error("a group with damaged metadata was written to")
			}
		}
	}
}

// TestArchives: each change leaves the metadata as it was before; what is older
// than a month goes, but for the last ten.
func TestArchives(t *testing.T) {
	c := testConfig(t)
	g, err := c.Create("vg0", mustPV(t, c, lvmtest.New(64<<20)), GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 14 {
		if err := addLV(g, fmt.Sprintf("lv%d", i), Request{Extents: 1}); err != nil {
			t.Fatal(err)
		}
	}
	old := archivesOf(c.ArchiveDir, "vg0")
	if len(old) != 14 {
		t.Fatalf("%d archives", len(old))
	}
	for i, a := range old {
		text, err := os.ReadFile(a.path)
		if err != nil {
			t.Fatal(err)
		}
		vg, err := meta.Load(text)
		if err != nil || len(vg.LVs) != i || vg.Seqno != uint64(i+1) {
			t.Fatalf("archive %d: %v, %d volumes, sequence number %d", i, err, len(vg.LVs), vg.Seqno)
		}
		if err := os.Chtimes(a.path, time.Time{}, time.Now().Add(-40*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := addLV(g, "last", Request{Extents: 1}); err != nil {
		t.Fatal(err)
	}
	if left := archivesOf(c.ArchiveDir, "vg0"); len(left) != retainMin || left[0].index != 5 {
		t.Errorf("%d archives are left, from %d on", len(left), left[0].index)
	}
}

// TestCrash cuts the power after every write of a metadata transaction on two
// disks, in many ways of losing unflushed writes: old or new, never else.
func TestCrash(t *testing.T) {
	for cutDisk := 0; cutDisk < 2; cutDisk++ {
		for cut := 1; cut < 20; cut++ {
			for seed := uint64(0); seed < 3; seed++ {
				c := testConfig(t)
				c.ArchiveDir, c.BackupDir = "-", "-"
				devs := []*lvmtest.Disk{lvmtest.New(32 << 20), lvmtest.New(32 << 20)}
				g, err := c.Create("vg0", mustPV(t, c, devs...), GroupOptions{}, "vgcreate")
				if err != nil {
					t.Fatal(err)
				}
				if err := addLV(g, "old", Request{Extents: 1}); err != nil {
					t.Fatal(err)
				}
				devs[cutDisk].CutAfter(cut)
				err = addLV(g, "new", Request{Extents: 1})
				r := rand.New(rand.NewPCG(seed, uint64(cut)))
				s := scan(t, c, devs[0].Crash(r), devs[1].Crash(r))
				if len(s.Groups) != 1 {
					t.Fatalf("cut %d: %d groups, %v", cut, len(s.Groups), s.Broken)
				}
				got := s.Groups[0]
				if got.VG.LV("old") == nil {
					t.Fatalf("cut %d: the old state is lost", cut)
				}
				if err == nil && got.VG.LV("new") == nil {
					t.Fatalf("cut %d: an acknowledged commit is lost", cut)
				}
				if err := got.Repair(); err != nil {
					t.Fatalf("cut %d: repair: %v", cut, err)
				}
				if err := addLV(got, "later", Request{Extents: 1}); err != nil {
					t.Fatalf("cut %d: next change: %v", cut, err)
				}
			}
		}
	}
}

func TestForeign(t *testing.T) {
	c := testConfig(t)
	for _, s := range signatures {
		dev := lvmtest.New(16 << 20)
		d, _ := NewDisk("/dev/x", dev)
		if err := d.writeAt([]byte(s.magic), s.off); err != nil {
			t.Fatal(err)
		}
		if err := c.CreatePV(d, PVOptions{}); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", s.what, err)
		}
		if err := c.CreatePV(d, PVOptions{Force: true}); err != nil {
			t.Errorf("%s, forced: %v", s.what, err)
		}
	}
	dev := lvmtest.New(16 << 20)
	d := mustPV(t, c, dev)[0]
	if err := c.CreatePV(d, PVOptions{}); err == nil {
		t.Error("a PV was overwritten")
	}
	if _, err := c.Create("vg0", []*Disk{d}, GroupOptions{}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := c.CreatePV(d, PVOptions{Force: true}); err == nil {
		t.Error("a PV in use was overwritten")
	}
}

func TestExtendReduceResize(t *testing.T) {
	c := testConfig(t)
	a, b := lvmtest.New(32<<20), lvmtest.New(32<<20)
	ds := mustPV(t, c, a, b)
	g, err := c.Create("vg0", ds[:1], GroupOptions{}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Extend(ds[1:], "vgextend"); err != nil {
		t.Fatal(err)
	}
	if err := g.Extend(ds[1:], "vgextend"); err == nil {
		t.Fatal("a disk joined twice")
	}
	if err := addLV(g, "x", Request{Extents: 2, From: []Range{{PV: "pv1"}}}); err != nil {
		t.Fatal(err)
	}
	if err := g.Reduce([]*meta.PV{g.VG.PV("pv1")}, "vgreduce"); err == nil {
		t.Fatal("a PV in use was taken out")
	}
	if err := g.Reduce([]*meta.PV{g.VG.PV("pv0")}, "vgreduce"); err != nil {
		t.Fatal(err)
	}
	s := scan(t, c, a, b)
	if len(s.Orphans) != 1 || len(s.Groups[0].VG.PVs) != 1 {
		t.Fatalf("%+v", s)
	}
	b.Grow(64 << 20)
	pv := g.VG.PVs[0]
	if err := g.ResizePV(pv, 0, "pvresize"); err != nil || g.VG.PVs[0].PECount != 15 {
		t.Fatal(err, g.VG.PVs[0].PECount)
	}
	if err := g.ResizePV(pv, 6<<20, "pvresize"); err == nil {
		t.Fatal("extents in use were cut off")
	}
	if err := g.Remove("vgremove"); err == nil {
		t.Fatal("a group with volumes was removed")
	}
}

// showSegments lists segments as start+count:stripes.
func showSegments(segs []*meta.Segment) string {
	var s []string
	for _, g := range segs {
		x := fmt.Sprintf("%d+%d:", g.Start, g.Count)
		for _, a := range g.Stripes {
			x += fmt.Sprintf("%s@%d,", a.Name, a.Off)
		}
		s = append(s, x)
	}
	return strings.Join(s, " ")
}

// pvsOf makes physical volumes of so many extents.
func pvsOf(extents ...uint64) (pvs []*meta.PV) {
	for i, n := range extents {
		pvs = append(pvs, &meta.PV{Name: fmt.Sprintf("pv%d", i), PECount: n, Status: []string{"ALLOCATABLE"}})
	}
	return pvs
}

func striped(start, count uint64, stripes ...meta.Area) *meta.Segment {
	s := &meta.Segment{Start: start, Count: count, Type: meta.Striped, Stripes: stripes}
	if len(stripes) > 1 {
		s.StripeSize = 128
	}
	return s
}

// TestAllocateBesides: what is in use, not allocatable, or not asked for has no part in an allocation, and
// each policy keeps to what lvm2's of that name does (lvcreate(8), --alloc).
func TestAllocateBesides(t *testing.T) {
	vg := &meta.VG{Name: "v", ExtentSize: 8192, PVs: pvsOf(20, 20, 100, 100)}
	vg.PVs[2].Status = nil
	vg.PVs[3].Flags = []string{"MISSING"}
	lin := &meta.LV{Name: "lin", Segments: []*meta.Segment{striped(0, 4, meta.Area{Name: "pv0", Off: 2})}}
	str := &meta.LV{Name: "str", Segments: []*meta.Segment{striped(0, 8, meta.Area{Name: "pv0", Off: 10}, meta.Area{Name: "pv1", Off: 0})}}
	sub := &meta.LV{Name: "sub", Segments: []*meta.Segment{striped(0, 3, meta.Area{Name: "lin", Off: 0})}}
	none := &meta.LV{Name: "none"}
	vg.LVs = []*meta.LV{str, lin, sub, none}
	// Free: pv0 0-1, 6-9, 14-19; pv1 4-19.
	if n := Free(vg, vg.PVs[0]); n != 12 {
		t.Errorf("%d extents of pv0 are free", n)
	}
	for _, c := range []struct {
		alloc string
		r     Request
		want  string
	}{
		{"", Request{Extents: 28}, "0+16:pv1@4, 16+6:pv0@14, 22+4:pv0@6, 26+2:pv0@0,"},
		{"", Request{Extents: 29}, ""},
		{"", Request{Extents: 6}, "0+6:pv0@14,"},
		{"", Request{Extents: 0}, ""},
		{"inherit", Request{Extents: 4}, ""},
		{"contiguous", Request{Extents: 16, Policy: "inherit"}, "0+16:pv1@4,"},
		{"contiguous", Request{Extents: 17}, ""},
		{"contiguous", Request{Extents: 17, Policy: "normal"}, "0+16:pv1@4, 16+1:pv0@14,"},
		{"contiguous", Request{Extents: 4, After: none}, "0+4:pv0@14,"},
		{"contiguous", Request{Extents: 4, After: lin}, "4+4:pv0@6,"},
		{"contiguous", Request{Extents: 5, After: lin}, ""},
		{"contiguous", Request{Extents: 12, Stripes: 2, StripeSize: 128, After: str}, "8+12:pv0@14,pv1@4,"},
		{"contiguous", Request{Extents: 14, Stripes: 2, StripeSize: 128, After: str}, ""},
		{"contiguous", Request{Extents: 4, After: sub}, ""},
		{"cling", Request{Extents: 12, After: lin}, "4+4:pv0@6, 8+6:pv0@14, 14+2:pv0@0,"},
		{"cling", Request{Extents: 13, After: lin}, ""},
		{"cling", Request{Extents: 13}, "0+13:pv1@4,"},
		{"cling", Request{Extents: 13, After: none}, "0+13:pv1@4,"},
		{"normal", Request{Extents: 10, After: lin}, "4+4:pv0@6, 8+6:pv0@14,"}, // what fits clings
		{"normal", Request{Extents: 12, After: lin}, "4+4:pv0@6, 8+6:pv0@14, 14+2:pv0@0,"},
		{"normal", Request{Extents: 13, After: lin}, "4+4:pv0@6, 8+9:pv1@4,"},
		{"normal", Request{Extents: 14, Stripes: 2, StripeSize: 128, After: str}, "8+12:pv0@14,pv1@4, 20+2:pv0@6,pv1@10,"},
		{"normal", Request{Extents: 4, Stripes: 2, StripeSize: 128, After: lin}, "4+4:pv0@14,pv1@4,"},
		{"normal", Request{Extents: 4, After: str}, "8+4:pv0@14,"}, // linear behind stripes
		{"normal", Request{Extents: 24, Stripes: 2, StripeSize: 128}, "0+12:pv1@4,pv0@14, 12+8:pv1@10,pv0@6, 20+4:pv1@14,pv0@0,"},
		{"normal", Request{Extents: 26, Stripes: 2, StripeSize: 128}, ""},
		{"anywhere", Request{Extents: 24, Stripes: 2, StripeSize: 128, From: []Range{{PV: "pv1"}}}, ""},
		{"anywhere", Request{Extents: 6, Stripes: 2, StripeSize: 128, From: []Range{{PV: "pv0"}}}, "0+6:pv0@14,pv0@6,"},
		{"normal", Request{Extents: 6, Stripes: 2, StripeSize: 128, From: []Range{{PV: "pv0"}}}, ""},
		{"normal", Request{Extents: 8, From: []Range{{PV: "pv0", Off: 1, Len: 8}, {PV: "pv1", Off: 19}, {PV: "pv0", Off: 15, Len: 3}}}, "0+3:pv0@6, 3+3:pv0@15, 6+1:pv0@1, 7+1:pv1@19,"},
		{"normal", Request{Extents: 9, From: []Range{{PV: "pv0", Off: 1, Len: 8}, {PV: "pv1", Off: 19}, {PV: "pv0", Off: 15, Len: 3}}}, ""},
		{"normal", Request{Extents: 13, Avoid: map[string]bool{"pv1": true}}, ""},
	} {
		vg.Alloc = c.alloc
		segs, err := Allocate(vg, c.r)
		if (err != nil) != (c.want == "") || err == nil && showSegments(segs) != c.want {
			t.Errorf("%s, %+v: %s, %v; want %s", c.alloc, c.r, showSegments(segs), err, c.want)
		}
		for _, s := range segs {
			if want := map[bool]uint64{true: 128}[len(s.Stripes) > 1]; s.StripeSize != want {
				t.Errorf("%s, %+v: stripes of %d sectors", c.alloc, c.r, s.StripeSize)
			}
		}
	}
}

// TestAllocateBehind: what a volume goes on with is behind its own extents, not at that place of another disk,
// and of two runs of a length it is the first.
func TestAllocateBehind(t *testing.T) {
	area := func(pv string, off uint64) meta.Area { return meta.Area{Name: pv, Off: off} }
	for _, c := range []struct {
		pvs  []uint64
		lvs  []*meta.LV // the first is extended
		r    Request
		want string
	}{
		{[]uint64{10, 10}, []*meta.LV{{Name: "x", Segments: []*meta.Segment{striped(0, 4, area("pv0", 0))}}, {Name: "y", Segments: []*meta.Segment{striped(0, 4, area("pv1", 0))}}},
			Request{Extents: 2, Policy: "contiguous"}, "4+2:pv0@4,"},
		{[]uint64{10}, []*meta.LV{{Name: "x"}, {Name: "y", Segments: []*meta.Segment{striped(0, 2, area("pv0", 4))}}},
			Request{Extents: 4}, "0+4:pv0@0,"},
		{[]uint64{8, 4, 8}, []*meta.LV{{Name: "x", Segments: []*meta.Segment{striped(0, 8, area("pv0", 0), area("pv1", 0))}}},
			Request{Extents: 8, Stripes: 2, StripeSize: 128}, "8+8:pv0@4,pv2@0,"},
	} {
		vg := &meta.VG{Name: "v", ExtentSize: 8192, PVs: pvsOf(c.pvs...), LVs: c.lvs}
		c.r.After = c.lvs[0]
		if segs, err := Allocate(vg, c.r); err != nil || showSegments(segs) != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.r, showSegments(segs), err, c.want)
		}
	}
}

// TestContinues: what follows on the disk becomes one segment, if nothing else tells the two apart.
func TestContinues(t *testing.T) {
	a := func(off uint64) meta.Area { return meta.Area{Name: "a", Off: off} }
	b := func(off uint64) meta.Area { return meta.Area{Name: "b", Off: off} }
	tagged, other := striped(0, 4, a(0)), striped(0, 4, a(0), b(0))
	tagged.Tags = []string{"t"}
	other.StripeSize = 256
	for _, c := range []struct {
		name        string
		first, then *meta.Segment
		want        string
	}{
		{"right behind", striped(0, 4, a(0)), striped(0, 2, a(4)), "0+6:a@0,"},
		{"a gap", striped(0, 4, a(0)), striped(0, 2, a(5)), "0+4:a@0, 4+2:a@5,"},
		{"another disk", striped(0, 4, a(0)), striped(0, 2, b(4)), "0+4:a@0, 4+2:b@4,"},
		{"stripes", striped(0, 4, a(0), b(8)), striped(0, 2, a(2), b(10)), "0+6:a@0,b@8,"},
		{"the second stripe elsewhere", striped(0, 4, a(0), b(8)), striped(0, 2, a(2), b(12)), "0+4:a@0,b@8, 4+2:a@2,b@12,"},
		{"fewer stripes", striped(0, 4, a(0), b(8)), striped(0, 2, a(2)), "0+4:a@0,b@8, 4+2:a@2,"},
		{"other stripes", other, striped(0, 2, a(2), b(2)), "0+4:a@0,b@0, 4+2:a@2,b@2,"},
		{"tags", tagged, striped(0, 2, a(4)), "0+4:a@0, 4+2:a@4,"},
		{"another type", &meta.Segment{Count: 4, Type: meta.Thin}, striped(0, 2), "0+4: 4+2:"},
		{"before another type", striped(0, 4), &meta.Segment{Count: 2, Type: meta.Thin}, "0+4: 4+2:"},
	} {
		lv := &meta.LV{Segments: []*meta.Segment{c.first}}
		if Append(lv, []*meta.Segment{c.then}); showSegments(lv.Segments) != c.want {
			t.Errorf("%s: %s, want %s", c.name, showSegments(lv.Segments), c.want)
		}
	}
	for n, want := range map[uint64]string{0: "", 1: "0+1:a@0,", 3: "0+3:a@0,", 4: "0+4:a@0,", 5: "0+4:a@0, 4+2:a@4,b@4,", 6: "0+4:a@0, 4+2:a@4,b@4,", 7: "0+4:a@0, 4+4:a@4,b@4,", 9: "0+4:a@0, 4+4:a@4,b@4, 8+1:", 99: "0+4:a@0, 4+4:a@4,b@4, 8+2:"} {
		lv := &meta.LV{Segments: []*meta.Segment{striped(0, 4, a(0)), striped(4, 4, a(4), b(4)), {Start: 8, Count: 2, Type: meta.Thin}}}
		if Truncate(lv, n); showSegments(lv.Segments) != want {
			t.Errorf("cut to %d extents: %s, want %s", n, showSegments(lv.Segments), want)
		}
	}
}

func TestAllocate(t *testing.T) {
	vg := &meta.VG{Name: "v", ExtentSize: 8192, PVs: pvsOf(10, 20, 30)}
	lv := &meta.LV{Name: "base", Segments: []*meta.Segment{{Count: 5, Type: meta.Striped, Stripes: []meta.Area{{Name: "pv0", Off: 0}}}}}
	vg.LVs = []*meta.LV{lv}
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{Extents: 5}, "0+5:pv0@5,"},
		{Request{Extents: 6}, "0+6:pv1@0,"},
		{Request{Extents: 55}, "0+30:pv2@0, 30+20:pv1@0, 50+5:pv0@5,"},
		{Request{Extents: 56}, ""},
		{Request{Extents: 10, Stripes: 2, StripeSize: 128}, "0+10:pv0@5,pv1@0,"},
		{Request{Extents: 45, Stripes: 3, StripeSize: 128}, ""},
		{Request{Extents: 46, Stripes: 2, StripeSize: 128}, "0+40:pv2@0,pv1@0, 40+6:pv2@20,pv0@5,"},
		{Request{Extents: 31, Policy: "contiguous"}, ""},
		{Request{Extents: 30, Policy: "contiguous"}, "0+30:pv2@0,"},
		{Request{Extents: 5, Policy: "contiguous", After: lv}, "5+5:pv0@5,"},
		{Request{Extents: 6, Policy: "contiguous", After: lv}, ""},
		{Request{Extents: 6, Policy: "cling", After: lv}, ""},
		{Request{Extents: 5, Policy: "cling", After: lv}, "5+5:pv0@5,"},
		{Request{Extents: 7, After: lv}, "5+5:pv0@5, 10+2:pv1@0,"},
		{Request{Extents: 4, From: []Range{{PV: "pv2", Off: 3, Len: 4}}}, "0+4:pv2@3,"},
		{Request{Extents: 5, From: []Range{{PV: "pv2", Off: 3, Len: 4}}}, ""},
		{Request{Extents: 4, Avoid: map[string]bool{"pv0": true}}, "0+4:pv1@0,"},
		{Request{Extents: 4, Policy: "sideways"}, ""},
		{Request{Extents: 3, Stripes: 2}, ""},
	} {
		segs, err := Allocate(vg, c.r)
		if (err != nil) != (c.want == "") || err == nil && showSegments(segs) != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.r, showSegments(segs), err, c.want)
		}
	}
}

func TestAppendTruncate(t *testing.T) {
	lv := &meta.LV{Segments: []*meta.Segment{{Count: 5, Type: meta.Striped, Stripes: []meta.Area{{Name: "pv0", Off: 0}}}}}
	Append(lv, []*meta.Segment{{Count: 3, Type: meta.Striped, Stripes: []meta.Area{{Name: "pv0", Off: 5}}},
		{Count: 4, Type: meta.Striped, Stripes: []meta.Area{{Name: "pv1", Off: 0}}}})
	if len(lv.Segments) != 2 || lv.Segments[0].Count != 8 || lv.Segments[1].Start != 8 || lv.Extents() != 12 {
		t.Fatalf("%+v", lv.Segments)
	}
	Truncate(lv, 10)
	Truncate(lv, 10)
	if lv.Extents() != 10 || len(lv.Segments) != 2 {
		t.Fatal(lv.Extents())
	}
	Truncate(lv, 8)
	if len(lv.Segments) != 1 {
		t.Fatal(len(lv.Segments))
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{"", ".", "..", "-a", "a b", "a/b", "snapshot1", "x_tdata", strings.Repeat("x", 128)} {
		if CheckLVName(s) == nil {
			t.Errorf("%q accepted", s)
		}
	}
	if err := CheckLVName("a.b-c+d_0"); err != nil {
		t.Error(err)
	}
}
