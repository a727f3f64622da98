package backing

import (
	"bytes"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Short writes to pages of a memory volume that have their space are copied into
// the mapping; a store that somebody cut short costs such a write the detour through
// pwrite, and not the process its life.
func TestPlace(t *testing.T) {
	for _, size := range []int64{1 << 20, 2 * cached} { // copied by either way
		t.Run(humanize.IBytes(uint64(size)), func(t *testing.T) { testPlace(t, size) })
	}
}

func testPlace(t *testing.T, size int64) {
	v := openMemory(t, size, 0)
	calls := 0
	pwritev := v.sys.pwritev
	v.sys.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
		calls++
		return pwritev(fd, bufs, off)
	}
	write := func(fill byte, off int64, n, want int) {
		t.Helper()
		calls = 0
		p, q := bytes.Repeat([]byte{fill}, n), make([]byte, n)
		if _, err := v.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
		if _, err := v.ReadAt(q, off); err != nil || !bytes.Equal(p, q) {
			t.Errorf("%d bytes at %d read back otherwise, %v", n, off, err)
		}
		if calls != want {
			t.Errorf("%d bytes at %d took %d calls of pwrite, want %d", n, off, calls, want)
		}
	}
	write(1, 512, 12<<10, 1)          // holes
	write(2, 512, 12<<10, 0)          // the same again
	write(3, 8<<10, 16<<10, 1)        // ends in a hole
	write(4, 64<<10, 2*placeMax, 1)   // long
	write(5, 64<<10, placeMax+512, 1) // still
	write(6, 64<<10, placeMax, 0)
	if err := unix.Ftruncate(v.fd, 0); err != nil {
		t.Fatal(err)
	}
	write(7, 512, 4096, 1)
}

// openMemory opens a volume in memory whose copies wait for leases as long as that.
func openMemory(t *testing.T, size int64, patience time.Duration) *Volume {
	t.Helper()
	fd, err := unix.MemfdCreate("place", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	v, err := Open(Config{
		FD: fd, Path: "place", Volatile: true, HolesKnown: true, SeekHoles: true, Patience: patience,
		Info: blockdev.Info{Size: size, BlockSize: 512, PhysBlockSize: 4096, InPlace: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// A write into part of a page of memory does not wait for a lease of the rest of it, whose data may be due on
// the caller's goroutine. One to a page without space claims all of it.
func TestWriteBesideLease(t *testing.T) {
	v := openMemory(t, 1<<20, time.Hour)
	half := bytes.Repeat([]byte{1}, 2048)
	if _, err := v.WriteAt(half, 2048); err != nil { // gives the page its space
		t.Fatal(err)
	}
	var w, r blockdev.Lease
	if err := v.LeaseWrite(&w, 0, 2048, blockdev.NoWait); err != nil {
		t.Fatal(err)
	}
	if err := v.LeaseRead(&r, 4096-512, 512, blockdev.NoWait); err != nil {
		t.Fatal(err)
	}
	if !w.Direct || !r.Direct {
		t.Fatalf("leases of the mapping are direct: %v, %v", w.Direct, r.Direct)
	}
	done := make(chan error, 1)
	go func() {
		_, err := v.WriteAt(half[:1024], 2048)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Error("a write waits for leases of other parts of its page")
	}
	w.Release()
	r.Release()
	if n := v.Info().ExactWrite; n != placeMax {
		t.Errorf("ExactWrite is %d", n)
	}
	if n := v.ranges.Open(); n != 0 {
		t.Errorf("%d ranges are still claimed", n)
	}
}
