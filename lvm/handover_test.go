package lvm

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// TestHandOver: the next process goes on with a group as it is, with what nobody has flushed
// and the lock of its disks, and an old one that is not replaced goes on, too.
func TestHandOver(t *testing.T) {
	cfg, dir := fileConfig(t)
	base := Spec{VG: "vg0", Devices: []string{filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")}, Size: 4 << 20, DeviceSize: 64 << 20}
	cfg.EpochDir = func() string { return dir }
	cfg.Open = func(path string) (blockdev.Device, error) { return open.Open(open.Spec{Path: path, EpochDir: dir}) }
	old := &Manager{Config: cfg}
	specs := map[string]Spec{"plain": base, "thin": base, "snap": base}
	for lv, s := range specs {
		s.LV = lv
		if lv == "thin" {
			s.Pool, s.PoolSize = "pool", 16<<20
		}
		specs[lv] = s
	}
	vols, models := map[string]*Volume{}, map[string][]byte{}
	for _, lv := range []string{"plain", "thin", "snap"} {
		if lv == "snap" {
			must(t, old.Group("vg0").Snapshot(bg, SnapshotOptions{Origin: "plain", Name: "snap", Extents: 2}, "lvcreate"))
			models[lv] = append([]byte(nil), models["plain"]...)
		} else {
			models[lv] = make([]byte, 4<<20)
		}
		d, err := old.Open(specs[lv])
		must(t, err)
		vols[lv] = d.(*Volume)
		fill(t, d, models[lv], 0, 256<<10, 1)
	}
	write := func(vols map[string]*Volume, seed byte) {
		t.Helper()
		for lv, v := range vols {
			fill(t, v, models[lv], int(seed)<<16, 128<<10, seed)
		}
	}
	g := old.Group("vg0")
	all := []*Volume{vols["plain"], vols["thin"], vols["snap"]}
	if err := g.Hold(bg, all[:2]); !errors.Is(err, errOthers) {
		t.Errorf("held without one that is open: %v", err)
	}
	hold := func() Handed {
		t.Helper()
		must(t, g.Settle())
		h := offer(t, g, all...)
		if len(h.Disks) != 2 {
			t.Fatalf("%+v", h)
		}
		return h
	}
	write(vols, 2)
	h := hold()
	h.Discard()
	g.Release()
	write(vols, 3)
	for lv, v := range vols {
		same(t, v, models[lv], lv)
	}

	next := &Manager{Config: cfg}
	next.Expect(hold())
	now := map[string]*Volume{}
	for lv, s := range specs {
		d, err := next.Open(s)
		must(t, err)
		now[lv] = d.(*Volume)
		same(t, d, models[lv], lv+" in the next process")
		if a, b := vols[lv].Info(), d.Info(); a.ID != b.ID || a.CacheID != b.CacheID || a.Size != b.Size || lv == "plain" && a.CacheID == "" {
			t.Errorf("%s: %+v has become %+v", lv, a, b)
		}
	}
	write(now, 4)
	for lv, v := range now {
		same(t, v, models[lv], lv+" after writes of the next process")
	}
	if _, err := (&Manager{Config: cfg}).Open(specs["plain"]); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("a third process: %v", err)
	}
	for _, v := range now {
		must(t, v.Close())
	}
	must(t, next.Close())
	g.Release() // only for the leak checks: an old process ends without a word
	g.disks.Close()
}

// offer holds a group with volumes that are open, and returns what goes to the next process.
func offer(t *testing.T, g *Group, open ...*Volume) Handed {
	t.Helper()
	must(t, g.Hold(bg, open))
	h, err := g.HandOver()
	must(t, err)
	return h
}

// handedOver returns a group that an old process has handed over, and what ends that.
func handedOver(t *testing.T) (cfg Config, s Spec, h Handed, end func()) {
	t.Helper()
	cfg, dir := fileConfig(t)
	s = Spec{VG: "vg0", LV: "v", Devices: []string{filepath.Join(dir, "a.img")}, Size: 4 << 20}
	old := &Manager{Config: cfg}
	v, err := old.Open(s)
	must(t, err)
	g := old.Group("vg0")
	h = offer(t, g, v.(*Volume))
	g.Release()
	return cfg, s, h, func() {
		t.Helper()
		must(t, v.Close())
		must(t, old.Close())
	}
}

// TestForget: a group that nobody opens is closed.
func TestForget(t *testing.T) {
	cfg, s, h, end := handedOver(t)
	end()
	if _, err := (&Manager{Config: cfg}).Open(s); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("the lock has not gone along: %v", err)
	}
	next := &Manager{Config: cfg}
	next.Expect(h)
	next.Forget()
	v, err := next.Open(s)
	must(t, err)
	must(t, v.Close())
	must(t, next.Close())
}

