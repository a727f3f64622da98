package lvm

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/thin"
	"softiser/lvm/vg"
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
		got, err := g.Diff(bg, from, to)
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
	must(t, g.Extend("a", ExtendOptions{Extents: 8}, "lvextend"))
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

// slowReads is a disk whose reads of a range wait to be let go.
type slowReads struct {
	*lvmtest.Disk
	off, n  atomic.Int64
	reached chan struct{} // has an element when one waits
	gate    chan struct{}
}

func (d *slowReads) ReadAt(p []byte, off int64) (int, error) {
	if from := d.off.Load(); off < from+d.n.Load() && from < off+int64(len(p)) {
		select {
		case d.reached <- struct{}{}:
		default:
		}
		<-d.gate
	}
	return d.Disk.ReadAt(p, off)
}

// TestDiffHoldsUpNobody: volumes that are compared byte by byte, which takes long or for ever, keep nobody from
// the group; and who has asked for it can leave it.
func TestDiffHoldsUpNobody(t *testing.T) {
	d := &slowReads{Disk: lvmtest.New(64 << 20), reached: make(chan struct{}, 1), gate: make(chan struct{})}
	g, _ := groupOn(t, map[string]blockdev.Device{"/d0": d})
	must(t, g.Create(CreateOptions{Name: "o", Extents: 64}, "lvcreate"))
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 128}, "lvcreate"))
	o := volume(t, g, "o")
	_, err := o.WriteAt(bytes.Repeat([]byte{7}, 2<<20), 0)
	must(t, err)
	var at int64
	must(t, g.VG(func(x *vg.Group) error {
		at, _ = place(x.VG, "o")
		return nil
	}))
	d.off.Store(at)
	d.n.Store(4096)
	ctx, cancel := context.WithCancel(t.Context())
	compared := make(chan error, 1)
	go func() {
		_, err := g.Diff(ctx, "s", "o")
		compared <- err
	}()
	<-d.reached
	goesOn(t, "a report", func() error { g.Metadata(); return nil })
	goesOn(t, "a change", func() error { return g.Create(CreateOptions{Name: "n", Extents: 1}, "lvcreate") })
	if err := g.Remove(bg, "s", "lvremove"); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("what is compared is removed: %v", err)
	}
	cancel()
	close(d.gate)
	if err := <-compared; !errors.Is(err, context.Canceled) {
		t.Errorf("a comparison that nobody waits for any more: %v", err)
	}
	must(t, o.Close())
	must(t, g.Close())
}
