package backing

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
)

// openFile opens a sparse file of size bytes as a volume with this kernel.
func openFile(t *testing.T, size int64, k kernel, change func(*Config)) (*Volume, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		FD:   fd,
		Path: path,
		Info: blockdev.Info{Size: size, BlockSize: 512, PhysBlockSize: 4096, WriteCache: true, Discard: true,
			ZeroesOnTrim: true, Thin: true, Backend: "file", ID: path,
			InPlace: true}, // as on tmpfs; what else files do is in staged_test.go
		SeekHoles: true,
		StoreSize: func() (int64, error) {
			var st unix.Stat_t
			err := unix.Fstat(fd, &st)
			return st.Size, err
		},
		Truncate: func(n int64) error { return unix.Ftruncate(fd, n) },
		Punch: func(off, n int64) error {
			return k.fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		},
	}
	if change != nil {
		change(&cfg)
	}
	v, err := open(cfg, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Error(err)
		}
	})
	return v, path
}

// cold is mincore when nothing is in memory.
func cold(_, vec []byte) error { clear(vec); return nil }

// TestOldKernels runs the conformance suite as on kernels and file systems
// that lack what newer ones have, and with calls that are cut short.
func TestOldKernels(t *testing.T) {
	noPopulate := linux
	noPopulate.madvise = func(p []byte, advice int) error {
		if advice == unix.MADV_POPULATE_READ || advice == unix.MADV_POPULATE_WRITE {
			return unix.EINVAL
		}
		return linux.madvise(p, advice)
	}
	noFallocate := noPopulate
	noFallocate.fallocate = func(fd int, mode uint32, off, n int64) error {
		if mode&unix.FALLOC_FL_PUNCH_HOLE == 0 {
			return unix.EOPNOTSUPP
		}
		return linux.fallocate(fd, mode, off, n)
	}
	short := linux
	var mu sync.Mutex
	calls := 0
	interrupted := func() bool {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return calls%3 == 0
	}
	short.pread = func(fd int, p []byte, off int64) (int, error) {
		if interrupted() {
			return 0, unix.EINTR
		}
		return linux.pread(fd, p[:(len(p)+1)/2], off)
	}
	short.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
		if interrupted() {
			return 0, unix.EINTR
		}
		return linux.pwritev(fd, [][]byte{bufs[0][:(len(bufs[0])+1)/2]}, off)
	}
	noneCached := linux
	noneCached.mincore = cold

	for name, c := range map[string]struct {
		k      kernel
		direct bool
		change func(*Config)
	}{
		"no MADV_POPULATE":         {k: noPopulate, direct: true},
		"no fallocate either":      {k: noFallocate},
		"no SEEK_HOLE":             {k: linux, change: func(c *Config) { c.SeekHoles = false }},
		"short and interrupted":    {k: short, direct: true},
		"nothing cached, one page": {k: noneCached, change: func(c *Config) { c.Info.BlockSize = 4096 }},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Direct: c.direct,
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					v, _ := openFile(t, size, c.k, func(cfg *Config) {
						cfg.Pool = pool
						if c.change != nil {
							c.change(cfg)
						}
					})
					return v
				},
			})
		})
	}
}

