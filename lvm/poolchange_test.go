package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// poolOnFaulty makes a group on a disk that can fail, with pool p of metaExtents
// and volume a in it, which holds the returned content.
func poolOnFaulty(t *testing.T, metaExtents uint64) (*Group, Config, *faulty.Device, []byte) {
	t.Helper()
	d := faulty.New(lvmtest.New(16<<20), 1)
	g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": d})
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 16, MetaExtents: metaExtents, ErrorWhenFull: true}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
	a := volume(t, g, "a")
	model := make([]byte, 65536)
	if metaExtents == 0 { // else it takes most of the metadata
		fill(t, a, model, 0, 65536, 1)
	}
	must(t, a.Close())
	return g, cfg, d, model
}

// place is where an LV of one segment lies on its disk, bytes.
func place(v *meta.VG, name string) (off, n int64) {
	s := v.LV(name).Segments[0]
	extent := int64(v.ExtentSize) * ondisk.SectorSize
	return int64(v.PVs[0].PEStart)*ondisk.SectorSize + int64(s.Stripes[0].Off)*extent, int64(s.Count) * extent
}

// agreeing fails unless group and pool are at the same transaction, with no
// message left, and every thin volume can be opened.
func agreeing(t *testing.T, g *Group, model []byte) {
	t.Helper()
	u, err := g.PoolUsage("p")
	must(t, err)
	v := g.Metadata()
	if s := v.LV("p").Segments[0]; s.TransactionID != u.Transaction || len(s.Messages) != 0 {
		t.Errorf("the group says transaction %d with messages %v, the pool %d", s.TransactionID, s.Messages, u.Transaction)
	}
	for _, lv := range v.LVs {
		if len(lv.Segments) == 1 && lv.Segments[0].Type == meta.Thin {
			x := volume(t, g, lv.Name)
			if lv.Name == "a" {
				same(t, x, model, "a")
			}
			must(t, x.Close())
		}
	}
}

// TestPoolChangesFail: changes of a pool fail wherever the disk lets them, and
// others are tried on top of that. What is left can be opened and changed.
func TestPoolChangesFail(t *testing.T) {
	change := []func(g *Group) error{
		func(g *Group) error {
			return g.CreateThin(bg, ThinOptions{Pool: "p", Name: "b", Extents: 10}, "lvcreate")
		},
		func(g *Group) error { return g.CreateThin(bg, ThinOptions{Name: "c", Origin: "a"}, "lvcreate") },
		func(g *Group) error { return g.Remove(bg, "b", "lvremove") },
		func(g *Group) error { return g.CreateThin(bg, ThinOptions{Name: "d", Origin: "c"}, "lvcreate") },
	}
	broken := errors.New("the disk is broken")
	for _, keep := range []bool{false, true} { // a volume is open, so the pool stays as it is between the changes
		for after := range 12 {
			t.Run(fmt.Sprintf("open %v, after %d", keep, after), func(t *testing.T) {
				g, cfg, d, model := poolOnFaulty(t, 0)
				var a *Volume
				if keep {
					a = volume(t, g, "a")
				}
				off, n := place(g.Metadata(), "p_tmeta")
				d.SetRules(faulty.Rule{Op: faulty.Write, Off: off, Len: n, After: after, Err: broken})
				failed := 0
				for _, f := range change {
					if f(g) != nil {
						failed++
					}
				}
				if after == 0 && failed < 3 {
					t.Errorf("only %d changes failed", failed)
				}
				if is, most := g.Metadata().LV("p").Segments[0].TransactionID, uint64(1+len(change)-failed+1); is > most {
					t.Errorf("%d changes failed, and the group says transaction %d: more than one ahead of its pool", failed, is)
				}
				d.SetRules()
				if keep {
					a.Close() // its pool may have failed
				}
				g = reopen(t, g, cfg, 1)
				agreeing(t, g, model)
				for _, f := range change {
					f(g) // some have been done
				}
				agreeing(t, g, model)
				if g.Metadata().LV("d") == nil {
					t.Error("the changes cannot be made afterwards")
				}
				must(t, g.Close())
			})
		}
	}
}

// TestRefusedPoolChange: a change that the pool refuses leaves the group as it was.
func TestRefusedPoolChange(t *testing.T) {
	g, cfg, _, model := poolOnFaulty(t, 3) // 48 blocks
	must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate"))
	for i := 0; ; i++ {
		was := g.Metadata()
		err := g.CreateThin(bg, ThinOptions{Pool: "p", Name: fmt.Sprintf("v%d", i), Extents: 10}, "lvcreate")
		if err == nil {
			continue
		}
		if !errors.Is(err, blockdev.ErrNoSpace) {
			t.Fatal(err)
		}
		if is := g.Metadata(); state(is) != state(was) || is.LV("p").Segments[0].TransactionID != was.LV("p").Segments[0].TransactionID {
			t.Errorf("%v: the group is now %s, transaction %d", err, state(is), is.LV("p").Segments[0].TransactionID)
		}
		break
	}
	agreeing(t, g, model)
	g = reopen(t, g, cfg, 1)
	agreeing(t, g, model)
	// A merge is not taken back: its volume is the snapshot already. What is
	// left of it is done before the next change.
	a := volume(t, g, "a")
	if _, err := g.Merge(bg, "s", "lvconvert"); !errors.Is(err, blockdev.ErrNoSpace) {
		t.Fatal(err)
	}
	must(t, g.ExtendPoolMetadata("p", 32, "lvextend"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "b", Extents: 10}, "lvcreate"))
	same(t, a, model, "a")
	agreeing(t, g, model)
	devices, err := a.n.pool.Devices()
	must(t, err)
	if n := len(g.Metadata().LVs) - 4; len(devices) != n { // the pool, its parts and their spare
		t.Errorf("%d devices for %d volumes", len(devices), n)
	}
	must(t, a.Close())
	must(t, g.Close())
}

