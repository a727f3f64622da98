package blockdevtest

import (
	"errors"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/alloctest"
)

// testLeases writes and reads through leases of every kind of length and place; what was
// not committed may be anything, what lies beside it is unchanged.
func testLeases(t *testing.T, b Backend) {
	dev := b.open(t, size)
	bs := dev.Info().BlockSize
	var l blockdev.Lease // reused, as a command slot does
	for i, n := range []int{bs, 4096, 4096 + bs, 65536, size} {
		for _, off := range []int64{0, 65536 - int64(bs), size - int64(n)} {
			if off > int64(size-n) {
				continue
			}
			p := pattern(byte(i*5+2), n)
			if err := dev.LeaseWrite(&l, off, n, blockdev.Wait); err != nil {
				t.Fatalf("LeaseWrite(%d, %d): %v", off, n, err)
			}
			if l.Off != off || l.Len != n || !l.Write || l.Owner == nil {
				t.Fatalf("write lease of %d at %d: Off %d, Len %d, Write %v, Owner %v", n, off, l.Off, l.Len, l.Write, l.Owner)
			}
			fill(t, &l, p)
			if l.Direct && l.MayBlock(false) && dev.Info().WriteCache {
				t.Error("the commit of a direct lease without FUA claims that it blocks")
			}
			if err := l.Commit(i%2 == 0); err != nil {
				t.Fatalf("Commit: %v", err)
			}
			l.Release()
			l.Release() // a no-op
			b.want(t, dev, p, off)

			if err := dev.LeaseRead(&l, off, n, blockdev.Wait); err != nil {
				t.Fatalf("LeaseRead(%d, %d): %v", off, n, err)
			}
			if l.Off != off || l.Len != n || l.Write || l.Owner == nil {
				t.Fatalf("read lease of %d at %d: Off %d, Len %d, Write %v, Owner %v", n, off, l.Off, l.Len, l.Write, l.Owner)
			}
			if b.Direct && !l.Direct {
				t.Errorf("read lease of %d at %d is not direct", n, off)
			}
			l.Release()
		}
	}
}