// TestDurability: what has to be durable when it completes is flushed, over
// its whole range, between the call and its return.
func TestDurability(t *testing.T) {
	type sync struct{ off, end int64 }
	for _, c := range []struct {
		name         string
		writeThrough bool
		fua          bool
		want         bool
	}{
		{"plain", false, false, false},
		{"FUA", false, true, true},
		{"write-through", true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var syncs []sync
			var v *Volume
			k := linux
			k.msync = func(p []byte, flags int) error {
				if flags != unix.MS_SYNC {
					t.Errorf("msync flags = %#x", flags)
				}
				off := int64(cap(v.mem) - cap(p))
				syncs = append(syncs, sync{off, off + int64(len(p))})
				return linux.msync(p, flags)
			}
			k.pwritev = func(fd int, b [][]byte, off int64) (int, error) {
				syncs = nil // what was synced before the write does not count
				return linux.pwritev(fd, b, off)
			}
			v, _ = openFile(t, 1<<20, k, func(cfg *Config) { cfg.WriteThrough = c.writeThrough })
			check := func(what string, off, end int64, want bool) {
				t.Helper()
				covered := false
				for _, s := range syncs {
					covered = covered || s.off <= off && s.end >= end
				}
				if covered != want {
					t.Errorf("%s: flushed %v, want %v (%v)", what, covered, want, syncs)
				}
				syncs = nil
			}
			var l, hold blockdev.Lease
			if err := v.LeaseWrite(&l, 512, 8192, blockdev.Wait); err != nil || !l.Direct {
				t.Fatal(l.Direct, err)
			}
			if l.MayBlock(c.fua) != c.want {
				t.Errorf("MayBlock = %v, want %v", l.MayBlock(c.fua), c.want)
			}
			if err := l.Commit(c.fua); err != nil {
				t.Fatal(err)
			}
			l.Release()
			check("direct lease", 512, 8704, c.want)

			if err := v.LeaseWrite(&hold, 512, 8192, blockdev.Wait); err != nil {
				t.Fatal(err)
			}
			if err := v.LeaseWrite(&l, 512, 8192, blockdev.Wait); err != nil || l.Direct {
				t.Fatal(l.Direct, err)
			}
			hold.Release()
			if !l.MayBlock(c.fua) {
				t.Error("a staged commit claims not to block")
			}
			if err := l.Commit(c.fua); err != nil {
				t.Fatal(err)
			}
			l.Release()
			check("staged lease", 512, 8704, c.want)

			if !c.fua {
				if _, err := v.WriteAt(make([]byte, 512), 1024); err != nil {
					t.Fatal(err)
				}
				check("WriteAt", 1024, 1536, c.want)
				if err := v.WriteZeroes(0, 4096, true); err != nil {
					t.Fatal(err)
				}
				check("WriteZeroes by hole", 0, 4096, c.want)
				if err := v.WriteZeroes(0, 4096, false); err != nil {
					t.Fatal(err)
				}
				check("WriteZeroes", 0, 4096, c.want)
			}
		})
	}
}

// TestUnreadable: pages that the disk cannot deliver fail their command only.
func TestUnreadable(t *testing.T) {
	bad := func(off int64) bool { return off >= 65536 && off < 131072 }
	k := linux
	var v *Volume
	k.pread = func(fd int, p []byte, off int64) (int, error) {
		if bad(off) {
			return 0, unix.EIO
		}
		return linux.pread(fd, p, off)
	}
	k.madvise = func(p []byte, advice int) error {
		if (advice == unix.MADV_POPULATE_READ || advice == unix.MADV_POPULATE_WRITE) && bad(int64(cap(v.mem)-cap(p))) {
			return unix.EFAULT
		}
		return linux.madvise(p, advice)
	}
	k.mincore = cold
	v, path := openFile(t, 1<<20, k, nil)
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 65536, 4096, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("NoWait = %v, want ErrWouldBlock", err)
	}
	err := v.LeaseRead(&l, 65536, 4096, blockdev.Wait)
	if !errors.Is(err, blockdev.ErrMedium) || !errors.Is(err, unix.EIO) {
		t.Errorf("LeaseRead = %v, want ErrMedium with EIO", err)
	}
	var be *blockdev.Error
	if !errors.As(err, &be) || be.Store != path || be.Off != 65536 {
		t.Errorf("the error does not say where: %v", err)
	}
	if _, err := v.ReadAt(make([]byte, 512), 65536); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("ReadAt = %v", err)
	}
	// A store to part of a page needs the rest of it.
	if err := v.LeaseWrite(&l, 65536+512, 512, blockdev.Wait); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("LeaseWrite = %v, want ErrMedium", err)
	}
	if err := v.LeaseRead(&l, 0, 65536, blockdev.Wait); err != nil {
		t.Errorf("LeaseRead beside it = %v", err)
	}
	l.Release()
	if n := v.ranges.Open(); n != 0 {
		t.Errorf("%d ranges are left open", n)
	}
}

