package table

import (
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/internal/swap"
)

// flushCounter counts how often what was written is made durable.
type flushCounter struct {
	*lvmtest.Disk
	n int
}

func (d *flushCounter) FlushRange(off, n int64) error { d.n++; return d.Disk.FlushRange(off, n) }

func (d *flushCounter) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	err := d.Disk.LeaseWrite(l, off, n, m)
	l.Owner = d
	return err
}

func (d *flushCounter) CommitLease(l *blockdev.Lease, fua bool) error {
	if fua {
		d.n++
	}
	return d.Disk.CommitLease(l, fua)
}

// TestFlushes: a lease that is committed with FUA is durable on every disk below,
// whoever lent it, and one without it costs no flush.
func TestFlushes(t *testing.T) {
	disks := [2]*flushCounter{{Disk: lvmtest.New(1 << 20)}, {Disk: lvmtest.New(1 << 20)}}
	d, err := New("t", []Run{{Len: 1 << 20, Chunk: 65536, Stripes: []Stripe{{Dev: disks[0], Disk: true}, {Dev: disks[1], Disk: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(dev blockdev.Device, n int, fua bool) (flushes [2]int) {
		t.Helper()
		disks[0].n, disks[1].n = 0, 0
		var l blockdev.Lease
		if err := dev.LeaseWrite(&l, 0, n, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if err := l.Commit(fua); err != nil {
			t.Fatal(err)
		}
		return [2]int{disks[0].n, disks[1].n}
	}
	if n := commit(d, 4096, true); n != [2]int{1, 0} {
		t.Errorf("one piece: %v flushes", n)
	}
	if n := commit(d, 131072, true); n != [2]int{1, 1} {
		t.Errorf("two pieces: %v flushes", n)
	}
	if n := commit(d, 131072, false); n != [2]int{} {
		t.Errorf("no FUA: %v flushes", n)
	}
	var l blockdev.Lease
	if err := swap.Stage(&l, blockdev.DefaultPool(), d, 0, 131072, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	disks[0].n, disks[1].n = 0, 0
	if err := swap.WriteStaged(&l, d, true); err != nil || disks[0].n != 1 || disks[1].n != 1 {
		t.Errorf("a staged lease: %d and %d flushes, %v", disks[0].n, disks[1].n, err)
	}
	swap.Unstage(&l, blockdev.DefaultPool())

	d.SetReadOnly()
	_, werr := d.WriteAt(make([]byte, 512), 0)
	for _, err := range []error{werr, d.LeaseWrite(&l, 0, 512, blockdev.Wait), d.Discard(0, 512), d.WriteZeroes(0, 512, true), d.Erase(0, 512)} {
		if !errors.Is(err, blockdev.ErrReadOnly) {
			t.Errorf("a read-only table: %v", err)
		}
	}
}
