// Package blockdevtest is the conformance suite of blockdev.Device: every
// backend and every wrapper runs it.
package blockdevtest

import (
	"bytes"
	"errors"
	"testing"

	"softiser/blockdev"
)

// Backend is how the suite gets devices.
type Backend struct {
	// Open returns a fresh device of size bytes, all zeroes. The suite closes
	// it, and afterwards calls the function that Open registered by t.Cleanup.
	Open func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device
	// Sink is set for a device that forgets what is written and reads zeroes.
	Sink bool
	// Direct is set for a device whose leases are its own mapping: the suite
	// then checks that they are direct where they may be, and stable.
	Direct bool
	// Staged is set beside Direct for a device that lends pool memory for writes all the same.
	Staged bool
}

// size is that of most tests: enough pages for every boundary, small enough to
// be fast under the race detector.
const size = 1 << 20

// Run runs the suite.
func Run(t *testing.T, b Backend) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Backend)
	}{
		{"Info", testInfo},
		{"Bounds", testBounds},
		{"ReadWrite", testReadWrite},
		{"Leases", testLeases},
		{"LeaseWithoutCommit", testNoCommit},
		{"Probe", testProbe},
		{"EmptyLease", testEmptyLease},
		{"Overlap", testOverlap},
		{"StableRead", testStableRead},
		{"CommitWaits", testCommitWaits},
		{"PoolExhausted", testPoolExhausted},
		{"Flush", testFlush},
		{"Discard", testDiscard},
		{"WriteZeroes", testWriteZeroes},
		{"Extents", testExtents},
		{"Resize", testResize},
		{"ResizeUnderLoad", testResizeUnderLoad},
		{"RefusedShrink", testRefusedShrink},
		{"Close", testClose},
		{"Model", testModel},
		{"ConcurrentModel", testConcurrentModel},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // some wait for the device's patience
			c.test(t, b)
		})
	}
	t.Run("Allocations", func(t *testing.T) { testAllocations(t, b) })
}

// open gives a test its device and pool, and checks at the end that every
// buffer has come back.
func (b Backend) open(t *testing.T, size int64) blockdev.Device {
	t.Helper()
	dev, _ := b.openPool(t, size, 4<<20)
	return dev
}

func (b Backend) openPool(t *testing.T, size, limit int64) (blockdev.Device, *blockdev.Pool) {
	t.Helper()
	pool, err := blockdev.NewPool(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := pool.Out(); n != 0 {
			t.Errorf("%d bytes of pool buffers are still out", n)
			return
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	dev := b.Open(t, size, pool)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
	return dev, pool
}

// pattern fills n bytes so that every block differs from its neighbours and
// from other seeds.
func pattern(seed byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = seed + byte(i) + byte(i>>9)*7
	}
	return p
}

func writeAt(t *testing.T, dev blockdev.Device, p []byte, off int64) {
	t.Helper()
	if n, err := dev.WriteAt(p, off); err != nil || n != len(p) {
		t.Fatalf("WriteAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
	}
}

// want compares a range with p, by ReadAt and by a lease.
func (b Backend) want(t *testing.T, dev blockdev.Device, p []byte, off int64) {
	t.Helper()
	if b.Sink {
		p = make([]byte, len(p))
	}
	got := make([]byte, len(p))
	if n, err := dev.ReadAt(got, off); err != nil || n != len(p) {
		t.Fatalf("ReadAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
	}
	if i := firstDiff(got, p); i >= 0 {
		t.Fatalf("ReadAt: byte %d is %#x, want %#x", off+int64(i), got[i], p[i])
	}
	var l blockdev.Lease
	if err := dev.LeaseRead(&l, off, len(p), blockdev.Wait); err != nil {
		t.Fatalf("LeaseRead(%d, %d): %v", off, len(p), err)
	}
	defer l.Release()
	got = gather(t, &l)
	if i := firstDiff(got, p); i >= 0 {
		t.Fatalf("LeaseRead: byte %d is %#x, want %#x (direct: %v)", off+int64(i), got[i], p[i], l.Direct)
	}
}

func firstDiff(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// gather checks the shape of a lease and copies its memory.
func gather(t *testing.T, l *blockdev.Lease) []byte {
	t.Helper()
	p := bytes.Join(l.Segs, nil)
	if len(p) != l.Len {
		t.Fatalf("the slices of a lease of %d bytes hold %d", l.Len, len(p))
	}
	for i, s := range l.Segs {
		if len(s) == 0 {
			t.Fatalf("slice %d of %d is empty", i, len(l.Segs))
		}
	}
	return p
}

// fill stores p into the slices of a write lease.
func fill(t *testing.T, l *blockdev.Lease, p []byte) {
	t.Helper()
	n := 0
	for _, s := range l.Segs {
		n += copy(s, p[n:])
	}
	if n != len(p) || n != l.Len {
		t.Fatalf("a write lease of %d bytes took %d of %d", l.Len, n, len(p))
	}
}

// leaseWrite writes p through a lease.
func leaseWrite(t *testing.T, dev blockdev.Device, p []byte, off int64, fua bool) {
	t.Helper()
	var l blockdev.Lease
	if err := dev.LeaseWrite(&l, off, len(p), blockdev.Wait); err != nil {
		t.Fatalf("LeaseWrite(%d, %d): %v", off, len(p), err)
	}
	defer l.Release()
	fill(t, &l, p)
	if err := l.Commit(fua); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}
