package backing

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// witness is a kernel whose syncs are told apart by the description that they are made on.
type witness struct {
	v        *Volume
	own      func() error // syncs by the volume's own; nil: Linux's
	byCursor func() error // by a cursor
	mu       sync.Mutex   // guards what follows
	cursors  int          // syncs by cursors
	opened   int
}

// local opens a volume whose syncs may have cursors.
func local(t *testing.T, size int64, change func(*kernel)) (*Volume, *witness) {
	t.Helper()
	w := &witness{}
	k := linux
	k.fdatasync = func(fd int) error {
		if w.own != nil {
			return w.own()
		}
		return unix.Fdatasync(fd)
	}
	k.msync = func(p []byte, flags int) error {
		how := w.own
		if !inside(p, w.v.mem) {
			w.mu.Lock()
			w.cursors++
			w.mu.Unlock()
			how = w.byCursor
		}
		if how != nil {
			return how()
		}
		return unix.Msync(p, flags)
	}
	k.reopen = func(fd int) (int, error) {
		w.mu.Lock()
		w.opened++
		w.mu.Unlock()
		return reopen(fd)
	}
	if change != nil {
		change(&k)
	}
	w.v, _ = openFile(t, size, k, func(c *Config) { c.Local = true; c.StoreSize = nil })
	return w.v, w
}

// inside reports whether p is part of mem.
func inside(p, mem []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return at >= from && at < from+uintptr(len(mem))
}

// flushRange flushes the first page, which has to succeed.
func flushRange(t *testing.T, v *Volume) {
	t.Helper()
	if err := v.FlushRange(0, 4096); err != nil {
		t.Fatal(err)
	}
}

// TestCursorIsProvedFirst: the first sync of a cursor's life is made by the volume's own
// description, after the cursor has been opened. If that does not succeed, the next is, too.
func TestCursorIsProvedFirst(t *testing.T) {
	v, w := local(t, 1<<20, nil)
	w.own = func() error {
		if w.opened != 1 {
			t.Errorf("a sync with %d cursors", w.opened)
		}
		return nil
	}
	flushRange(t, v)
	if w.cursors != 0 {
		t.Errorf("%d syncs by a cursor that nothing was known of", w.cursors)
	}
	flushRange(t, v)
	flushRange(t, v)
	if w.cursors != 2 || w.opened != 1 {
		t.Errorf("%d syncs by %d cursors, want 2 by one", w.cursors, w.opened)
	}
	if err := v.Flush(); err != nil || w.cursors != 2 {
		t.Errorf("a flush: %v, %d syncs by cursors", err, w.cursors)
	}
}

// TestUnprovedCursor: a cursor that was opened when something had been lost is not used.
func TestUnprovedCursor(t *testing.T) {
	v, w := local(t, 1<<20, nil)
	w.own = func() error { return unix.EIO }
	if err := v.FlushRange(0, 4096); !errors.Is(err, unix.EIO) {
		t.Errorf("flush of a range = %v", err)
	}
	w.own = nil
	if err := v.FlushRange(0, 4096); !errors.Is(err, blockdev.ErrPoisoned) {
		t.Errorf("the next = %v, want ErrPoisoned", err)
	}
	if w.cursors != 0 {
		t.Errorf("%d syncs by the cursor", w.cursors)
	}
}

// TestCursorFails: what a cursor reports is the error of its own sync, and poisons the volume.
func TestCursorFails(t *testing.T) {
	v, w := local(t, 1<<20, nil)
	flushRange(t, v)
	w.byCursor = func() error { return unix.ENOSPC }
	if err := stagedWrite(t, v, true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("FUA = %v", err)
	}
	w.byCursor = nil
	if err := v.FlushRange(4096, 4096); !errors.Is(err, blockdev.ErrPoisoned) {
		t.Errorf("flush of another range = %v, want ErrPoisoned", err)
	}
	if err := v.Flush(); !errors.Is(err, blockdev.ErrPoisoned) {
		t.Errorf("Flush = %v, want ErrPoisoned", err)
	}
}

// TestFullWriteBesideCursors: a disk that has no room for a write has lost nothing, and no
// sync is made for it.
func TestFullWriteBesideCursors(t *testing.T) {
	full := false
	v, w := local(t, 1<<20, func(k *kernel) {
		k.pwritev = func(fd int, bufs [][]byte, off int64) (int, error) {
			if full {
				return 0, unix.ENOSPC
			}
			return unix.Pwritev(fd, bufs, off)
		}
	})
	flushRange(t, v)
	full = true
	if err := stagedWrite(t, v, true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("FUA = %v", err)
	}
	full = false
	if err := stagedWrite(t, v, true); err != nil || w.cursors != 1 {
		t.Errorf("FUA afterwards = %v, %d syncs by cursors", err, w.cursors)
	}
}

