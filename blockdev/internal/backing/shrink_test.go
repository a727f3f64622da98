package backing

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/await"
)

// beside are operations on [off, off+4096), which may wait.
var beside = map[string]func(v *Volume, off int64) error{
	"LeaseRead": func(v *Volume, off int64) error {
		var l blockdev.Lease
		defer l.Release()
		return v.LeaseRead(&l, off, 4096, blockdev.Wait)
	},
	"a write": func(v *Volume, off int64) error {
		var l blockdev.Lease
		defer l.Release()
		if err := v.LeaseWrite(&l, off, 4096, blockdev.Wait); err != nil {
			return err
		}
		return l.Commit(false)
	},
	"ReadAt":      func(v *Volume, off int64) error { _, err := v.ReadAt(make([]byte, 4096), off); return err },
	"WriteAt":     func(v *Volume, off int64) error { _, err := v.WriteAt(make([]byte, 4096), off); return err },
	"FlushRange":  func(v *Volume, off int64) error { return v.FlushRange(off, 4096) },
	"Discard":     func(v *Volume, off int64) error { return v.Discard(off, 4096) },
	"WriteZeroes": func(v *Volume, off int64) error { return v.WriteZeroes(off, 4096, false) },
	"Erase":       func(v *Volume, off int64) error { return v.Erase(off, 4096) },
	"Extents":     func(v *Volume, off int64) error { _, err := v.Extents(off, 4096); return err },
}

// beginBeside begins all of them, and returns when each has ended or waits for the shrink that is
// under way; ended is what has become of them when that is over.
func beginBeside(t *testing.T, v *Volume, off int64) (ended func() map[string]error) {
	t.Helper()
	type end struct {
		what string
		err  error
	}
	ends := make(chan end, len(beside))
	for what, do := range beside {
		go func() { ends <- end{what, do(v, off)} }()
	}
	if !await.Until(func() bool { return await.Within((*mapped).beyond)+len(ends) == len(beside) }) {
		t.Error("they neither end nor wait for the shrink")
	}
	return func() map[string]error {
		all := map[string]error{}
		for range beside {
			e := <-ends
			all[e.what] = e.err
		}
		return all
	}
}

// TestShrinkThatDoesNotHappen: nobody is refused for a shrink that is refused itself, or fails, nor
// for a Close; whoever may not wait is not kept.
func TestShrinkThatDoesNotHappen(t *testing.T) {
	const size, end = 1 << 20, 1 << 19
	check := func(t *testing.T, v *Volume) (ended func() map[string]error) {
		var l blockdev.Lease
		for what, lease := range map[string]func(*blockdev.Lease, int64, int, blockdev.Mode) error{"LeaseRead": v.LeaseRead, "LeaseWrite": v.LeaseWrite} {
			if err := lease(&l, end, 4096, blockdev.NoWait); err == nil {
				l.Release()
			} else if !errors.Is(err, blockdev.ErrWouldBlock) {
				t.Errorf("%s without waiting: %v", what, err)
			}
		}
		if err := v.LeaseCached(&l, end, 4096); err == nil {
			l.Release()
		} else if !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("LeaseCached: %v", err)
		}
		v.Announce(end, 4096)
		if n := v.Info().Size; n != size {
			t.Errorf("the size is told to be %d", n)
		}
		if _, err := v.ReadAt(make([]byte, 4096), 0); err != nil && v.limit.Load() != 0 {
			t.Errorf("in front of the new end: %v", err)
		}
		return beginBeside(t, v, end)
	}
	all := func(t *testing.T, v *Volume, ended func() map[string]error) {
		for what, err := range ended() {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := v.Info().Size; n != size {
			t.Errorf("the size is %d", n)
		}
	}
	t.Run("it fails", func(t *testing.T) {
		var v *Volume
		var ended func() map[string]error
		v, _ = openFile(t, size, linux, func(c *Config) {
			c.Local = true
			c.Truncate = func(int64) error { ended = check(t, v); return unix.EIO }
		})
		if err := v.Resize(end); !errors.Is(err, unix.EIO) {
			t.Error(err)
		}
		all(t, v, ended)
	})
	for what, limit := range map[string]int64{"a resize looks": end, "Close looks": 0} {
		t.Run(what, func(t *testing.T) {
			v, _ := openFile(t, size, linux, func(c *Config) { c.Local = true })
			var ended func() map[string]error
			if err := v.decide(limit, func() error {
				if limit != 0 {
					ended = check(t, v)
				} else {
					ended = beginBeside(t, v, end)
				}
				return blockdev.ErrInUse
			}); !errors.Is(err, blockdev.ErrInUse) {
				t.Error(err)
			}
			all(t, v, ended)
		})
	}
}

