package lvm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
)

// powerCuts calls do with a fresh group on one disk, again and again, until one
// call gets through: the power goes at the first write after do has called arm,
// at the one step later, and so on. Each time found gets the group that the disk
// holds then, and what do ended with.
func powerCuts(t *testing.T, step int, do func(g *Group, arm func()) error, found func(h *Group, cut int, err error)) {
	t.Helper()
	for cut := 1; ; cut += step {
		d := lvmtest.New(16 << 20)
		g, cfg := groupOn(t, map[string]blockdev.Device{"/d0": d})
		err := do(g, func() { d.CutAfter(cut) })
		c := d.Crash(rand.New(rand.NewPCG(uint64(cut), 4)))
		cfg.Open = func(string) (blockdev.Device, error) { return c, nil }
		h, oerr := Open(cfg, []string{"/d0"}, "vg0")
		must(t, oerr)
		found(h, cut, err)
		must(t, h.Close())
		if err == nil {
			return
		}
	}
}

// TestExtendOriginCrash grows an origin that has a snapshot and is in use.
func TestExtendOriginCrash(t *testing.T) {
	var model, old []byte
	powerCuts(t, 1, func(g *Group, arm func()) error {
		must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
		o := volume(t, g, "o")
		model = make([]byte, 8*ext)
		fill(t, o, model, 0, len(model), 1)
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 16}, "lvcreate"))
		old = bytes.Clone(model)
		fill(t, o, model, ext, 8192, 2)
		must(t, o.Flush())
		arm()
		err := g.Extend("o", ExtendOptions{Extents: 12}, "lvextend")
		if err == nil {
			_, err = o.WriteAt(make([]byte, 8192), 8*ext-4096)
		}
		if err == nil {
			err = o.Flush()
		}
		return err
	}, func(h *Group, cut int, err error) {
		o, s := volume(t, h, "o"), volume(t, h, "s")
		if n := o.Info().Size; n != 12*ext && (n != 8*ext || err == nil) {
			t.Fatalf("cut %d: the origin has %d bytes", cut, n)
		}
		same(t, o, model[:8*ext-4096], "origin")
		same(t, s, old, "snapshot")
		must(t, o.Close())
		must(t, s.Close())
	})
}

// TestResizeStoreCrash grows and shrinks a snapshot's store under writes to its
// origin.
func TestResizeStoreCrash(t *testing.T) {
	var old []byte
	powerCuts(t, 1, func(g *Group, arm func()) error {
		must(t, g.Create(CreateOptions{Name: "o", Extents: 4}, "lvcreate"))
		o := volume(t, g, "o")
		old = make([]byte, 4*ext)
		fill(t, o, old, 0, len(old), 1)
		must(t, o.Flush())
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 4}, "lvcreate"))
		p := bytes.Repeat([]byte{9}, 8192)
		arm()
		for i, extents := range []uint64{6, 2, 5} {
			if _, err := o.WriteAt(p, int64(i)*8192); err != nil {
				return err
			}
			resize := func() error { return g.Extend("s", ExtendOptions{Extents: extents}, "lvextend") }
			if extents < g.Metadata().LV("s").Extents() {
				resize = func() error { return g.Reduce(bg, "s", extents, "lvreduce") }
			}
			if err := resize(); err != nil {
				return err
			}
		}
		_, err := o.WriteAt(p, 3*8192)
		return err
	}, func(h *Group, cut int, err error) {
		s := volume(t, h, "s")
		same(t, s, old, fmt.Sprintf("snapshot after cut %d", cut))
		must(t, s.Close())
	})
}

// TestMergeCrash merges a snapshot into its origin.
func TestMergeCrash(t *testing.T) {
	var before, after []byte
	powerCuts(t, 3, func(g *Group, arm func()) error {
		must(t, g.Create(CreateOptions{Name: "o", Extents: 8}, "lvcreate"))
		o := volume(t, g, "o")
		before = make([]byte, 8*ext)
		fill(t, o, before, 0, len(before), 1)
		must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 16}, "lvcreate"))
		s := volume(t, g, "s")
		after = bytes.Clone(before)
		for i := range 20 {
			fill(t, s, after, i*20480, 4096, byte(i+10))
		}
		must(t, s.Close())
		must(t, o.Close())
		arm()
		done, err := g.Merge(bg, "s", "lvconvert")
		if err == nil {
			err = <-done
		}
		return err
	}, func(h *Group, cut int, err error) {
		want := before
		if _, seg := h.Metadata().SnapshotSegment("s"); seg == nil || seg.Merging {
			want = after
		}
		if err == nil && !bytes.Equal(want, after) {
			t.Fatal("a merge that was complete is undone")
		}
		o := volume(t, h, "o")
		same(t, o, want, fmt.Sprintf("origin after cut %d", cut))
		must(t, o.Close())
	})
}
