package lvm

import (
	"bytes"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// TestReadOnlySnapshot: nobody writes to a read-only snapshot, but its store takes what is overwritten in
// the origin, wherever it is and however large.
func TestReadOnlySnapshot(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	o := volume(t, g, "o")
	model := make([]byte, 8*65536)
	fill(t, o, model, 0, len(model), 1)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 4}, "lvcreate"))
	was := bytes.Clone(model)
	must(t, g.Change("s", func(lv *meta.LV) error { lv.SetStatus("WRITE", false); return nil }, "lvchange"))
	must(t, o.Close())
	g = reopen(t, g, cfg, 2)
	o = volume(t, g, "o")
	fill(t, o, model, 65536, 8192, 2)
	s := volume(t, g, "s")
	same(t, s, was, "the snapshot")
	if _, err := s.WriteAt(make([]byte, 512), 0); !errors.Is(err, blockdev.ErrReadOnly) || !s.Info().ReadOnly {
		t.Error("a write to a read-only snapshot:", err)
	}
	must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0"}, Volume: "s"}, "pvmove"))
	must(t, g.Extend("s", ExtendOptions{Extents: 8}, "lvextend"))
	fill(t, o, model, 3*65536, 65536, 3)
	same(t, s, was, "the snapshot, with its store moved and extended")
	must(t, s.Close())
	must(t, g.Reduce(bg, "s", 6, "lvreduce"))
	must(t, g.Change("s", func(lv *meta.LV) error { lv.SetStatus("WRITE", true); return nil }, "lvchange"))
	s = volume(t, g, "s")
	fill(t, s, was, 0, 4096, 4)
	fill(t, o, model, 5*65536, 4096, 5)
	same(t, s, was, "the snapshot, writable again")
	must(t, s.Close())
	must(t, o.Close())
	must(t, g.Close())
}
