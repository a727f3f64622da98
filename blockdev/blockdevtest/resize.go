package blockdevtest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
)

// resizer skips the test if the device cannot be resized from this side.
func resizer(t *testing.T, dev blockdev.Device) blockdev.Resizer {
	rs, ok := dev.(blockdev.Resizer)
	if !ok {
		t.Skip("the device cannot be resized")
	}
	if err := rs.Resize(size); errors.Is(err, blockdev.ErrNotSupported) {
		t.Skip(err)
	}
	return rs
}

// testResize: growing keeps the data and appends zeroes, shrinking cuts off, leases
// beyond the new end are refused, and those who asked are told.
func testResize(t *testing.T, b Backend) {
	dev := b.open(t, size)
	rs := resizer(t, dev)
	var seen []int64
	cancel := dev.OnResize(func(i blockdev.Info) { seen = append(seen, i.Size) })
	p := pattern(7, size)
	writeAt(t, dev, p, 0)

	if err := rs.Resize(2 * size); err != nil {
		t.Fatalf("growing: %v", err)
	}
	if got := dev.Info().Size; got != 2*size {
		t.Fatalf("size after growing = %d", got)
	}
	b.want(t, dev, p, 0)
	b.want(t, dev, make([]byte, size), size)
	leaseWrite(t, dev, p, size, false)
	b.want(t, dev, p, size)

	// A lease beyond the new end forbids shrinking, one before it does not.
	var l, before blockdev.Lease
	if b.Direct {
		if err := dev.LeaseRead(&l, size, 4096, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		if err := rs.Resize(size); !errors.Is(err, blockdev.ErrInUse) {
			t.Errorf("shrinking over an open lease = %v, want ErrInUse", err)
		}
		if got := dev.Info().Size; got != 2*size {
			t.Errorf("size after a refused shrink = %d", got)
		}
		l.Release()
	}
	if err := dev.LeaseRead(&before, 0, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if err := rs.Resize(size / 2); err != nil {
		t.Fatalf("shrinking: %v", err)
	}
	before.Release()
	if err := dev.LeaseRead(&l, size/2, 4096, blockdev.Wait); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Errorf("lease beyond the new end = %v, want ErrOutOfRange", err)
	}
	b.want(t, dev, p[:size/2], 0)

	// What was cut off does not come back.
	if err := rs.Resize(size); err != nil {
		t.Fatalf("growing again: %v", err)
	}
	b.want(t, dev, make([]byte, size/2), size/2)

	if err := rs.Resize(size + 1); err == nil {
		t.Error("a size that is not a multiple of the block size was accepted")
	}
	if err := rs.Resize(0); err == nil {
		t.Error("a size of 0 was accepted")
	}
	cancel()
	cancel()
	if err := rs.Resize(2 * size); err != nil {
		t.Fatal(err)
	}
	want := []int64{2 * size, size / 2, size}
	if len(seen) != len(want) {
		t.Fatalf("OnResize saw %v, want %v", seen, want)
	}
	for i := range want {
		if seen[i] != want[i] {
			t.Fatalf("OnResize saw %v, want %v", seen, want)
		}
	}
}

// testResizeUnderLoad resizes while others read and write, below the smallest
// size and above it.
func testResizeUnderLoad(t *testing.T, b Backend) {
	dev := b.open(t, size)
	rs := resizer(t, dev)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(g)))
			var l blockdev.Lease
			for !stop.Load() {
				off := rnd.Int64N(2*size/4096) * 4096
				var err error
				if rnd.IntN(2) == 0 {
					err = dev.LeaseRead(&l, off, 4096, blockdev.Wait)
				} else {
					err = dev.LeaseWrite(&l, off, 4096, blockdev.Wait)
				}
				switch {
				case err == nil:
					l.Release()
				case errors.Is(err, blockdev.ErrOutOfRange) && off >= size/2:
				default:
					t.Errorf("lease at %d: %v", off, err)
					return
				}
			}
		})
	}
	for i := range steps(200) {
		err := rs.Resize([]int64{size / 2, size, 2 * size}[i%3])
		if err != nil && !errors.Is(err, blockdev.ErrInUse) {
			t.Errorf("resize %d: %v", i, err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// testRefusedShrink: as long as a lease forbids a device to shrink, nobody is refused anything before
// the end that it keeps, and nobody is told another one, however often it is tried.
func testRefusedShrink(t *testing.T, b Backend) {
	if !b.Direct {
		t.Skip("leases that are copies forbid nothing")
	}
	dev := b.open(t, size)
	rs := resizer(t, dev)
	var keeps blockdev.Lease
	if err := dev.LeaseRead(&keeps, size-4096, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if !keeps.Direct {
		t.Fatal("the lease is a copy")
	}
	defer keeps.Release()
	const users = 2
	var over atomic.Int32
	for g := range users {
		go func() {
			defer over.Add(1)
			rnd := rand.New(rand.NewPCG(3, uint64(g)))
			p := make([]byte, 4096)
			var l blockdev.Lease
			for range steps(1000) {
				off := rnd.Int64N(size/4096-1) * 4096
				mode := blockdev.Mode(rnd.IntN(2))
				var err error
				switch rnd.IntN(7) {
				case 0:
					err = dev.LeaseRead(&l, off, 4096, mode)
				case 1:
					if err = dev.LeaseWrite(&l, off, 4096, mode); err == nil {
						err = l.Commit(false)
					}
				case 2:
					_, err = dev.ReadAt(p, off)
				case 3:
					_, err = dev.WriteAt(p, off)
				case 4:
					err = dev.WriteZeroes(off, 4096, true)
				case 5:
					_, err = dev.Extents(off, 4096)
				case 6:
					if n := dev.Info().Size; n != size {
						t.Errorf("the size is told to be %d", n)
					}
				}
				l.Release()
				if err != nil && !(mode == blockdev.NoWait && errors.Is(err, blockdev.ErrWouldBlock)) {
					t.Errorf("at %d: %v", off, err)
					return
				}
			}
		}()
	}
	for over.Load() < users {
		if err := rs.Resize(size / 2); !errors.Is(err, blockdev.ErrInUse) {
			t.Errorf("shrinking: %v", err)
		}
	}
}
