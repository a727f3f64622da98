package backing

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Short writes to pages of a memory volume that have their space are copied into
// the mapping; a store that somebody cut short costs such a write the detour through
// pwrite, and not the process its life.
func TestPlace(t *testing.T) {
	const size = 1 << 20
	fd, err := unix.MemfdCreate("place", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	v, err := Open(Config{
		FD: fd, Path: "place", Volatile: true, HolesKnown: true, SeekHoles: true,
		Info: blockdev.Info{Size: size, BlockSize: 512, PhysBlockSize: 4096, InPlace: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
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
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	write(7, 512, 4096, 1)
}
