package lvm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
)

// TestExtendOrigin grows an origin that is in use: its snapshots stay as they
// are, in size too, as those of lvm2 do; later ones are larger.
func TestExtendOrigin(t *testing.T) {
	g, cfg := newGroup(t, 2, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	o := volume(t, g, "o")
	model := make([]byte, 8*65536)
	fill(t, o, model, 0, len(model), 1)
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s1", Extents: 16}, "lvcreate"))
	m1 := bytes.Clone(model)
	var told atomic.Int64
	defer o.OnResize(func(i blockdev.Info) { told.Store(i.Size) })()
	var l blockdev.Lease
	must(t, o.LeaseWrite(&l, 0, 4096, blockdev.Wait)) // growing waits for nobody
	must(t, g.Extend("o", ExtendOptions{Extents: 12}, "lvextend"))
	for _, s := range l.Segs {
		copy(s, bytes.Repeat([]byte{7}, len(s)))
	}
	must(t, l.Commit(false))
	l.Release()
	if told.Load() != 12*65536 || o.Info().Size != 12*65536 {
		t.Fatalf("told %d, the size is %d", told.Load(), o.Info().Size)
	}
	model = append(model, make([]byte, 4*65536)...)
	copy(model, bytes.Repeat([]byte{7}, 4096))
	fill(t, o, model, 7*65536, 5*65536, 3) // over the old end
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s2", Extents: 16}, "lvcreate"))
	m2 := bytes.Clone(model)
	fill(t, o, model, 10*65536, 65536, 4)
	check := func() {
		t.Helper()
		for _, c := range []struct {
			name  string
			model []byte
		}{{"o", model}, {"s1", m1}, {"s2", m2}} {
			v := volume(t, g, c.name)
			if v.Info().Size != int64(len(c.model)) {
				t.Errorf("%s has %d bytes, not %d", c.name, v.Info().Size, len(c.model))
			}
			same(t, v, c.model, c.name)
			must(t, v.Close())
		}
	}
	check()
	if u, err := g.SnapshotUsage("s1"); err != nil || u.Exceptions != 17 {
		t.Fatalf("%+v %v: what lies beyond the snapshot's end was copied", u, err)
	}
	s1 := volume(t, g, "s1")
	if _, err := s1.ReadAt(make([]byte, 512), 8*65536); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Fatal(err)
	}
	must(t, s1.Close())
	must(t, o.Close())
	g = reopen(t, g, cfg, 2)
	check()
	cs, err := g.Diff(bg, "s1", "s2")
	must(t, err)
	if got := fmt.Sprint(cs); got != "[{0 4096 true} {458752 65536 true} {524288 262144 true}]" {
		t.Error(got)
	}
	if err := g.Reduce(bg, "o", 4, "lvreduce"); err == nil {
		t.Fatal("an origin was reduced")
	}
	// The older state comes back; what lies beyond its end stays.
	done, err := g.Merge(bg, "s1", "lvconvert")
	must(t, err)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	copy(model, m1)
	o, s2 := volume(t, g, "o"), volume(t, g, "s2")
	same(t, o, model, "merged origin")
	same(t, s2, m2, "s2")
	must(t, o.Close())
	must(t, s2.Close())
	must(t, g.Close())
}

// TestReduceStore makes a snapshot's store smaller while its origin is in use.
func TestReduceStore(t *testing.T) {
	g, cfg := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8}, "lvcreate"))
	o := volume(t, g, "o")
	model, old := make([]byte, 8*ext), make([]byte, 8*ext)
	same(t, o, model[:4096], "the start") // zeroed by the creation
	must(t, o.WriteZeroes(0, 8*ext, false))
	must(t, g.Remove(bg, "s", "lvremove"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8}, "lvcreate"))
	fill(t, o, model, 0, 2*ext, 1)
	if err := g.Reduce(bg, "s", 2, "lvreduce"); err == nil || !strings.Contains(err.Error(), "34 of its 128 chunks") {
		t.Fatal(err)
	}
	fill(t, o, model, 2*ext, 8192, 2) // it still has its size
	must(t, g.Reduce(bg, "s", 3, "lvreduce"))
	if u, err := g.SnapshotUsage("s"); err != nil || u.Total != 3*ext || !u.Valid {
		t.Fatalf("%+v %v", u, err)
	}
	fill(t, o, model, 3*ext, 8192, 2)
	s := volume(t, g, "s")
	same(t, s, old, "snapshot")
	must(t, s.Close())
	must(t, o.Close())
	g = reopen(t, g, cfg, 1)
	s = volume(t, g, "s")
	same(t, s, old, "snapshot")
	must(t, s.Close())
	o = volume(t, g, "o")
	fill(t, o, model, 4*ext, 2*ext, 3) // too much
	same(t, o, model, "origin")
	if u, err := g.SnapshotUsage("s"); err != nil || u.Valid {
		t.Fatalf("%+v %v", u, err)
	}
	must(t, o.Close())
	must(t, g.Close())
}
