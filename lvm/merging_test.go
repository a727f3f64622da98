package lvm

import (
	"bytes"
	"strings"
	"testing"

	"softiser/lvm/vg"
)

// merging is a group in which the merge of snapshot "s" into "o", which is in use, has begun and stands
// until it is let go on. There is another snapshot, "t".
func merging(t *testing.T) (g *Group, o *Volume, shown []byte, goOn func()) {
	g, _ = newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 16}, "lvcreate"))
	o = volume(t, g, "o")
	shown = make([]byte, 16*65536)
	fill(t, o, shown, 0, len(shown), 1)
	was := bytes.Clone(shown)
	for _, name := range []string{"s", "t"} {
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: name, Extents: 32}, "lvcreate"))
	}
	fill(t, o, shown, 4*65536, 4*65536, 2)
	g.snaps.steps.Lock()
	done, err := g.Merge(bg, "s", "lvconvert")
	if err != nil {
		g.snaps.steps.Unlock()
		t.Fatal(err)
	}
	same(t, o, was, "the origin")
	return g, o, was, func() {
		g.snaps.steps.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestWhileMerging: during a merge the snapshot that the origin needs is not removed, nothing is made of
// the origin, nor is it compared, by what lies below.
func TestWhileMerging(t *testing.T) {
	g, o, shown, goOn := merging(t)
	for what, f := range map[string]func() error{
		"removing the snapshot":     func() error { return g.Remove(bg, "s", "lvremove") },
		"a snapshot of the origin":  func() error { return g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "n", Extents: 32}, "lvcreate") },
		"what the origin has since": func() error { _, err := g.Diff(bg, "t", "o"); return err },
		"what the snapshot has":     func() error { _, err := g.Diff(bg, "s", "t"); return err },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "s is being merged into o") {
			t.Errorf("%s: %v", what, err)
		}
	}
	goOn()
	same(t, o, shown, "the merged origin")
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "n", Extents: 32}, "lvcreate"))
	cs, err := g.Diff(bg, "t", "o")
	if err != nil || len(cs) != 0 {
		t.Errorf("the origin is what it was when t was taken, and differs in %v: %v", cs, err)
	}
	must(t, o.Close())
	must(t, g.Close())
}

// TestRemoveLostMerging: a snapshot that is lost, and cannot be merged therefore, may be removed.
func TestRemoveLostMerging(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 16}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 32}, "lvcreate"))
	must(t, g.VG(func(x *vg.Group) error {
		next := x.VG.Clone()
		next.LV("s").SetTag(lostTag, true)
		_, seg := next.SnapshotSegment("s")
		seg.Merging = true
		return x.Commit(next, "test")
	}))
	g = reopen(t, g, cfg, 1)
	must(t, g.Remove(bg, "s", "lvremove"))
	must(t, volume(t, g, "o").Close())
	must(t, g.Close())
}
