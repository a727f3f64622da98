package lvm

import (
	"context"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// keepsDiscarded is a disk of which nobody knows what its discarded blocks hold.
type keepsDiscarded struct{ *lvmtest.Disk }

func (d keepsDiscarded) Info() blockdev.Info {
	i := d.Disk.Info()
	i.ZeroesOnTrim = false
	return i
}

// TestMoveTellsWhatDisksDo: whoever has been told that discarded blocks read as zeroes learns that they do
// not on the disk that a volume is moved to.
func TestMoveTellsWhatDisksDo(t *testing.T) {
	for _, origin := range []bool{false, true} {
		g, _ := groupOn(t, map[string]blockdev.Device{"/d0": lvmtest.New(64 << 20), "/d1": keepsDiscarded{lvmtest.New(64 << 20)}})
		must(t, g.Create(CreateOptions{Name: "a", Extents: 8, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		if origin {
			must(t, g.Snapshot(bg, SnapshotOptions{Origin: "a", Name: "s", Extents: 16, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		}
		a := volume(t, g, "a")
		known, told := a.Info(), 0
		a.OnResize(func(i blockdev.Info) { known, told = i, told+1 })
		for _, off := range []uint64{0, 4} {
			must(t, g.Move(bg, MoveOptions{From: vg.Range{PV: "pv0", Off: off, Len: 4}, Volume: "a"}, "pvmove"))
		}
		if is := a.Info(); is.ZeroesOnTrim || known.ZeroesOnTrim || told != 1 {
			t.Errorf("origin %v: discarded blocks read as zeroes: %v, and as is known: %v; told %d times", origin, is.ZeroesOnTrim, known.ZeroesOnTrim, told)
		}
		must(t, a.Close())
		must(t, g.Close())
	}
}

// TestMoveWithinDisk: what is to be moved goes nowhere where it would have to be moved again.
func TestMoveWithinDisk(t *testing.T) {
	g, _ := newGroup(t, 1, 64<<20)
	must(t, g.Create(CreateOptions{Name: "a", Extents: 8}, "lvcreate"))
	a := volume(t, g, "a")
	model := make([]byte, 8*65536)
	fill(t, a, model, 0, len(model), 1)
	here := []vg.Range{{PV: "pv0"}}
	move := func(from vg.Range) error {
		ctx, cancel := context.WithCancel(t.Context())
		return g.Move(ctx, MoveOptions{From: from, To: here, Policy: "anywhere", Progress: func(done, total uint64) {
			if done > total {
				cancel()
			}
		}}, "pvmove")
	}
	if err := move(here[0]); !errors.Is(err, vg.ErrNoExtents) {
		t.Error(err)
	}
	must(t, move(vg.Range{PV: "pv0", Off: 2, Len: 4}))
	for _, u := range vg.Used(g.Metadata())["pv0"] {
		if u.Off < 6 && u.Off+u.Len > 2 {
			t.Errorf("extents %d+%d have been left", u.Off, u.Len)
		}
	}
	same(t, a, model, "what has been moved")
	must(t, a.Close())
	must(t, g.Close())
}
