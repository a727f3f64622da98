package backing

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
	"softiser/internal/uring"
)

// openParked is openFile where short reads and syncs always go by a ring, as when others wait for
// the disk, and where a fault would read a wide window.
func openParked(t *testing.T, size int64, k kernel, change func(*Config)) (*Volume, string) {
	t.Helper()
	v, path := openFile(t, size, k, change)
	v.wide = true
	v.parked.open = func(n int) (*uring.Files, error) {
		f, err := uring.NewFiles(n)
		if err != nil {
			t.Log(err)
		}
		return f, err
	}
	v.parked.under.Add(1)
	return v, path
}

func TestParked(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{
		Direct: true,
		Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
			v, _ := openParked(t, size, linux, func(c *Config) { c.Pool = pool })
			return v
		},
	})
}

// Calls that come while another one is under way are the ring's, and what it finds is what counts:
// a sync that has failed is not made again, because the kernel tells of lost data once. A call that
// is alone, for which there is no ring, or no room in it, is made by its goroutine.
func TestParkedCalls(t *testing.T) {
	if f, err := uring.NewFiles(1); errors.Is(err, uring.ErrUnavailable) {
		t.Skip(err)
	} else if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe() // has nothing to sync: EINVAL
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	none := func(int) (*uring.Files, error) { return nil, uring.ErrUnavailable }
	for _, c := range []struct {
		what   string
		open   func(int) (*uring.Files, error)
		others int32
		n      int64
		called bool
	}{
		{"alone", uring.NewFiles, 0, 4096, true},
		{"beside another one", uring.NewFiles, 1, 4096, false},
		{"all, beside another one", uring.NewFiles, 1, 0, false},
		{"a longer range than a ring takes", uring.NewFiles, 1, uring.SyncMost + 4096, true},
		{"no ring", none, 1, 4096, true},
	} {
		m := &mapped{fd: int(r.Fd())}
		m.parked.open = c.open
		m.parked.under.Add(c.others)
		called := false
		err := m.syncData(0, c.n, func() error { called = true; return nil })
		if called != c.called || !called && !errors.Is(err, unix.EINVAL) || called && err != nil {
			t.Errorf("%s: called %v, %v", c.what, called, err)
		}
		if n := m.parked.under.Load(); n != c.others {
			t.Errorf("%s: %d calls are still under way", c.what, n-c.others)
		}
		if err := m.parked.close(); err != nil {
			t.Error(err)
		}
	}
}

// Reads at random of what is not known, by many at once, get what is stored there; the end of a
// store that somebody has cut off is an error as it is by pread.
func TestParkedReads(t *testing.T) {
	const size = 4 << 20
	v, path := openParked(t, size, linux, func(c *Config) { c.StoreSize = nil })
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12) ^ byte(i)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for k := range 16 {
				off := int64(i*16+k) * 37 % 1024 * 4096
				var l blockdev.Lease
				if err := v.LeaseRead(&l, off, 4096, blockdev.Wait); err != nil {
					t.Error(err)
					return
				}
				// The mapping is not touched from Go; the kernel copies from it.
				fd, err := unix.MemfdCreate("copy", unix.MFD_CLOEXEC)
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 4096)
				_, err = unix.Pwritev(fd, l.Segs, 0)
				_, err2 := unix.Pread(fd, got, 0)
				if err := errors.Join(err, err2, unix.Close(fd)); err != nil || !bytes.Equal(got, data[off:off+4096]) {
					t.Errorf("at %d: not what is stored, %v", off, err)
				}
				l.Release()
			}
		})
	}
	wg.Wait()
	w, cut := openParked(t, size, linux, func(c *Config) { c.StoreSize = nil })
	if err := os.WriteFile(cut, data[:size-6000], 0o600); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := w.LeaseRead(&l, size-8192, 8192, blockdev.Wait); err == nil {
		l.Release()
		t.Error("the end of the file was read through")
	}
}