// TestHandedPart: a volume into which an import has broken off is not served anew, but who serves it goes
// on in the next process.
func TestHandedPart(t *testing.T) {
	cfg, dir := fileConfig(t)
	s := Spec{VG: "vg0", LV: "v", Devices: []string{filepath.Join(dir, "a.img")}, Size: 4 << 20}
	old := &Manager{Config: cfg}
	v, err := old.Open(s)
	must(t, err)
	g := old.Group("vg0")
	must(t, g.Change("v", func(lv *meta.LV) error { lv.SetTag(ImportingTag+"x..0", true); return nil }, "lvchange"))
	next := &Manager{Config: cfg}
	next.Expect(offer(t, g, v.(*Volume)))
	g.Release()
	d, err := next.Open(s)
	must(t, err)
	must(t, d.Close())
	next.Forget()
	if _, err := next.Open(s); !errors.Is(err, ErrPartial) {
		t.Errorf("anew: %v", err)
	}
	must(t, next.Close())
	must(t, v.Close())
	must(t, old.Close())
}

// TestHoldUnsettled: a pool that cannot be written down in time is not held, and goes on.
func TestHoldUnsettled(t *testing.T) {
	g, disks := stallGroup(t)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 16}, "lvcreate"))
	v := volume(t, g, "a")
	_, err := v.WriteAt(make([]byte, 4096), 0)
	must(t, err)
	disks[0].stall(0, 16<<20)
	ctx, cancel := context.WithTimeout(bg, time.Millisecond)
	defer cancel()
	if err := g.Hold(ctx, []*Volume{v}); !errors.Is(err, ErrUnsettled) {
		t.Errorf("held: %v", err)
	}
	disks[0].release()
	goesOn(t, "a write", func() error { _, err := v.WriteAt(make([]byte, 4096), 1<<19); return err })
	must(t, g.Hold(bg, []*Volume{v}))
	if _, err := g.HandOver(); err == nil {
		t.Error("disks that cannot go to another process have been handed over")
	}
	g.Release()
	must(t, v.Close())
	must(t, g.Close())
}

// TestHoldMerge: a merge stands between two steps while the group is held, and goes on.
func TestHoldMerge(t *testing.T) {
	g, disks := stallGroup(t)
	at := []vg.Range{{PV: "pv0"}}
	must(t, g.Create(CreateOptions{Name: "v", Extents: 64, From: at}, "lvcreate"))
	v := volume(t, g, "v")
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "v", Name: "s", Extents: 100, From: at}, "lvcreate"))
	model := make([]byte, 4<<20)
	for off := 0; off < 4<<20; off += 256 << 10 {
		fill(t, v, append([]byte(nil), model...), off, 256<<10, 9) // the snapshot has zeroes
	}
	off, n := place(g.Metadata(), "v")
	disks[0].stall(off, n)
	done, err := g.Merge(bg, "s", "lvconvert")
	must(t, err)
	<-disks[0].reached // the first step is under way
	held := make(chan error, 1)
	go func() { held <- g.Hold(bg, []*Volume{v}) }()
	disks[0].release()
	must(t, <-held)
	before := disks[0].Writes()
	select {
	case <-done:
		t.Log("the merge had ended")
	case <-time.After(10 * time.Millisecond): // nothing may happen; a step takes less
	}
	if n := disks[0].Writes(); n != before {
		t.Errorf("%d writes while the group is held", n-before)
	}
	g.Release()
	must(t, <-done)
	same(t, v, model, "the origin")
	must(t, v.Close())
	must(t, g.Close())
}

// TestHandedLost: each volume of a group that cannot be had is told why, as long as the old process
// may have its disks.
func TestHandedLost(t *testing.T) {
	cfg, s, h, end := handedOver(t)
	h.Name = "vg1" // which is not on the disks
	next := &Manager{Config: cfg}
	next.Expect(h)
	for _, lv := range []string{"v", "w"} {
		_, err := next.Open(Spec{VG: "vg1", LV: lv, Devices: s.Devices})
		if err == nil || errors.Is(err, blockdev.ErrInUse) || !strings.Contains(err.Error(), `volume group "vg1", which another process has handed over, cannot be had`) {
			t.Fatalf("%s: %v", lv, err)
		}
	}
	next.Forget()
	if _, err := next.Open(Spec{VG: "vg0", LV: "v", Devices: s.Devices}); !errors.Is(err, blockdev.ErrInUse) {
		t.Fatalf("as long as the old process has the disks: %v", err)
	}
	end()
	d, err := next.Open(s)
	must(t, err)
	must(t, d.Close())
	must(t, next.Close())
}