// TestCursorWaitsForNobody: a sync by a cursor ends while another is under way, also while a
// flush is, and is right whatever that one finds.
func TestCursorWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := local(t, 1<<20, nil)
		flushRange(t, v)
		stalled := make(chan error)
		w.own = func() error { return <-stalled }
		flushed := make(chan error)
		go func() { flushed <- v.Flush() }()
		synctest.Wait()
		if err := stagedWrite(t, v, true); err != nil || w.cursors != 1 {
			t.Errorf("FUA beside a flush = %v, %d syncs by cursors", err, w.cursors)
		}
		stalled <- unix.EIO
		if err := <-flushed; !errors.Is(err, unix.EIO) {
			t.Errorf("Flush = %v", err)
		}
		if err := stagedWrite(t, v, true); !errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("FUA behind a flush that has failed = %v", err)
		}
	})
}

// TestNewCursorBesideFailure: a cursor that is opened between an error's report to somebody
// and the poison cannot know of it. The sync that opens it waits.
func TestNewCursorBesideFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, w := local(t, 1<<20, nil)
		taken := make(chan error)
		w.own = func() error { return <-taken }
		flushed, ranged := make(chan error), make(chan error, 1)
		go func() { flushed <- v.Flush() }()
		synctest.Wait() // the flush has the error, and has told nobody
		w.own = nil
		go func() { ranged <- v.FlushRange(0, 4096) }()
		synctest.Wait()
		select {
		case err := <-ranged:
			t.Errorf("the sync with the new cursor ended with %v", err)
		default:
		}
		taken <- unix.EIO
		if err := <-flushed; !errors.Is(err, unix.EIO) {
			t.Errorf("Flush = %v", err)
		}
		if err := <-ranged; !errors.Is(err, blockdev.ErrPoisoned) {
			t.Errorf("the sync with the new cursor ended with %v, want ErrPoisoned", err)
		}
	})
}

// TestNoCursors: where they cannot be had, syncs are made by the volume's own description.
func TestNoCursors(t *testing.T) {
	for name, change := range map[string]func(*kernel){
		"no /proc": func(k *kernel) { k.reopen = func(int) (int, error) { return -1, unix.ENOENT } },
		"Linux 4.14": func(k *kernel) {
			k.mmap = func(fd int, off int64, n, prot, flags int) ([]byte, error) {
				if flags&unix.MAP_TYPE == unix.MAP_SHARED_VALIDATE {
					return nil, unix.EINVAL
				}
				return unix.Mmap(fd, off, n, prot, flags)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, w := local(t, 1<<20, change)
			for range 3 {
				if err := stagedWrite(t, v, true); err != nil {
					t.Fatal(err)
				}
			}
			if w.cursors != 0 {
				t.Errorf("%d syncs by cursors", w.cursors)
			}
			w.own = func() error { return unix.EIO }
			if err := stagedWrite(t, v, true); !errors.Is(err, unix.EIO) {
				t.Errorf("FUA = %v", err)
			}
		})
	}
}

// TestCursorsBeyondTheMost: so many syncs at once as there are no cursors for are made by the
// volume's own description, and all cursors are closed with the volume.
func TestCursorsBeyondTheMost(t *testing.T) {
	v, w := local(t, 1<<20, nil)
	var all []*cursor
	for c := v.cursors.take(&v.mapped); c != nil; c = v.cursors.take(&v.mapped) {
		all = append(all, c)
	}
	flushRange(t, v)
	if w.cursors != 0 || w.opened != len(all) || w.opened == 0 || w.opened > cursorsMost {
		t.Errorf("%d syncs by cursors, %d opened", w.cursors, w.opened)
	}
	for _, c := range all {
		v.cursors.put(c)
	}
	before := openCursors.Load()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if after := openCursors.Load(); after != before-int64(len(all)) {
		t.Errorf("%d cursors before the end, %d after it", before, after)
	}
	for _, c := range all {
		if c.window != nil {
			t.Error("a cursor is mapped behind the end")
		}
	}
}

// TestCursorWindow: a cursor sees any range of a store that is longer than what it maps, and
// syncs what others have written.
func TestCursorWindow(t *testing.T) {
	const size = 3 * cursorWindow
	v, w := local(t, size, nil)
	flushRange(t, v)
	for i, off := range []int64{0, cursorWindow/2 - 4096, cursorWindow - 4096, cursorWindow, size - 4096, 8192} {
		for j, n := range []int64{4096, 8192} {
			if off+n > size {
				continue
			}
			if _, err := v.WriteAt(make([]byte, n), off); err != nil {
				t.Fatal(err)
			}
			before := w.cursors
			if err := v.FlushRange(off, n); err != nil {
				t.Errorf("[%d, %d): %v", off, off+n, err)
			}
			if w.cursors != before+1 {
				t.Errorf("[%d, %d) was not synced by the cursor (%d, %d)", off, off+n, i, j)
			}
			if d := dirty(t, v.fd, off, n); d != 0 {
				t.Errorf("[%d, %d): %d pages are dirty behind the sync", off, off+n, d)
			}
		}
	}
	if w.opened != 1 {
		t.Errorf("%d cursors", w.opened)
	}
}

// dirty is how many pages of a range have still to be written, as far as the kernel tells.
func dirty(t *testing.T, fd int, off, n int64) uint64 {
	t.Helper()
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type == unix.TMPFS_MAGIC {
		return 0 // never written
	}
	var c unix.Cachestat_t
	if unix.Cachestat(uint(fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &c, 0) != nil {
		return 0 // Linux 6.5
	}
	return c.Dirty
}
