package lvm

import (
	"context"
	"errors"
	"testing"

	"softiser/lvm/vg"
)

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
