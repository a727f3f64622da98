package backing

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/await"
)

// TestPoisonedBeforeItEnds: whoever waits for a sync that fails must find the volume
// poisoned when it has ended.
func TestPoisonedBeforeItEnds(t *testing.T) {
	k := linux
	v, _ := openFile(t, 1<<20, k, alone)
	v.sys.fdatasync = func(int) error {
		v.syncs.mu.Lock() // it cannot end
		return unix.EIO
	}
	failed := make(chan error)
	go func() { failed <- v.Flush() }()
	poisoned := await.Until(func() bool { return v.poisoned() != nil })
	v.syncs.mu.Unlock()
	if !poisoned {
		t.Error("the volume is not poisoned while the sync that has failed cannot end")
	}
	if err := <-failed; !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
}

// TestWriteBehindAShrink: what was lent in front of the old end is not written beyond the
// new one, which would make the store longer again.
func TestWriteBehindAShrink(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, nil)
	var l, other blockdev.Lease
	if err := v.LeaseRead(&other, 1<<19, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	err := v.LeaseWrite(&l, 1<<19, 4096, blockdev.Wait)
	other.Release()
	if err != nil || l.Direct {
		t.Fatalf("direct %v, %v", l.Direct, err)
	}
	defer l.Release()
	if err := v.Resize(1 << 19); err != nil {
		t.Fatal(err)
	}
	for _, fua := range []bool{false, true} {
		if err := l.Commit(fua); !errors.Is(err, blockdev.ErrOutOfRange) {
			t.Errorf("FUA %v: %v", fua, err)
		}
	}
	if n, err := v.cfg.StoreSize(); n != 1<<19 || err != nil {
		t.Errorf("the store has %d bytes (%v)", n, err)
	}
}

// TestReadBehindAShrink: a read that the volume has become too short for, after the look at
// its size, is told so; the store has not failed.
func TestReadBehindAShrink(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, nil)
	for range 20 {
		v.opMu.Lock() // a read does not get past this, which lies behind the look
		got := make(chan error)
		go func() {
			_, err := v.ReadAt(make([]byte, 4096), 1<<19)
			got <- err
		}()
		for range 1000 {
			runtime.Gosched()
		}
		if err := v.Resize(1 << 19); err != nil {
			t.Error(err)
		}
		v.opMu.Unlock()
		if err := <-got; !errors.Is(err, blockdev.ErrOutOfRange) {
			t.Fatalf("%v", err)
		}
		if err := v.Resize(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Resize(1 << 19); err != nil {
		t.Fatal(err)
	}
	l, out := blockdev.Lease{Off: 1 << 19, Len: 4096}, v.pool.Out()
	if err := v.stageRead(&l); !errors.Is(err, blockdev.ErrOutOfRange) {
		t.Errorf("a lease: %v", err)
	}
	if now := v.pool.Out(); now != out {
		t.Errorf("%d bytes of the pool are out, %d were", now, out)
	}
}

// TestSizesAreToldInOrder: when the watcher has found the store longer while it is being
// resized, the size that is told last is the one that there is.
func TestSizesAreToldInOrder(t *testing.T) {
	v, path := openFile(t, 1<<20, linux, func(c *Config) { c.Follow = true })
	begun, resizing, told := make(chan struct{}), make(chan struct{}), make(chan int64, 2)
	defer v.OnResize(func(i blockdev.Info) {
		if i.Size == 1<<21 {
			close(begun)
			<-resizing
		}
		told <- i.Size
	})()
	if err := os.Truncate(path, 1<<21); err != nil {
		t.Fatal(err)
	}
	go v.poll()
	<-begun
	resized := make(chan error)
	go func() {
		close(resizing)
		resized <- v.Resize(1 << 22)
	}()
	if err := <-resized; err != nil {
		t.Fatal(err)
	}
	if first, last := <-told, <-told; first != 1<<21 || last != 1<<22 {
		t.Errorf("told %d, then %d", first, last)
	}
}

// TestFailedWriteIsLookedAt: what a write has left that failed is not known any more, in
// the whole page that it was in: a hole is one no longer.
func TestFailedWriteIsLookedAt(t *testing.T) {
	k := linux
	k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
		if _, err := linux.pwritev(fd, bufs, off); err != nil {
			return 0, err
		}
		return 0, unix.EIO
	}
	v, _ := openFile(t, 1<<20, k, nil)
	read := func() []byte {
		t.Helper()
		var l blockdev.Lease
		if err := v.LeaseRead(&l, 0, 12288, blockdev.Wait); err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		return bytes.Join(l.Segs, nil)
	}
	want := make([]byte, 12288)
	if !bytes.Equal(read(), want) {
		t.Fatal("it is no hole")
	}
	for _, off := range []int64{512, 8192 - 512} {
		p := bytes.Repeat([]byte{7}, 1024)
		if _, err := v.WriteAt(p, off); !errors.Is(err, unix.EIO) {
			t.Fatal(err)
		}
		copy(want[off:], p)
		if !bytes.Equal(read(), want) {
			t.Errorf("at %d: what is in the store is not seen", off)
		}
	}
}

