package lvm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// tracedDisk takes down in a log of several disks what is written and flushed.
type tracedDisk struct {
	*lvmtest.Disk
	name  string
	log   *trace
	wrote func(off int64) // may be nil
	fails func() error    // of each flush; may be nil
}

type trace struct {
	mu  sync.Mutex
	log []string
}

func (t *trace) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := len(t.log); k == 0 || t.log[k-1] != what {
		t.log = append(t.log, what)
	}
}

// take returns the log since the last call.
func (t *trace) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	log := t.log
	t.log = nil
	return log
}

func (d *tracedDisk) note(off int64) {
	what := "data"
	if off < 1<<20 {
		what = "metadata"
	}
	d.log.add(d.name + " " + what)
	if d.wrote != nil {
		d.wrote(off)
	}
}

func (d *tracedDisk) WriteAt(p []byte, off int64) (int, error) {
	d.note(off)
	return d.Disk.WriteAt(p, off)
}

func (d *tracedDisk) WriteZeroes(off, n int64, unmap bool) error {
	d.note(off)
	return d.Disk.WriteZeroes(off, n, unmap)
}

func (d *tracedDisk) Flush() error {
	d.log.add(d.name + " flush")
	if d.fails != nil {
		if err := d.fails(); err != nil {
			return err
		}
	}
	return d.Disk.Flush()
}

// tracedGroup is a group on a disk "a" with metadata and a disk "b" without, so that
// no commit flushes b.
func tracedGroup(t *testing.T) (g *Group, b *tracedDisk, log *trace) {
	t.Helper()
	log = &trace{}
	b = &tracedDisk{Disk: lvmtest.New(16 << 20), name: "b", log: log}
	devs := map[string]blockdev.Device{"/d0": &tracedDisk{Disk: lvmtest.New(16 << 20), name: "a", log: log}, "/d1": b}
	cfg := testConfig(t, devs)
	ds, err := OpenDisks(cfg, []string{"/d0", "/d1"})
	must(t, err)
	must(t, cfg.CreatePV(ds.Disks[1], vg.PVOptions{Copies: -1}))
	g, err = ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 128}, vg.PVOptions{}, "vgcreate")
	must(t, err)
	log.take()
	return g, b, log
}

// TestDataBeforeMetadata: what a volume is to contain from the beginning is on its disk
// before the metadata says that there is a volume, and what has moved before the
// metadata says where.
func TestDataBeforeMetadata(t *testing.T) {
	g, _, log := tracedGroup(t)
	check := func(what string) {
		t.Helper()
		got := log.take()
		data, flush, meta := slices.Index(got, "b data"), slices.Index(got, "b flush"), slices.Index(got, "a metadata")
		if data < 0 || flush < data || meta < flush {
			t.Errorf("%s does %q", what, got)
		}
	}
	onB := []vg.Range{{PV: "pv1"}}
	must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: onB}, "lvcreate"))
	check("lvcreate")
	must(t, g.Create(CreateOptions{Name: "moves", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "v", Name: "s", Extents: 4, From: onB}, "lvcreate"))
	log.take()
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}, Volume: "moves", To: onB}, "pvmove"))
	check("pvmove")
	must(t, g.Close())
}

// TestMoveWaitsForReaders: a move does not go on while somebody reads where the data
// was, although it has moved: the extents are free by then.
func TestMoveWaitsForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b, _ := tracedGroup(t)
		must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		v := volume(t, g, "v")
		data := bytes.Repeat([]byte{7}, 4096)
		_, err := v.WriteAt(data, 0)
		must(t, err)
		var l blockdev.Lease
		b.wrote = func(int64) { // the copy has begun: writes are held, reads go on
			b.wrote = nil
			must(t, v.LeaseRead(&l, 0, 4096, blockdev.Wait))
		}
		var moved atomic.Bool
		done := make(chan error)
		go func() {
			done <- g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}, Progress: func(uint64, uint64) { moved.Store(true) }}, "pvmove")
		}()
		synctest.Wait()
		if moved.Load() {
			t.Error("it went on under an open lease")
		}
		l.Release()
		must(t, <-done)
		got := make([]byte, 4096)
		_, err = v.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Error("the content differs")
		}
		must(t, v.Close())
		must(t, g.Close())
	})
}

// TestFoundTextIsDurable: a process is killed in a commit, at any point, perhaps after a flush that has
// failed; the next one finds what the page cache has of it. What it promises to keep of a volume is there
// after a power cut.
func TestFoundTextIsDurable(t *testing.T) {
	t.Run("killed", func(t *testing.T) { testFoundText(t, func(*lvmtest.Disk) {}) })
	t.Run("a flush has failed", func(t *testing.T) { testFoundText(t, (*lvmtest.Disk).Forget) })
}

// metadataApart makes a group of two disks, of which the first one alone has the metadata: no commit, and no
// flush of a volume on the second one, is about the disk of the other.
func metadataApart(t *testing.T) (a, b *lvmtest.Disk, cfg Config, g *Group) {
	t.Helper()
	a, b = lvmtest.New(16<<20), lvmtest.New(16<<20)
	cfg = testConfig(t, map[string]blockdev.Device{"/d0": a, "/d1": b})
	ds, err := OpenDisks(cfg, []string{"/d0", "/d1"})
	must(t, err)
	must(t, cfg.CreatePV(ds.Disks[1], vg.PVOptions{Copies: -1}))
	g, err = ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 128}, vg.PVOptions{}, "vgcreate")
	must(t, err)
	return a, b, cfg, g
}

