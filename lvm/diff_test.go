package lvm

import (
	"bytes"
	"slices"
	"testing"

	"softiser/lvm/thin"
)

// TestDiffOfGrownThin: all that lies behind the end of the first volume is different, also where the
// second one reads as zeroes or has blocks that both trees map.
func TestDiffOfGrownThin(t *testing.T) {
	g, _ := newGroup(t, 1, 64<<20)
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32}, "lvcreate"))
	must(t, g.CreatePool(PoolOptions{Name: "q", Extents: 32, Discards: "ignore"}, "lvcreate"))
	const block = 65536
	write := func(name string, blocks ...int64) {
		v := volume(t, g, name)
		for _, b := range blocks {
			_, err := v.WriteAt(bytes.Repeat([]byte{7}, block), b*block)
			must(t, err)
		}
		must(t, v.Close())
	}
	diff := func(from, to string, want ...thin.Change) {
		t.Helper()
		got, err := g.Diff(from, to)
		must(t, err)
		for i := range want {
			want[i].Off, want[i].Len = want[i].Off*block, want[i].Len*block
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s and %s: %v, want %v", from, to, got, want)
		}
	}
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 4}, "lvcreate"))
	write("a", 0, 1)
	must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate"))
	must(t, g.Extend("a", 8, "", 0, nil, "lvextend"))
	write("a", 1, 5)
	diff("s", "a", thin.Change{Off: 1, Len: 1, Data: true}, thin.Change{Off: 4, Len: 1}, thin.Change{Off: 5, Len: 1, Data: true}, thin.Change{Off: 6, Len: 2})
	diff("a", "s", thin.Change{Off: 1, Len: 1, Data: true})

	must(t, g.CreateThin(bg, ThinOptions{Pool: "q", Name: "b", Extents: 8}, "lvcreate"))
	write("b", 0, 6)
	must(t, g.CreateThin(bg, ThinOptions{Name: "t", Origin: "b"}, "lvcreate"))
	must(t, g.Reduce(bg, "b", 4, "lvreduce"))
	diff("b", "t", thin.Change{Off: 4, Len: 2}, thin.Change{Off: 6, Len: 1, Data: true}, thin.Change{Off: 7, Len: 1})
	must(t, g.Close())
}