// TestExtentsAreWholeBlocks: a block of which any part is data is data.
func TestExtentsAreWholeBlocks(t *testing.T) {
	const size, block = 64 << 10, 4096
	for _, c := range []struct{ from, to int64 }{
		{8192, 16384}, {8193, 16384}, {8192, 16385}, {8191, 16383}, {8704, 9216}, {0, 512}, {size - 512, size}, {12288, 12289}, {4095, 4097}, {0, size}, {size, size},
	} {
		k := linux
		k.seek = func(_ int, off int64, whence int) (int64, error) {
			switch data := off >= c.from && off < c.to; {
			case whence == unix.SEEK_DATA && data, whence == unix.SEEK_HOLE && !data:
				return off, nil
			case whence == unix.SEEK_HOLE:
				return c.to, nil
			case off < c.from && c.from < c.to:
				return c.from, nil
			}
			return 0, unix.ENXIO
		}
		v, _ := openFile(t, size, k, func(c *Config) { c.Info.BlockSize = block })
		for first := int64(0); first < size; first += block {
			got, err := v.Extents(first, size-first)
			if err != nil {
				t.Fatal(err)
			}
			var want []blockdev.Extent
			for off := first; off < size; off += block {
				data := off < c.to && off+block > c.from
				if n := len(want); n > 0 && want[n-1].Data == data {
					want[n-1].Len += block
				} else {
					want = append(want, blockdev.Extent{Off: off, Len: block, Data: data})
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("data from %d to %d, asked from %d: %v, want %v", c.from, c.to, first, got, want)
			}
		}
	}
}

// TestPageTable compares the table with one that has a state for each page: what is learnt
// takes nothing away, readers make nothing owned, what is cleared is whole pages only.
func TestPageTable(t *testing.T) {
	const page, count = 4096, 200
	for _, holesKnown := range []bool{false, true} {
		p, err := newPages(count*page, page, holesKnown)
		if err != nil {
			t.Fatal(err)
		}
		var mapped, own [count]bool
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			off := rnd.Int64N(count * page)
			n := 1 + rnd.Int64N(count*page-off)
			if rnd.IntN(2) == 0 { // short, at an edge
				off = max(off&^(page-1)+rnd.Int64N(3)-1, 0)
				n = min(max(rnd.Int64N(4)*page+rnd.Int64N(3)-1, 1), count*page-off)
			}
			s := pageState(rnd.IntN(4))
			clear := rnd.IntN(2) == 0
			if clear && (s == pageHole || s == pageUnknown) {
				p.clear(off, n, s)
			} else {
				clear = false
				p.set(off, n, s)
			}
			readable, writable := true, true
			for i := range int64(count) {
				lo, hi := i*page, (i+1)*page
				switch {
				case clear && lo >= off && hi <= off+n:
					mapped[i], own[i] = false, s == pageHole && !holesKnown
				case !clear && lo < off+n && hi > off:
					m, o := mapped[i], own[i]
					mapped[i] = m || s == pageOwned || s == pageData && !o
					own[i] = o || s == pageOwned || s == pageHole && !m
				}
				want := pageUnknown
				switch {
				case mapped[i] && own[i]:
					want = pageOwned
				case mapped[i]:
					want = pageData
				case own[i] || holesKnown:
					want = pageHole
				}
				if got := p.at(uint64(i)); got != want {
					t.Fatalf("page %d after clear %v, state %d of [%d,+%d): %d, want %d", i, clear, s, off, n, got, want)
				}
				if lo < off+n && hi > off {
					readable = readable && mapped[i]
					writable = writable && mapped[i] && own[i]
				}
			}
			if p.readable(off, n) != readable || p.writable(off, n) != writable {
				t.Fatalf("[%d,+%d): readable %v, writable %v", off, n, p.readable(off, n), p.writable(off, n))
			}
			first := p.at(uint64(off / page))
			end := off
			for end < off+n && p.at(uint64(end/page)) == first {
				end = min((end/page+1)*page, off+n)
			}
			if s, k := p.run(off, off+n); s != first || k != end-off {
				t.Fatalf("run of [%d,+%d): %d for %d, want %d for %d", off, n, s, k, first, end-off)
			}
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWatcherBesideStorageThatHangs: a volume whose storage does not answer keeps no other from growing.
func TestWatcherBesideStorageThatHangs(t *testing.T) {
	hangs, answer := make(chan struct{}), make(chan struct{})
	defer close(answer) // before the volumes are closed
	var once sync.Once
	openFile(t, 1<<20, linux, func(c *Config) {
		c.StoreSize = func() (int64, error) {
			once.Do(func() { close(hangs) })
			<-answer
			return 1 << 20, nil
		}
	})
	v, path := openFile(t, 1<<20, linux, func(c *Config) { c.Follow = true })
	<-hangs
	if err := os.Truncate(path, 2<<20); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the volume grows", func() bool { return v.Info().Size == 2<<20 })
}