// TestShrinkThatHappens: who has waited for one is out of range.
func TestShrinkThatHappens(t *testing.T) {
	const size, end = 1 << 20, 1 << 19
	var v *Volume
	var ended func() map[string]error
	v, _ = openFile(t, size, linux, func(c *Config) {
		c.Truncate = func(n int64) error {
			ended = beginBeside(t, v, end)
			return unix.Ftruncate(c.FD, n)
		}
	})
	if err := v.Resize(end); err != nil {
		t.Fatal(err)
	}
	for what, err := range ended() {
		if !errors.Is(err, blockdev.ErrOutOfRange) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLeaseBesideAShrink: a resize that looks whether it may shrink, and may not, hides nothing from who has
// got his range already: he reserves space in it and finds it in memory as ever.
func TestLeaseBesideAShrink(t *testing.T) {
	k := linux
	k.madvise = func(p []byte, advice int) error {
		if advice == unix.MADV_POPULATE_WRITE {
			return unix.EINVAL
		}
		return linux.madvise(p, advice)
	}
	v, _ := openFile(t, 1<<20, k, func(c *Config) { c.Local = true })
	for _, off := range []int64{1 << 19, 1<<19 - 4096} {
		const n = 8192
		if !v.ranges.TryWrite(off, n) {
			t.Fatal("the range is in use")
		}
		v.decide(1<<19, func() error { //nolint:errcheck // its own
			if ok, err := v.reserve(off, n); !ok || err != nil {
				t.Errorf("reserving at %d: %v, %v", off, ok, err)
			}
			if !v.resident(off, n) {
				t.Errorf("what has been reserved at %d is not in memory", off)
			}
			return blockdev.ErrInUse
		})
		v.ranges.EndWrite(off, n)
	}
}

// TestSyncBesideAShrink: a store that is shorter than a sync has expected, because of a resize, has not
// failed, and the sync is good for what is left.
func TestSyncBesideAShrink(t *testing.T) {
	for what, sync := range map[string]func(v *Volume) error{
		"Flush":      func(v *Volume) error { return v.Flush() },
		"FlushRange": func(v *Volume) error { return v.FlushRange(1<<19, 4096) },
		"FUA":        func(v *Volume) error { return v.store([][]byte{make([]byte, 4096)}, 1<<19, 4096, true) },
	} {
		var v *Volume
		armed := false
		v, _ = openFile(t, 1<<20, linux, func(c *Config) {
			length := c.StoreSize
			c.StoreSize = func() (int64, error) {
				if armed {
					armed = false
					if err := v.Resize(1 << 19); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				return length()
			}
		})
		armed = true
		if err := sync(v); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if armed || v.Info().Size != 1<<19 {
			t.Errorf("%s: there was no resize", what)
		}
	}
}

// TestSyncBesideAShrinkThatIsUndone: nor has one that has become longer again since its length was asked
// for.
func TestSyncBesideAShrinkThatIsUndone(t *testing.T) {
	var v *Volume
	armed := false
	v, _ = openFile(t, 1<<20, linux, func(c *Config) {
		length := c.StoreSize
		c.StoreSize = func() (int64, error) {
			if !armed {
				return length()
			}
			armed = false
			if err := v.Resize(1 << 19); err != nil {
				t.Error(err)
			}
			n, err := length()
			if err := v.Resize(1 << 20); err != nil {
				t.Error(err)
			}
			return n, err
		}
	})
	armed = true
	if err := v.FlushRange(1<<19, 4096); err != nil || armed {
		t.Errorf("%v, there was no resize: %v", err, armed)
	}
}

// TestFailedShrinkOfMemory: what a shrink that fails was to cut off is still there.
func TestFailedShrinkOfMemory(t *testing.T) {
	v, _ := openFile(t, 1<<20, linux, func(c *Config) {
		c.HolesKnown, c.Volatile, c.StoreSize = true, true, nil
		c.Truncate = func(int64) error { return unix.EPERM }
	})
	p := bytes.Repeat([]byte{7}, 4096)
	if _, err := v.WriteAt(p, 1<<19); err != nil {
		t.Fatal(err)
	}
	if err := v.Resize(1 << 19); !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 1<<19, 4096, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if !bytes.Equal(bytes.Join(l.Segs, nil), p) {
		t.Error("the data is gone")
	}
}

// TestShortenedStore: what somebody has cut off from the store does not come back as zeroes, neither by
// a resize nor in the page in which the store ends now.
func TestShortenedStore(t *testing.T) {
	v, path := openFile(t, 1<<20, linux, nil)
	if _, err := v.WriteAt(bytes.Repeat([]byte{7}, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	const end = 1<<19 + 512
	if err := os.Truncate(path, end); err != nil {
		t.Fatal(err)
	}
	v.poll()
	for _, n := range []int64{1 << 21, 1 << 20, 1<<20 - 4096} {
		if err := v.Resize(n); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("resize to %d: %v", n, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Size != end {
		t.Errorf("the store has %d bytes, %v", st.Size, err)
	}
	page := int64(unix.Getpagesize())
	for _, r := range [][2]int64{{end, 512}, {1 << 19, page}, {1<<19 - page, 2 * page}} {
		var l blockdev.Lease
		if err := v.LeaseRead(&l, r[0], int(r[1]), blockdev.Wait); !errors.Is(err, blockdev.ErrMedium) {
			t.Errorf("reading %d bytes at %d: %v", r[1], r[0], err)
		}
		l.Release()
	}
	if err := v.Resize(1 << 19); err != nil {
		t.Errorf("shrinking to what is left: %v", err)
	}
	var l blockdev.Lease
	if err := v.LeaseRead(&l, 0, 1<<19, blockdev.Wait); err != nil {
		t.Errorf("reading that: %v", err)
	}
	l.Release()
}

// TestFollowedGrowthHasRoom: a volume follows its store as far as there is room for it, and no further.
func TestFollowedGrowthHasRoom(t *testing.T) {
	var length atomic.Int64 // the watcher looks, too
	length.Store(1 << 20)
	v, _ := openFile(t, 1<<20, linux, func(c *Config) {
		c.Follow = true
		c.StoreSize = func() (int64, error) { return length.Load(), nil }
	})
	room := int64(len(v.mem))
	for _, n := range []int64{room + 512, 2 * room} {
		length.Store(n)
		if v.poll(); v.Info().Size != 1<<20 {
			t.Fatalf("the store has %d bytes, there is room for %d, the volume has %d", n, room, v.Info().Size)
		}
	}
	length.Store(room)
	if v.poll(); v.Info().Size != room {
		t.Errorf("the store has %d bytes, the volume %d", room, v.Info().Size)
	}
}

// TestFollowedGrowthIsLocked: a volume that is to stay in memory does not grow beyond what may stay there.
func TestFollowedGrowthIsLocked(t *testing.T) {
	k := linux
	var locked, limit atomic.Int64 // the watcher looks, too
	limit.Store(1 << 20)
	k.mlock = func(p []byte) error {
		if locked.Load()+int64(len(p)) > limit.Load() {
			return unix.ENOMEM
		}
		locked.Add(int64(len(p)))
		return nil
	}
	v, path := openFile(t, 1<<20, k, func(c *Config) { c.Follow, c.Lock = true, true })
	if err := os.Truncate(path, 2<<20); err != nil {
		t.Fatal(err)
	}
	v.poll()
	if n := v.Info().Size; n != 1<<20 {
		t.Errorf("the size is %d, %d bytes are locked", n, locked.Load())
	}
	limit.Store(2 << 20)
	v.poll()
	if n := v.Info().Size; n != 2<<20 || locked.Load() != n {
		t.Errorf("the size is %d, %d bytes are locked", n, locked.Load())
	}
}

// TestShrinkIsTold: whoever keeps something for each block hears of a shrink although the volume grows again
// at once, while somebody is still being told of an earlier resize.
func TestShrinkIsTold(t *testing.T) {
	const size, end = 1 << 20, 1 << 19
	v, _ := openFile(t, size, linux, nil)
	var told []int64
	busy, goOn := make(chan struct{}), make(chan struct{})
	defer v.OnResize(func(i blockdev.Info) {
		if told = append(told, i.Size); len(told) == 1 {
			close(busy)
			<-goOn
		}
	})()
	ends := make(chan error)
	resize := func(n int64) { ends <- v.Resize(n) }
	go resize(2 * size)
	<-busy
	for i, n := range []int64{end, size} {
		go resize(n)
		if !await.Until(func() bool {
			return await.Within((*blockdev.ResizeHooks).Change, (*blockdev.ResizeHooks).Tell) == i+2
		}) {
			t.Fatal("it does not wait for what is being told")
		}
	}
	close(goOn)
	for range 3 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if !slices.Contains(told, end) {
		t.Errorf("told %v", told)
	}
}
