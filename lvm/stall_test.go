package lvm

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

// stallDisk is a disk on which writes to a range, and flushes if asked, do not
// return before they are let go.
type stallDisk struct {
	*lvmtest.Disk
	mu      sync.Mutex
	off, n  int64
	gate    chan struct{} // nil: nothing stalls
	reached chan struct{} // has an element for each call that stalls
}

func (d *stallDisk) stall(off, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off, d.n, d.gate, d.reached = off, n, make(chan struct{}), make(chan struct{}, 100)
}

func (d *stallDisk) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.gate)
	d.gate = nil
}

func (d *stallDisk) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	gate := d.gate
	if gate != nil && off < d.off+d.n && d.off < off+int64(len(p)) {
		d.reached <- struct{}{}
	} else {
		gate = nil
	}
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return d.Disk.WriteAt(p, off)
}

func stallGroup(t *testing.T) (*Group, []*stallDisk) {
	var disks []*stallDisk
	devs := map[string]blockdev.Device{}
	for i := range 2 {
		disks = append(disks, &stallDisk{Disk: lvmtest.New(16 << 20)})
		devs[fmt.Sprintf("/d%d", i)] = disks[i]
	}
	g, _ := groupOn(t, devs)
	return g, disks
}

// goesOn fails if f does not return although nothing that it needs has stalled.
func goesOn(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s waits for storage that it does not need", what)
	}
}

// waits starts f, and fails if it returns before done is asked for.
func waits(t *testing.T, what string, f func() error) (done func()) {
	t.Helper()
	end := make(chan error, 1)
	go func() { end <- f() }()
	return func() {
		t.Helper()
		if err := <-end; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func use(v *Volume, off int64) func() error {
	return func() error {
		p := make([]byte, 4096)
		if _, err := v.ReadAt(p, off); err != nil {
			return err
		}
		if _, err := v.WriteAt(p, off); err != nil {
			return err
		}
		var l blockdev.Lease
		if err := v.LeaseWrite(&l, off, 4096, blockdev.Wait); err != nil {
			return err
		}
		defer l.Release()
		return l.Commit(false)
	}
}

func flushed(v *Volume) func() error {
	return func() error {
		if err := use(v, 0)(); err != nil {
			return err
		}
		return v.Flush()
	}
}

// TestPoolMetadataStalls: the metadata of a thin pool stalls. Flushes that need it
// wait; what is mapped is read and written, new blocks are taken, and volumes
// outside of the pool know nothing of it.
func TestPoolMetadataStalls(t *testing.T) {
	g, disks := stallGroup(t)
	from := []vg.Range{{PV: "pv0"}}
	must(t, g.Create(CreateOptions{Name: "other", Extents: 4, From: from}, "lvcreate"))
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32, From: from}, "lvcreate"))
	for _, name := range []string{"a", "b"} {
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: name, Extents: 16}, "lvcreate"))
	}
	a, b, other := volume(t, g, "a"), volume(t, g, "b"), volume(t, g, "other")
	must(t, flushed(a)())
	must(t, flushed(b)())
	off, n := place(g.Metadata(), "p_tmeta")
	disks[0].stall(off, n)
	must(t, use(a, 65536)())
	done := waits(t, "the flush", a.Flush)
	<-disks[0].reached
	goesOn(t, "a mapped block of the same volume", use(a, 0))
	goesOn(t, "a mapped block of another volume", use(b, 0))
	goesOn(t, "a flush of a volume without new blocks", flushed(b))
	goesOn(t, "a new block", use(b, 4*65536))
	goesOn(t, "a volume outside", flushed(other))
	disks[0].release()
	done()
	must(t, b.Flush())
	for _, v := range []*Volume{a, b, other} {
		must(t, v.Close())
	}
	must(t, g.Close())
}

// TestGroupMetadataStalls: a change of the group waits for its metadata; the
// volumes go on, those included that it is about.
func TestGroupMetadataStalls(t *testing.T) {
	g, disks := stallGroup(t)
	must(t, g.Create(CreateOptions{Name: "a", Extents: 4}, "lvcreate"))
	must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 32}, "lvcreate"))
	must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "t", Extents: 16}, "lvcreate"))
	a, thin := volume(t, g, "a"), volume(t, g, "t")
	disks[1].stall(0, 1<<20)
	done := waits(t, "lvextend", func() error { return g.Extend("a", ExtendOptions{Extents: 8}, "lvextend") })
	<-disks[1].reached
	goesOn(t, "the volume that is extended", flushed(a))
	goesOn(t, "a thin volume", flushed(thin))
	goesOn(t, "a new block of a thin volume", use(thin, 65536))
	disks[1].release()
	done()
	if a.Info().Size != 8*65536 {
		t.Error(a.Info().Size)
	}
	must(t, a.Close())
	must(t, thin.Close())
	must(t, g.Close())
}

// TestStoreStalls: the store of a snapshot stalls. Writes to the origin that have
// to be copied out first wait; everything else goes on.
func TestStoreStalls(t *testing.T) {
	g, disks := stallGroup(t)
	must(t, g.Create(CreateOptions{Name: "o", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "other", Extents: 4}, "lvcreate"))
	o, other := volume(t, g, "o"), volume(t, g, "other")
	must(t, flushed(o)())
	must(t, g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 8, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	must(t, use(o, 0)()) // copied out
	s := volume(t, g, "s")
	disks[1].stall(1<<20, 15<<20) // the extents
	done := waits(t, "a write that is copied out", use(o, 65536))
	<-disks[1].reached
	goesOn(t, "a write that was copied out before", use(o, 0))
	goesOn(t, "a read of the origin", func() error { _, err := o.ReadAt(make([]byte, 4096), 65536); return err })
	goesOn(t, "a read of the snapshot", func() error { _, err := s.ReadAt(make([]byte, 4096), 65536); return err })
	goesOn(t, "another volume", flushed(other))
	disks[1].release()
	done()
	if _, err := s.ReadAt(make([]byte, 4096), 65536); err != nil {
		t.Error("the snapshot is lost:", err)
	}
	for _, v := range []*Volume{o, s, other} {
		must(t, v.Close())
	}
	must(t, g.Close())
}

// TestDiskStalls: volumes on other disks than the one that stalls go on.
func TestDiskStalls(t *testing.T) {
	g, disks := stallGroup(t)
	must(t, g.Create(CreateOptions{Name: "a", Extents: 4, From: []vg.Range{{PV: "pv0"}}}, "lvcreate"))
	must(t, g.Create(CreateOptions{Name: "b", Extents: 4, From: []vg.Range{{PV: "pv1"}}}, "lvcreate"))
	a, b := volume(t, g, "a"), volume(t, g, "b")
	disks[1].stall(0, 16<<20)
	wrote := waits(t, "a write to the disk", use(b, 0))
	<-disks[1].reached
	changed := waits(t, "a change of the group", func() error {
		return g.Create(CreateOptions{Name: "c", Extents: 1, From: []vg.Range{{PV: "pv0"}}}, "lvcreate")
	})
	<-disks[1].reached
	goesOn(t, "the volume on the other disk", flushed(a))
	disks[1].release()
	wrote()
	changed()
	must(t, a.Close())
	must(t, b.Close())
	must(t, g.Close())
}
