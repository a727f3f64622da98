package swap

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/alloctest"
	"softiser/lvm/internal/lvmtest"
)

// full is a disk that has no space until it is given some: writes wait, and leases
// are staged.
type full struct {
	*lvmtest.Disk
	space chan struct{}
}

func newFull(size int64) *full { return &full{lvmtest.New(size), make(chan struct{})} }

func (f *full) wait(stop blockdev.Stop) error {
	var done <-chan struct{}
	if stop != nil {
		done = stop.Done()
	}
	select {
	case <-f.space:
		return nil
	default:
	}
	select {
	case <-f.space:
		return nil
	case <-done:
		return blockdev.ErrStopped
	case <-time.After(time.Minute):
		return blockdev.ErrNoSpace
	}
}

func (f *full) WriteAtUntil(p []byte, off int64, stop blockdev.Stop) (int, error) {
	if err := f.wait(stop); err != nil {
		return 0, err
	}
	return f.Disk.WriteAt(p, off)
}

func (f *full) WriteZeroesUntil(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := f.wait(stop); err != nil {
		return err
	}
	return f.Disk.WriteZeroes(off, n, mayUnmap)
}

func (f *full) DiscardUntil(off, n int64, stop blockdev.Stop) error {
	return f.WriteZeroesUntil(off, n, true, stop)
}

func (f *full) EraseUntil(off, n int64, stop blockdev.Stop) error {
	return f.WriteZeroesUntil(off, n, false, stop)
}

func (f *full) LeaseWrite(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	err := f.Disk.LeaseWrite(l, off, n, m)
	l.Owner = f
	return err
}

func (f *full) CommitLeaseUntil(l *blockdev.Lease, fua bool, stop blockdev.Stop) error {
	if err := f.wait(stop); err != nil {
		return err
	}
	return f.Disk.CommitLease(l, fua)
}

// spaceOps are writes of nines or zeroes to the first block that may wait for space.
var spaceOps = map[string]struct {
	leaves byte
	do     func(d *Device, stop blockdev.Stop) error
}{
	"write": {9, func(d *Device, stop blockdev.Stop) error {
		_, err := d.WriteAtUntil(bytes.Repeat([]byte{9}, 4096), 0, stop)
		return err
	}},
	"zeroes":  {0, func(d *Device, stop blockdev.Stop) error { return d.WriteZeroesUntil(0, 4096, false, stop) }},
	"discard": {0, func(d *Device, stop blockdev.Stop) error { return d.DiscardUntil(0, 4096, stop) }},
	"erasure": {0, func(d *Device, _ blockdev.Stop) error { return d.Erase(0, 4096) }},
	"lease": {9, func(d *Device, stop blockdev.Stop) error {
		var l blockdev.Lease
		if err := d.LeaseWrite(&l, 0, 4096, blockdev.Wait); err != nil {
			return err
		}
		defer l.Release()
		for _, s := range l.Segs {
			for i := range s {
				s[i] = 9
			}
		}
		return l.CommitUntil(true, stop)
	}},
}

// TestFreezeDoesNotWaitForSpace: a write that waits for space lets a freeze pass, does
// nothing to what is frozen, and takes place on what is there afterwards.
func TestFreezeDoesNotWaitForSpace(t *testing.T) {
	for name, op := range spaceOps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newFull(1<<20), newFull(1<<20)
				old := bytes.Repeat([]byte{7}, 4096)
				for _, f := range []*full{a, b} {
					if _, err := f.Disk.WriteAt(old, 0); err != nil {
						t.Fatal(err)
					}
				}
				d := New(a, nil)
				stop, cancel := context.WithCancel(context.Background())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- op.do(d, stop) }()
				synctest.Wait() // until it waits
				began := time.Now()
				f, err := d.Freeze(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(began); waited != 0 {
					t.Errorf("the freeze waited %v for the write", waited)
				}
				close(a.space)
				f.Thaw(b)
				if err := f.Drain(context.Background()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // until it waits for the other's space
				if !d.Busy() && name == "lease" {
					t.Error("nobody is said to be in the device")
				}
				close(b.space)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				for dev, want := range map[*full]byte{a: 7, b: op.leaves} {
					got := make([]byte, 4096)
					if _, err := dev.Disk.ReadAt(got, 0); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{want}, 4096)) {
						t.Errorf("%d, not %d: %v", got[0], want, err)
					}
				}
				if d.Busy() {
					t.Error("somebody is said to be in the device")
				}
			})
		})
	}
}

// TestSpaceWaitEnds: through all freezes a wait ends when its caller gives it up, or
// with what the device says.
func TestSpaceWaitEnds(t *testing.T) {
	for name, op := range spaceOps {
		t.Run(name, func(t *testing.T) {
			for _, given := range []bool{true, false} {
				if given && name == "erasure" {
					continue // nobody can give it up
				}
				synctest.Test(t, func(t *testing.T) {
					a := newFull(1 << 20)
					d := New(a, nil)
					stop, cancel := context.WithCancel(context.Background())
					defer cancel()
					done := make(chan error, 1)
					go func() { done <- op.do(d, stop) }()
					for range 3 {
						synctest.Wait()
						f, err := d.Freeze(context.Background())
						if err != nil {
							t.Fatal(err)
						}
						f.Thaw(nil)
					}
					synctest.Wait()
					want := blockdev.ErrNoSpace
					if given {
						cancel()
						want = blockdev.ErrStopped
					}
					began := time.Now()
					if err := <-done; !errors.Is(err, want) || given && time.Since(began) != 0 {
						t.Errorf("after %v: %v, not %v", time.Since(began), err, want)
					}
					if a.Writes() != 0 || d.Busy() {
						t.Errorf("%d writes; busy: %v", a.Writes(), d.Busy())
					}
				})
			}
		})
	}
}

// TestWritesAreNotAllocated: what need not wait costs no memory.
func TestWritesAreNotAllocated(t *testing.T) {
	d := New(newMem(t, 1<<20, nil), nil)
	defer d.Close()
	p := make([]byte, 4096)
	var l blockdev.Lease
	if n := alloctest.PerRun(100, func() {
		if _, err := d.WriteAtUntil(p, 0, context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := d.LeaseWrite(&l, 0, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		if err := l.CommitUntil(false, context.Background()); err != nil {
			t.Fatal(err)
		}
		l.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
