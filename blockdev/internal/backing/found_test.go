package backing

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// What readers find never looks like reserved space, in whatever order: on a full file system a
// write there would fault.
func TestReadersReserveNothing(t *testing.T) {
	page := int64(unix.Getpagesize())
	for _, c := range []struct {
		what string
		read func(*testing.T, *Volume)
	}{
		{"a hole, then all in memory", func(t *testing.T, v *Volume) {
			v.pages.set(page, page, pageHole)
			if !v.inMemory(0, 4*page) {
				t.Error("it is not in memory")
			}
		}},
		{"a page in memory, then a hole around it", func(t *testing.T, v *Volume) {
			leaseRead(t, v, page, page, blockdev.NoWait)
			leaseRead(t, v, 0, page, blockdev.Wait)
		}},
		{"data that is gone, shrunk and grown", func(t *testing.T, v *Volume) {
			if _, err := v.WriteAt(make([]byte, 4<<20), 0); err != nil {
				t.Fatal(err)
			}
			v.pages.clear(0, 4<<20, pageUnknown)
			leaseRead(t, v, 3<<20, page, blockdev.Wait) // notes that there are no holes
			for _, n := range []int64{1 << 20, 4 << 20} {
				if err := v.Resize(n); err != nil {
					t.Fatal(err)
				}
			}
			if v.regions.full(2<<20, 4<<20) {
				t.Error("the hole is said to be none")
			}
			v.pages.clear(0, 1<<20, pageUnknown)
			v.pages.set(page, page, pageHole)
			leaseRead(t, v, 0, 4*page, blockdev.Wait)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			k := linux
			k.mincore = func(_, vec []byte) error {
				for i := range vec {
					vec[i] = 1
				}
				return nil
			}
			v, _ := openFile(t, 4<<20, k, func(c *Config) { c.Local = true })
			c.read(t, v)
			for off := int64(0); off < 4*page; off += page {
				if state, _ := v.pages.run(off, off+page); state == pageOwned {
					t.Errorf("page %d is owned", off/page)
				}
			}
			// The file system is full.
			v.sys.madvise = func([]byte, int) error { return unix.EFAULT }
			v.sys.fallocate = func(int, uint32, int64, int64) error { return unix.ENOSPC }
			var l blockdev.Lease
			if err := v.LeaseWrite(&l, page, int(page), blockdev.Wait); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("a write gets %v, want ENOSPC", err)
			}
		})
	}
}

// What is noted of the last region, which is not whole, does not hold when the file has grown.
func TestGrownByHole(t *testing.T) {
	v, _ := openFile(t, regionSize+1<<20, linux, nil)
	if _, err := v.WriteAt(make([]byte, regionSize+1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.extent(regionSize, regionSize+1<<20); err != nil {
		t.Fatal(err)
	}
	if err := v.Resize(2 * regionSize); err != nil {
		t.Fatal(err)
	}
	if v.regions.full(regionSize, 2*regionSize) {
		t.Error("the hole is said to be none")
	}
}

// Where the length of the store may be with a server, a lease that may not wait asks neither for it
// nor for what is in memory.
func TestServerNotAsked(t *testing.T) {
	for _, local := range []bool{true, false} {
		asked, copied := false, false
		v, path := openFile(t, 4<<20, linux, func(c *Config) { c.Local = local })
		if _, err := v.WriteAt(make([]byte, 4<<20), 0); err != nil {
			t.Fatal(path, err)
		}
		v.pages.clear(0, 4<<20, pageUnknown)
		v.sys.mincore = func(_, vec []byte) error {
			asked = true
			return unix.EINVAL
		}
		var l blockdev.Lease
		if err := v.LeaseRead(&l, 0, 4096, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("local %v: %v", local, err)
		}
		v.Announce(0, 4096) // finds no hole
		v.sys.preadCached = func(int, [][]byte, int64) (int, error) {
			copied = true
			return 0, unix.EAGAIN
		}
		if err := v.LeaseCached(&l, 0, 4096); !errors.Is(err, blockdev.ErrWouldBlock) || copied != local {
			t.Errorf("local %v: copied %v, %v", local, copied, err)
		}
		if v.inMemory(0, 4096) || asked != local {
			t.Errorf("local %v: asked %v", local, asked)
		}
	}
}

func leaseRead(t *testing.T, v *Volume, off, n int64, m blockdev.Mode) {
	t.Helper()
	var l blockdev.Lease
	if err := v.LeaseRead(&l, off, int(n), m); err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// TestHoleAheadOfAFailedWrite: what a reader has found behind its lease before a write that fails
// left a part there is no hole any more.
func TestHoleAheadOfAFailedWrite(t *testing.T) {
	page := int64(unix.Getpagesize())
	var v *Volume
	part := bytes.Repeat([]byte{7}, 512)
	k := linux
	k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
		if off > 4*page {
			return 0, unix.EIO
		}
		return unix.Pwritev(fd, [][]byte{part}, off)
	}
	k.seek = func(fd int, off int64, whence int) (int64, error) {
		at, err := unix.Seek(fd, off, whence)
		if whence == unix.SEEK_DATA && off == 0 {
			if _, err := v.WriteAt(make([]byte, page), 4*page); !errors.Is(err, unix.EIO) {
				t.Errorf("the write ended with %v", err)
			}
		}
		return at, err
	}
	v, _ = openFile(t, 8*page, k, nil)
	leaseRead(t, v, 0, page, blockdev.Wait)
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 4*page, int(page), blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if got := bytes.Join(l.Segs, nil); !bytes.Equal(got[:512], part) {
		t.Errorf("a reader finds %v, the file has %v", got[:4], part[:4])
	}
}
