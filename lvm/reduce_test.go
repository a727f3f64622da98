package lvm

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/lvm/vg"
)

// whileReduced has lv reduced to extents by somebody who loses patience, and calls f while
// the metadata is written.
func whileReduced(t *testing.T, g *Group, disks []*stallDisk, lv string, extents uint64, f func()) (reduced <-chan error) {
	t.Helper()
	for _, d := range disks {
		d.stall(0, 1<<20)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Reduce(ctx, lv, extents, "lvreduce") }()
	synctest.Wait()
	f()
	cancel()
	for _, d := range disks {
		d.release()
	}
	synctest.Wait()
	return done
}

// TestReduceWaitsForReads: the extents behind the new end go to nobody as long as a read that
// began before the change of the metadata has them.
func TestReduceWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, disks := stallGroup(t)
		from := []vg.Range{{PV: "pv0"}}
		must(t, g.Create(CreateOptions{Name: "a", Extents: 8, From: from}, "lvcreate"))
		a := volume(t, g, "a")
		var l blockdev.Lease
		reduced := whileReduced(t, g, disks, "a", 4, func() { must(t, a.LeaseRead(&l, 7*65536, 4096, blockdev.NoWait)) })
		if size := a.Info().Size; size != 4*65536 {
			t.Fatal("the volume has", size)
		}
		select {
		case err := <-reduced:
			t.Fatal("what a read still has was given up:", err)
		default:
		}
		l.Release()
		must(t, <-reduced)
		must(t, a.Close())
		must(t, g.Close())
	})
}

// TestReduceThinKeepsReads: a thin volume's reader holds nobody up, and reads on what it had.
func TestReduceThinKeepsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, disks := stallGroup(t)
		from := []vg.Range{{PV: "pv0"}}
		must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 16, From: from}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 12}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "b", Extents: 16}, "lvcreate"))
		a, b := volume(t, g, "a"), volume(t, g, "b")
		write := func(v *Volume, off int64, n int, c byte) {
			t.Helper()
			if _, err := v.WriteAt(bytes.Repeat([]byte{c}, n), off); err != nil {
				t.Fatal(err)
			}
		}
		write(a, 0, 12*65536, 'a')
		must(t, a.Flush())
		var l blockdev.Lease
		reduced := whileReduced(t, g, disks, "a", 4, func() { must(t, a.LeaseRead(&l, 7*65536, 4096, blockdev.NoWait)) })
		must(t, <-reduced)
		write(b, 0, 4*65536, 'b') // all that is free
		must(t, b.Flush())
		for _, s := range l.Segs {
			if !bytes.Equal(s, bytes.Repeat([]byte{'a'}, len(s))) {
				t.Error("another volume has written to what is still being read")
			}
		}
		l.Release()
		must(t, a.Close())
		must(t, b.Close())
		must(t, g.Close())
	})
}

// TestMergeWaitsForReads: the device that a merged snapshot takes the place of leaves the pool, although a
// read that began before the change of the metadata outlasts whoever merges.
func TestMergeWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, disks := stallGroup(t)
		must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 16, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 8}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate"))
		a := volume(t, g, "a")
		for _, d := range disks {
			d.stall(0, 1<<20)
		}
		ctx, cancel := context.WithCancel(t.Context())
		merged := make(chan error, 1)
		go func() { _, err := g.Merge(ctx, "s", "lvconvert"); merged <- err }()
		synctest.Wait()
		var l blockdev.Lease
		must(t, a.LeaseRead(&l, 0, 4096, blockdev.Wait))
		cancel()
		for _, d := range disks {
			d.release()
		}
		synctest.Wait()
		l.Release()
		must(t, <-merged)
		lv := g.Metadata().LV("p")
		devs, err := g.act.nodes[lv.ID].pool.Devices()
		if err != nil || len(devs) != 1 || len(lv.Segments[0].Messages) != 0 {
			t.Errorf("the pool has devices %v, and is told %v: %v", devs, lv.Segments[0].Messages, err)
		}
		must(t, a.Close())
		must(t, g.Close())
	})
}