func testFoundText(t *testing.T, before func(*lvmtest.Disk)) {
	for cut := 1; ; cut++ {
		a, b, cfg, g := metadataApart(t)
		onB := []vg.Range{{PV: "pv1"}}
		must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: onB}, "lvcreate"))
		a.CutAfter(cut)
		killed := g.Extend("v", ExtendOptions{Extents: 8, From: onB}, "lvextend")
		a.CutAfter(-1)
		before(a)

		g, err := Open(cfg, []string{"/d0", "/d1"}, "vg0")
		must(t, err)
		v := volume(t, g, "v")
		data := bytes.Repeat([]byte{7}, 4096)
		at := v.Info().Size - int64(len(data))
		_, err = v.WriteAt(data, at)
		must(t, err)
		must(t, v.Flush())
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, uint64(cut)))
			next, err := Open(testConfig(t, map[string]blockdev.Device{"/d0": a.Crash(r), "/d1": b.Crash(r)}), []string{"/d0", "/d1"}, "vg0")
			must(t, err)
			w := volume(t, next, "v")
			got := make([]byte, len(data))
			if _, err = w.ReadAt(got, at); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("killed at write %d: what was flushed at %d is gone: %v", cut, at, err)
			}
			must(t, w.Close())
			must(t, next.Close())
		}
		must(t, v.Close())
		must(t, g.Close())
		if killed == nil {
			return
		}
	}
}

// TestSnapshotKeepsWhatItShows: what was written before a snapshot was taken, and not flushed, is in it after a
// power cut, although no commit flushes the disk that has it.
func TestSnapshotKeepsWhatItShows(t *testing.T) {
	a, b, _, g := metadataApart(t)
	must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	v := volume(t, g, "v")
	data := bytes.Repeat([]byte{7}, 4096)
	_, err := v.WriteAt(data, 0)
	must(t, err)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "v", Name: "s", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		next, err := Open(testConfig(t, map[string]blockdev.Device{"/d0": a.Crash(r), "/d1": b.Crash(r)}), []string{"/d0", "/d1"}, "vg0")
		must(t, err)
		s := volume(t, next, "s")
		got := make([]byte, len(data))
		if _, err = s.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("seed %d: what the snapshot showed is gone: %v", seed, err)
		}
		must(t, s.Close())
		must(t, next.Close())
	}
	must(t, v.Close())
	must(t, g.Close())
}

var errLost = errors.New("input/output error")

// TestMoveForgetsNoLoss: a volume that has been told of lost writes by the disk it lies on is not moved
// to one that knows nothing of them.
func TestMoveForgetsNoLoss(t *testing.T) {
	g, b, _ := tracedGroup(t)
	must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	v := volume(t, g, "v")
	_, err := v.WriteAt(bytes.Repeat([]byte{7}, 4096), 0)
	must(t, err)
	b.fails = func() error { return errLost } // for as long as it is open
	if err := g.Move(bg, MoveOptions{From: vg.Range{PV: "pv1"}, Volume: "v"}, "pvmove"); !errors.Is(err, errLost) {
		t.Errorf("moved: %v", err)
	}
	if err := v.Flush(); !errors.Is(err, errLost) {
		t.Errorf("a flush after it: %v", err)
	}
	b.fails = nil // opened anew
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv1"}, Volume: "v"}, "pvmove"))
	must(t, v.Flush())
	must(t, v.Close())
	must(t, g.Close())
}

// TestFailedCommitIsTakenBack: when the disk with the metadata fails the last flush of a commit, its
// command has not taken place: not in this life of the group, nor in the next.
func TestFailedCommitIsTakenBack(t *testing.T) {
	log := &trace{}
	devs := map[string]blockdev.Device{}
	disks := map[string]*tracedDisk{}
	for p, name := range map[string]string{"/d0": "a", "/d1": "b", "/d2": "c"} {
		disks[name] = &tracedDisk{Disk: lvmtest.New(16 << 20), name: name, log: log}
		devs[p] = disks[name]
	}
	cfg := testConfig(t, devs)
	ds, err := OpenDisks(cfg, []string{"/d0", "/d1", "/d2"})
	must(t, err)
	for _, d := range ds.Disks[1:] {
		must(t, cfg.CreatePV(d, vg.PVOptions{Copies: -1}))
	}
	g, err := ds.CreateGroup("vg0", ds.Disks, vg.GroupOptions{ExtentSize: 128}, vg.PVOptions{}, "vgcreate")
	must(t, err)
	must(t, g.Create(CreateOptions{Name: "v", Extents: 4, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	v := volume(t, g, "v")
	_, err = v.WriteAt(bytes.Repeat([]byte{7}, 4096), 0)
	must(t, err)
	flushes := 0
	disks["a"].fails = func() error {
		if flushes++; flushes == 3 { // text, precommit, commit
			return errLost
		}
		return nil
	}
	if err := g.Move(bg, MoveOptions{From: vg.Range{PV: "pv1"}, Volume: "v", To: []vg.Range{{PV: "pv2"}}}, "pvmove"); !errors.Is(err, errLost) {
		t.Fatalf("moved: %v", err)
	}
	now := bytes.Repeat([]byte{9}, 4096)
	_, err = v.WriteAt(now, 0)
	must(t, err)
	must(t, v.Flush())
	// The process ends here; the next one finds what the disks hold.
	for p, name := range map[string]string{"/d0": "a", "/d1": "b", "/d2": "c"} {
		devs[p] = disks[name].Clone()
	}
	next, err := Open(cfg, []string{"/d0", "/d1", "/d2"}, "vg0")
	must(t, err)
	w := volume(t, next, "v")
	got := make([]byte, len(now))
	_, err = w.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, now) {
		t.Errorf("what was flushed after the move had failed is gone: %x", got[:8])
	}
	must(t, w.Close())
	must(t, next.Close())
	must(t, v.Close())
	must(t, g.Close())
}
