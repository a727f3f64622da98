package vg

import (
	"slices"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

// loggedDisk takes down what is written and flushed, in order.
type loggedDisk struct {
	*lvmtest.Disk
	log []string
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
	ok(cfg.RemovePV(disks[0]))
	after("pvremove")
}