// testNoCommit: a write lease that is given back without a commit leaves the
// range readable and writable.
func testNoCommit(t *testing.T, b Backend) {
	dev := b.open(t, size)
	var l blockdev.Lease
	if err := dev.LeaseWrite(&l, 8192, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	l.Release()
	p := pattern(8, 4096)
	leaseWrite(t, dev, p, 8192, false)
	b.want(t, dev, p, 8192)
}

func testEmptyLease(t *testing.T, b Backend) {
	dev := b.open(t, size)
	for _, off := range []int64{0, size} {
		var l blockdev.Lease
		if err := dev.LeaseRead(&l, off, 0, blockdev.Wait); err != nil || len(l.Segs) != 0 {
			t.Errorf("LeaseRead(%d, 0): %d slices, %v", off, len(l.Segs), err)
		}
		l.Release()
		if err := dev.LeaseWrite(&l, off, 0, blockdev.Wait); err != nil || len(l.Segs) != 0 {
			t.Errorf("LeaseWrite(%d, 0): %d slices, %v", off, len(l.Segs), err)
		}
		if err := l.Commit(true); err != nil {
			t.Errorf("Commit of nothing: %v", err)
		}
		l.Release()
	}
}

// testProbe: a probe finds out whether a write would wait, changes nothing, and leaves nothing behind.
func testProbe(t *testing.T, b Backend) {
	dev := b.open(t, size)
	var l, open blockdev.Lease
	probe := func() (direct bool) {
		t.Helper()
		err := dev.LeaseWrite(&l, 8192, 4096, blockdev.Probe)
		if err != nil && !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("probing: %v", err)
		}
		direct = err == nil && l.Direct
		l.Release()
		return direct
	}
	probe()
	p := pattern(6, size)
	writeAt(t, dev, p, 0)
	if !probe() && b.Direct {
		t.Error("a probe of blocks that have just been written finds that a write would wait")
	}
	b.want(t, dev, p, 0)
	if err := dev.LeaseRead(&open, 8192, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if open.Direct && probe() {
		t.Error("a probe beside an open lease finds that a write would not wait")
	}
	open.Release()
	if b.Direct && !probe() {
		t.Error("a probe after that lease finds that a write would wait")
	}
}

// testOverlap opens every pair of leases on overlapping and on adjacent ranges
// and checks that both work, that no two memories are the same where one
// writes, and what ends up on the device.
func testOverlap(t *testing.T, b Backend) {
	dev := b.open(t, size)
	writeAt(t, dev, pattern(1, size), 0)
	// So that read leases are resident and write leases have their space.
	leaseWrite(t, dev, pattern(1, size), 0, false)
	second := []struct{ off, n int64 }{{65536, 8192}, {65536 - 4096, 8192}, {65536 + 4096, 65536}, {65536 + 8192, 4096}, {65536 - 4096, 4096}}
	for _, firstWrite := range []bool{false, true} {
		for _, secondWrite := range []bool{false, true} {
			for _, s := range second {
				var l1, l2 blockdev.Lease
				old := pattern(1, size)
				lease := func(l *blockdev.Lease, write bool, off, n int64) {
					t.Helper()
					f := dev.LeaseRead
					if write {
						f = dev.LeaseWrite
					}
					if err := f(l, off, int(n), blockdev.Wait); err != nil {
						t.Fatalf("lease of %d at %d (write %v): %v", n, off, write, err)
					}
				}
				lease(&l1, firstWrite, 65536, 8192)
				lease(&l2, secondWrite, s.off, s.n)
				overlap := s.off < 65536+8192 && 65536 < s.off+s.n
				if (firstWrite || secondWrite) && overlap && l1.Direct && l2.Direct {
					t.Errorf("both leases are direct, and one of them writes")
				}
				if want1, want2 := !firstWrite || !b.Staged, !secondWrite || !b.Staged; b.Direct && !overlap && (l1.Direct != want1 || l2.Direct != want2) {
					t.Errorf("adjacent leases are direct: %v, %v; want %v, %v", l1.Direct, l2.Direct, want1, want2)
				}
				if !secondWrite && !firstWrite && !b.Sink {
					if i := firstDiff(gather(t, &l2), old[s.off:s.off+s.n]); i >= 0 {
						t.Errorf("second read lease differs at byte %d", i)
					}
				}
				// The first ends first: then the second never waits.
				if firstWrite {
					fill(t, &l1, pattern(33, 8192))
					if err := l1.Commit(false); err != nil {
						t.Fatal(err)
					}
				}
				l1.Release()
				if secondWrite {
					fill(t, &l2, pattern(44, int(s.n)))
					if err := l2.Commit(false); err != nil {
						t.Fatal(err)
					}
				}
				l2.Release()
				if firstWrite {
					copy(old[65536:], pattern(33, 8192))
				}
				if secondWrite {
					copy(old[s.off:], pattern(44, int(s.n)))
				}
				b.want(t, dev, old, 0)
				leaseWrite(t, dev, pattern(1, size), 0, false)
			}
		}
	}
}

// testStableRead: memory lent for reading does not change while it is lent,
// whoever writes there (within the device's patience).
func testStableRead(t *testing.T, b Backend) {
	dev := b.open(t, size)
	old := pattern(1, 65536)
	leaseWrite(t, dev, old, 0, false)
	writers := map[string]func() error{
		"WriteAt": func() error { _, err := dev.WriteAt(pattern(2, 4096), 8192); return err },
		"commit": func() error {
			var l blockdev.Lease
			if err := dev.LeaseWrite(&l, 8192, 4096, blockdev.Wait); err != nil {
				return err
			}
			defer l.Release()
			fill(t, &l, pattern(2, 4096))
			return l.Commit(false)
		},
		"WriteZeroes": func() error { return dev.WriteZeroes(8192, 4096, true) },
	}
	if dev.Info().Discard {
		writers["Discard"] = func() error { return dev.Discard(8192, 4096) }
	}
	for name, write := range writers {
		var l blockdev.Lease
		if err := dev.LeaseRead(&l, 0, 65536, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- write() }()
		for range 20 {
			got := gather(t, &l)
			// A busy machine may keep this goroutine waiting for longer than the
			// writer is patient; then nothing is promised any more.
			if time.Since(began) > 200*time.Millisecond {
				break
			}
			if i := firstDiff(got, old); i >= 0 && !b.Sink {
				l.Release()
				t.Fatalf("%s changed byte %d of an open read lease", name, i)
			}
			time.Sleep(time.Millisecond)
		}
		l.Release()
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		leaseWrite(t, dev, old, 0, false)
		b.want(t, dev, old, 0)
	}
}

// testCommitWaits: a staged commit ends although the lease that it waits for is
// never given back.
func testCommitWaits(t *testing.T, b Backend) {
	dev := b.open(t, size)
	leaseWrite(t, dev, pattern(1, 8192), 0, false)
	var r, w blockdev.Lease
	if err := dev.LeaseRead(&r, 0, 8192, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if err := dev.LeaseWrite(&w, 4096, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	p := pattern(2, 4096)
	fill(t, &w, p)
	done := make(chan error, 1)
	go func() { done <- w.Commit(false) }()
	select {
	case err := <-done:
		if err != nil && !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("Commit = %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a commit waits for a read lease without a bound")
	}
	w.Release()
	r.Release()
	leaseWrite(t, dev, p, 4096, false)
	b.want(t, dev, p, 4096)
}

// testPoolExhausted: without staging memory a lease that needs it says so, and
// works again afterwards.
func testPoolExhausted(t *testing.T, b Backend) {
	dev, pool := b.openPool(t, size, blockdev.MaxBuffer)
	leaseWrite(t, dev, pattern(1, 8192), 0, false)
	hog, err := pool.Get(nil, int(pool.Cap()), blockdev.NoWait)
	if err != nil {
		t.Fatal(err)
	}
	var r, w blockdev.Lease
	if err := dev.LeaseRead(&r, 0, 4096, blockdev.Wait); err != nil && !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("LeaseRead without pool memory: %v", err)
	}
	for _, m := range []blockdev.Mode{blockdev.NoWait, blockdev.Wait} {
		err := dev.LeaseWrite(&w, 0, 4096, m)
		if err == nil && r.Owner != nil && r.Direct && w.Direct {
			t.Error("two direct leases overlap")
		}
		if err != nil && !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("LeaseWrite without pool memory: %v", err)
		}
		w.Release()
	}
	r.Release()
	pool.Put(hog)
	p := pattern(4, 4096)
	leaseWrite(t, dev, p, 0, false)
	b.want(t, dev, p, 0)
}

// testAllocations: the hot path of every lease allocates nothing.
func testAllocations(t *testing.T, b Backend) {
	dev := b.open(t, size)
	leaseWrite(t, dev, pattern(1, size), 0, false)
	var l blockdev.Lease
	for _, n := range []int{4096, 65536, 262144} {
		round := func() {
			if err := dev.LeaseRead(&l, 65536, n, blockdev.NoWait); err != nil {
				t.Fatal(err)
			}
			l.Release()
			if err := dev.LeaseWrite(&l, 65536, n, blockdev.NoWait); err != nil {
				t.Fatal(err)
			}
			if l.Direct {
				if err := l.Commit(false); err != nil {
					t.Fatal(err)
				}
			}
			l.Release()
		}
		if !b.Direct {
			// A device without a mapping may have to wait.
			if err := dev.LeaseRead(&l, 65536, n, blockdev.NoWait); errors.Is(err, blockdev.ErrWouldBlock) {
				continue
			}
			l.Release()
		}
		round()
		if a := alloctest.PerRun(100, round); a != 0 {
			t.Errorf("leases of %d bytes: %v allocations, want 0", n, a)
		}
	}
}