// TestImpatient: a copy into the device does not wait for ever for a peer that holds a
// lease.
func TestImpatient(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, func(c *Config) { c.Patience = time.Millisecond })
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	if _, err := v.WriteAt(make([]byte, 512), 512); err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// TestLateFill: what a peer fills after a discard, or zeroing, has not waited for it any longer is what
// everybody reads from then on, however they read. Somebody has looked for holes in between.
func TestLateFill(t *testing.T) {
	inMemory := func(c *Config) {
		unix.Close(c.FD)
		fd, err := unix.MemfdCreate(t.Name(), unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, c.Info.Size)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.FD, c.Volatile, c.HolesKnown, c.StoreSize = fd, true, true, nil
		c.Punch = func(off, n int64) error {
			return linux.fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		}
	}
	for name, tt := range map[string]struct {
		change func(*Config)
		zero   func(*Volume) error
	}{
		"discard": {func(*Config) {}, func(v *Volume) error { return v.Discard(0, 65536) }},
		"zeroes": {func(c *Config) {
			c.Zero = func(off, n int64) error { return c.Punch(off, n) } // a range that is zeroed in place is a hole to SEEK_HOLE, too
		}, func(v *Volume) error { return v.WriteZeroes(0, 65536, false) }},
		"memory": {inMemory, func(v *Volume) error { return v.Discard(0, 65536) }},
	} {
		t.Run(name, func(t *testing.T) {
			v, _ := openFile(t, 1<<20, linux, func(c *Config) { c.Patience = time.Millisecond; tt.change(c) })
			want := bytes.Repeat([]byte{7}, 4096)
			var late, l blockdev.Lease
			if err := v.LeaseWrite(&late, 8192, len(want), blockdev.Wait); err != nil || !late.Direct {
				t.Fatal(err)
			}
			if err := tt.zero(v); err != nil {
				t.Fatal(err)
			}
			for off := int64(0); off < 65536; off += 4096 {
				if off == 8192 {
					continue
				}
				if err := v.LeaseRead(&l, off, 4096, blockdev.Wait); err != nil {
					t.Fatal(err)
				}
				l.Release()
			}
			copy(late.Segs[0], want)
			if err := late.Commit(false); err != nil {
				t.Fatal(err)
			}
			late.Release()
			got := make([]byte, len(want))
			if _, err := v.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want) {
				t.Errorf("ReadAt: other data, %v", err)
			}
			if err := v.LeaseRead(&l, 8192, len(want), blockdev.Wait); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(bytes.Join(l.Segs, nil), want) {
				t.Error("LeaseRead: other data")
			}
			l.Release()
		})
	}
}

// TestLock: what cannot be locked is refused with the limit and its name.
func TestLock(t *testing.T) {
	k := linux
	var locked []int
	k.mlock = func(p []byte) error { locked = append(locked, len(p)); return nil }
	v, _ := openFile(t, 1<<20, k, func(c *Config) { c.Lock = true })
	v.sys.mlock = func([]byte) error { return unix.ENOMEM }
	err := v.Resize(2 << 20)
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "ulimit -l") {
		t.Errorf("Resize = %v, want ENOMEM and what to do", err)
	}
	if got := v.Info().Size; got != 1<<20 {
		t.Errorf("size after the refusal = %d", got)
	}
	v.sys.mlock = k.mlock
	if err := v.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	if len(locked) != 2 || locked[0] != 1<<20 || locked[1] != 1<<20 {
		t.Errorf("locked %v, want 1 MiB twice", locked)
	}
}

// TestHolesAreNotedAhead: after one look at a large hole its neighbourhood is
// lent without another one, and data written into it meanwhile is seen.
func TestHolesAreNotedAhead(t *testing.T) {
	v, _ := openFile(t, 4*holeAhead, linux, nil)
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	l.Release()
	if err := v.LeaseRead(&l, holeAhead-4096, 4096, blockdev.NoWait); err != nil {
		t.Errorf("the end of the hole: %v", err)
	}
	l.Release()
	if err := v.LeaseRead(&l, holeAhead, 4096, blockdev.NoWait); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("beyond what was looked at: %v", err)
	}
	l.Release()
	p := bytes.Repeat([]byte{7}, 4096)
	if _, err := v.WriteAt(p, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := v.LeaseRead(&l, 1<<20-4096, 12288, blockdev.NoWait); err != nil {
		t.Fatal(err)
	}
	if got := bytes.Join(l.Segs, nil); !bytes.Equal(got[4096:8192], p) || got[0] != 0 || got[8192] != 0 {
		t.Error("data inside a hole is not seen")
	}
	l.Release()
}
