package vg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

// loggedDisk takes down what is written and flushed, in order.
type loggedDisk struct {
	*lvmtest.Disk
	log   []string
	fails error // of each flush
}

func (d *loggedDisk) WriteAt(p []byte, off int64) (int, error) {
	what := "data"
	switch {
	case off < 4096:
		what = "label"
	case off == 4096:
		what = "header"
	case off < 1<<20:
		what = "text"
	}
	d.log = append(d.log, what)
	return d.Disk.WriteAt(p, off)
}

func (d *loggedDisk) Flush() error {
	d.log = append(d.log, "flush")
	if d.fails != nil {
		return d.fails
	}
	return d.Disk.Flush()
}

// TestEndsAreDurable: what a command has changed is on disk when it returns, and
// a commit takes its steps in order on every disk.
func TestEndsAreDurable(t *testing.T) {
	cfg := Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-", Host: "h"}
	var logs []*loggedDisk
	var disks []*Disk
	after := func(what string) {
		t.Helper()
		for i, l := range logs {
			if k := len(l.log); k > 0 && l.log[k-1] != "flush" {
				t.Errorf("%s: disk %d ends with %v", what, i, l.log)
			}
			l.log = nil
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		l := &loggedDisk{Disk: lvmtest.New(16 << 20)}
		d, err := NewDisk("d", l)
		ok(err)
		ok(cfg.CreatePV(d, PVOptions{}))
		if i, k := slices.Index(l.log, "flush"), slices.Index(l.log, "label"); i > k {
			t.Errorf("the label comes before the area that it names is on disk: %v", l.log)
		}
		logs, disks = append(logs, l), append(disks, d)
		after("pvcreate")
	}
	g, err := cfg.Create("vg0", disks[:1], GroupOptions{ExtentSize: 128}, "vgcreate")
	ok(err)
	after("vgcreate")
	ok(g.Extend(disks[1:], "vgextend"))
	after("vgextend")
	ok(g.Commit(g.VG.Clone(), "nothing"))
	for i, l := range logs {
		if want := []string{"text", "flush", "header", "flush", "header", "flush"}; !slices.Equal(l.log, want) {
			t.Errorf("a commit does %v on disk %d", l.log, i)
		}
	}
	after("a commit")
	// A disk that nobody claims any more must not name the group.
	released := func(what string, l *loggedDisk) {
		t.Helper()
		if want := []string{"header", "flush", "label", "flush"}; len(l.log) < 4 || !slices.Equal(l.log[len(l.log)-4:], want) {
			t.Errorf("%s does %v", what, l.log)
		}
	}
	ok(g.Reduce(g.VG.PVs[1:], "vgreduce"))
	released("vgreduce", logs[1])
	after("vgreduce")
	ok(g.Remove("vgremove"))
	released("vgremove", logs[0])
	after("vgremove")
	ok(cfg.RemovePV(disks[0], false))
	after("pvremove")
}

// TestSettleLeavesChanges: who makes durable what he has found does not take back what another process
// has committed since.
func TestSettleLeavesChanges(t *testing.T) {
	cfg := Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-", Host: "h"}
	dev := lvmtest.New(16 << 20)
	d, err := NewDisk("d", dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.CreatePV(d, PVOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Create("vg0", []*Disk{d}, GroupOptions{ExtentSize: 128}, "vgcreate"); err != nil {
		t.Fatal(err)
	}
	find := func() *Group {
		d, err := NewDisk("d", dev)
		if err != nil {
			t.Fatal(err)
		}
		g, err := ScanDisks(cfg, []*Disk{d}).Find("vg0")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g, other := find(), find()
	if err := other.Commit(other.VG.Clone(), "meanwhile"); err != nil {
		t.Fatal(err)
	}
	if err := g.Repair(); !errors.Is(err, ErrChanged) {
		t.Errorf("Repair = %v", err)
	}
	if n := find().VG.Seqno; n != other.VG.Seqno {
		t.Errorf("seqno %d is found, %d was committed", n, other.VG.Seqno)
	}
}

// TestFoundTextIsDurableBeforeRepair: a text that only the page cache has is made durable before the next one
// is written, which may take the place of the one that the disk has; here when another copy is stale.
func TestFoundTextIsDurableBeforeRepair(t *testing.T) {
	cfg := Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-", Host: "h"}
	devs := []*lvmtest.Disk{lvmtest.New(16 << 20), lvmtest.New(16 << 20)}
	scan := func(devs []*lvmtest.Disk) *Group {
		t.Helper()
		var disks []*Disk
		for i, dev := range devs {
			d, err := NewDisk(fmt.Sprint("d", i), dev)
			if err != nil {
				t.Fatal(err)
			}
			disks = append(disks, d)
		}
		g, err := ScanDisks(cfg, disks).Find("vg0")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	var disks []*Disk
	for i, dev := range devs {
		d, err := NewDisk(fmt.Sprint("d", i), dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := cfg.CreatePV(d, PVOptions{}); err != nil {
			t.Fatal(err)
		}
		disks = append(disks, d)
	}
	g, err := cfg.Create("vg0", disks, GroupOptions{ExtentSize: 128}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	// The last step of a commit gets to the page cache of the first disk, and the process is killed.
	seqno := g.VG.Seqno + 1
	for cut := 1; scan(devs).VG.Seqno != seqno; cut++ {
		devs[0].Tie(devs[1])
		devs[0].CutAfter(cut)
		if err := scan(devs[:1]).Commit(g.VG.Clone(), "killed"); err == nil {
			t.Fatal("no commit was cut off")
		}
		for _, dev := range devs {
			dev.CutAfter(-1)
		}
	}
	devs[0].Forget()
	next := scan(devs)
	if len(next.Stale) != 1 {
		t.Fatalf("%d copies are stale", len(next.Stale))
	}
	devs[0].CutAfter(2) // the power fails when the header has been written again and flushed
	if err := next.Repair(); err == nil {
		t.Fatal("nothing was cut off")
	}
	after := devs[0].Crash(rand.New(rand.NewPCG(1, 1)))
	if n := scan([]*lvmtest.Disk{after}).VG.Seqno; n != seqno {
		t.Errorf("after two steps the disk has seqno %d, %d was found", n, seqno)
	}
}

// TestStaleCopyIsNoneThatIsDurable: a group is not opened when the only disk with its current text cannot make it
// durable, whatever the disks with older copies say.
func TestStaleCopyIsNoneThatIsDurable(t *testing.T) {
	cfg := Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-", Host: "h"}
	devs := []*loggedDisk{{Disk: lvmtest.New(16 << 20)}, {Disk: lvmtest.New(16 << 20)}}
	open := func(which ...*loggedDisk) (disks []*Disk) {
		for i, dev := range which {
			d, err := NewDisk(fmt.Sprint("d", i), dev)
			if err != nil {
				t.Fatal(err)
			}
			disks = append(disks, d)
		}
		return disks
	}
	disks := open(devs...)
	for _, d := range disks {
		if err := cfg.CreatePV(d, PVOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := cfg.Create("vg0", disks, GroupOptions{ExtentSize: 128}, "vgcreate")
	if err != nil {
		t.Fatal(err)
	}
	devs[1].fails = errors.New("input/output error")
	if err := g.CommitWherePossible(g.VG.Clone(), "without the second"); err != nil {
		t.Fatal(err)
	}
	devs[0].fails, devs[1].fails = devs[1].fails, nil
	if g, err = ScanDisks(cfg, open(devs...)).Find("vg0"); err != nil || len(g.Stale) != 1 {
		t.Fatalf("%d stale copies, %v", len(g.Stale), err)
	}
	if err := g.settle(); !errors.Is(err, devs[0].fails) {
		t.Errorf("settle = %v", err)
	}
}