// TestPoolBehind: a group that is several changes ahead of its pool, as failed
// changes left it, is brought back when the pool is opened. A pool whose metadata
// is from another time is refused.
func TestPoolBehind(t *testing.T) {
	g, cfg, _, model := poolOnFaulty(t, 0)
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "z", Extents: 10}, "lvcreate"))
	zdev := g.Metadata().LV("z").Segments[0].DeviceID
	ahead := func(m meta.Message, f func(next *meta.VG, seg *meta.Segment)) {
		next := g.md.group.VG.Clone()
		seg := next.LV("p").Segments[0]
		f(next, seg)
		seg.TransactionID++
		seg.Messages = []meta.Message{m}
		must(t, g.md.commit(next, "half a change"))
	}
	add := func(name, origin string, dev uint64) {
		ahead(meta.Message{Create: name}, func(next *meta.VG, seg *meta.Segment) {
			lv := g.md.bareLV(name, true)
			lv.Segments = []*meta.Segment{{Count: 10, Type: meta.Thin, Pool: "p", Origin: origin, DeviceID: dev, TransactionID: seg.TransactionID}}
			next.LVs = append(next.LVs, lv)
		})
	}
	add("b", "", zdev+1)
	ahead(meta.Message{Delete: zdev}, func(next *meta.VG, _ *meta.Segment) { next.RemoveLV(next.LV("z")) })
	add("c", "b", zdev) // the id of the device that is still there

	var told []string
	cfg.Notice = func(s string) { told = append(told, s) }
	g = reopen(t, g, cfg, 1)
	agreeing(t, g, model)
	v := g.Metadata()
	for _, name := range []string{"b", "c", "z"} {
		if v.LV(name) != nil {
			t.Errorf("%s is there", name)
		}
	}
	all := strings.Join(told, "; ")
	if !strings.Contains(all, "removed b, c") || !strings.Contains(all, fmt.Sprintf("deleted device %d", zdev)) {
		t.Errorf("told: %s", all)
	}
	must(t, g.CreateThin(bg, ThinOptions{Name: "c", Origin: "a"}, "lvcreate"))
	agreeing(t, g, model)

	// Ahead without a message: no failed change leaves that.
	next := g.md.group.VG.Clone()
	next.LV("p").Segments[0].TransactionID += 2
	must(t, g.md.commit(next, "by hand"))
	g = reopen(t, g, cfg, 1)
	if _, err := g.Volume("a"); err == nil || !strings.Contains(err.Error(), "another time") {
		t.Fatal(err)
	}
	next = g.md.group.VG.Clone()
	next.LV("p").Segments[0].TransactionID -= 2
	must(t, g.md.commit(next, "by hand"))
	agreeing(t, g, model)

	// Metadata that is lost is not made anew.
	must(t, g.VG(func(x *vg.Group) error {
		off, n := place(x.VG, "p_tmeta")
		for _, d := range x.Disks {
			return d.Dev.WriteZeroes(off, n, false)
		}
		return nil
	}))
	g = reopen(t, g, cfg, 1)
	if _, err := g.Volume("a"); err == nil || !strings.Contains(err.Error(), "blank") {
		t.Fatal(err)
	}
	must(t, g.Close())
}

// TestVolumesAndDevices: a device without a volume lends its id to no other, and
// a volume without a device can be removed.
func TestVolumesAndDevices(t *testing.T) {
	g, _, _, model := poolOnFaulty(t, 0)
	a := volume(t, g, "a")
	must(t, a.n.pool.Create(50, a.n.pool.Transaction()))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "b", Extents: 10}, "lvcreate"))
	if id := g.Metadata().LV("b").Segments[0].DeviceID; id != 51 {
		t.Errorf("b is device %d", id)
	}
	must(t, a.n.pool.Delete(51, a.n.pool.Transaction()))
	if _, err := g.Volume("b"); err == nil {
		t.Error("b was opened")
	}
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "c", Extents: 10}, "lvcreate"))
	if id := g.Metadata().LV("c").Segments[0].DeviceID; id != 52 {
		t.Errorf("c is device %d, as b may be", id)
	}
	must(t, g.Remove(bg, "b", "lvremove"))
	must(t, a.Close())
	agreeing(t, g, model)
	must(t, g.Close())
}

// TestStaleChange: a change that was prepared on metadata of before is refused.
func TestStaleChange(t *testing.T) {
	g, _ := newGroup(t, 1, 16<<20)
	old := g.md.group.VG.Clone()
	must(t, g.Create(CreateOptions{Name: "x", Extents: 1}, "lvcreate"))
	if err := g.md.commit(old, "late"); err == nil {
		t.Error("a change was lost")
	}
	if lvs := g.Metadata().LVs; !slices.ContainsFunc(lvs, func(lv *meta.LV) bool { return lv.Name == "x" }) {
		t.Error("x is gone")
	}
	must(t, g.Close())
}
