package backing

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/durable"
)

// reopener opens the same file again and again, with a folder for its record.
type reopener struct {
	t         *testing.T
	dir, path string
	uncached  bool // no completed write is volatile
}

func newReopener(t *testing.T) *reopener {
	r := &reopener{t: t, dir: t.TempDir(), path: filepath.Join(t.TempDir(), "disk.img")}
	if err := os.WriteFile(r.path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reopener) open(k kernel) *Volume {
	r.t.Helper()
	fd, err := unix.Open(r.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	v, err := open(Config{FD: fd, Path: r.path, EpochDir: r.dir, StoreSize: func() (int64, error) {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return st.Size, err
	}, Info: blockdev.Info{Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096, WriteCache: !r.uncached, ID: r.path}}, k)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// kill ends a volume as the end of its process does.
func kill(t *testing.T, v *Volume) {
	t.Helper()
	v.record = ""
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCacheID: what lies between two openings of a store, and whether the second finds
// the cache of the first.
func TestCacheID(t *testing.T) {
	broken := linux
	broken.fdatasync = func(int) error { return unix.EIO }
	broken.msync = func([]byte, int) error { return unix.ENOSPC }
	orderly := func(t *testing.T, r *reopener, v *Volume) {
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := func(r *reopener) {
		name := recordName(r.dir, r.path)
		b, err := os.ReadFile(name)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.Replace(string(b), `"home":"`, `"home":"elsewhere `, 1)), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		between func(*testing.T, *reopener, *Volume)
		same    bool
	}{
		{"killed", func(t *testing.T, r *reopener, v *Volume) { kill(t, v) }, true},
		{"killed, and then the power failed, or the file system was mounted again", func(t *testing.T, r *reopener, v *Volume) {
			kill(t, v)
			elsewhere(r)
		}, false},
		{"orderly", orderly, true},
		{"orderly, and then the power failed", func(t *testing.T, r *reopener, v *Volume) {
			orderly(t, r, v)
			elsewhere(r)
		}, true},
		{"orderly, and then killed elsewhere", func(t *testing.T, r *reopener, v *Volume) {
			orderly(t, r, v)
			kill(t, r.open(linux))
			elsewhere(r)
		}, false},
		{"abandoned", func(t *testing.T, r *reopener, v *Volume) {
			v.sys.fdatasync = func(int) error { t.Error("it is flushed"); return nil }
			if err := blockdev.Abandon(v); err != nil {
				t.Error(err)
			}
		}, true},
		{"abandoned, and then mounted again", func(t *testing.T, r *reopener, v *Volume) {
			if err := blockdev.Abandon(v); err != nil {
				t.Error(err)
			}
			elsewhere(r)
		}, false},
		{"killed after a failed flush", func(t *testing.T, r *reopener, v *Volume) {
			v.sys = broken
			if v.Flush() == nil {
				t.Error("the disk does not fail")
			}
			kill(t, v)
		}, false},
		{"killed after a failed FUA", func(t *testing.T, r *reopener, v *Volume) {
			v.sys = broken
			if v.FlushRange(0, 4096) == nil {
				t.Error("the disk does not fail")
			}
			kill(t, v)
		}, false},
		{"orderly after a failed FUA", func(t *testing.T, r *reopener, v *Volume) {
			v.sys = broken
			v.FlushRange(0, 4096)
			v.sys = linux
			if err := v.Close(); !errors.Is(err, blockdev.ErrPoisoned) {
				t.Errorf("Close = %v", err)
			}
		}, false},
		{"the last flush fails", func(t *testing.T, r *reopener, v *Volume) {
			v.sys = broken
			if err := v.Close(); !errors.Is(err, unix.EIO) {
				t.Errorf("Close = %v", err)
			}
		}, false},
		{"cut off, and made longer again", func(t *testing.T, r *reopener, v *Volume) {
			os.Truncate(r.path, 4096)
			if v.Flush() == nil {
				t.Error("a flush of a truncated file succeeded")
			}
			os.Truncate(r.path, 1<<20)
			kill(t, v)
		}, false},
		{"another file in its place", func(t *testing.T, r *reopener, v *Volume) {
			kill(t, v)
			next := r.path + ".next"
			if err := os.WriteFile(next, make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(next, r.path); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"the record is gone", func(t *testing.T, r *reopener, v *Volume) {
			orderly(t, r, v)
			os.Remove(recordName(r.dir, r.path))
		}, false},
		{"the record is damaged", func(t *testing.T, r *reopener, v *Volume) {
			orderly(t, r, v)
			os.WriteFile(recordName(r.dir, r.path), []byte(`{"id":"x","clean":tr`), 0o600)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReopener(t)
			v := r.open(linux)
			first := v.Info().CacheID
			if first == "" {
				t.Fatal("the cache has no name")
			}
			c.between(t, r, v)
			v = r.open(linux)
			defer v.Close()
			if got := v.Info().CacheID; got == "" || (got == first) != c.same {
				t.Errorf("before %q, after %q, want the same: %v", first, got, c.same)
			}
		})
	}
}

// TestRecordOfAnEarlierOpening: a store that is opened without a record of its own, beside one of an
// earlier opening that could not be removed or that it has no use for, removes that when something is
// lost. Until then it is true.
func TestRecordOfAnEarlierOpening(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name     string
		uncached bool
		lost     bool
		taken    bool // another process goes on with the store
	}{
		{name: "it cannot be removed, and nothing is lost"},
		{name: "it cannot be removed", lost: true},
		{name: "it cannot be removed, and another process goes on", lost: true, taken: true},
		{name: "no write is volatile", uncached: true, lost: true},
		{name: "no write is volatile, and nothing is lost", uncached: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReopener(t)
			v := r.open(linux)
			first := v.Info().CacheID
			kill(t, v)
			name, aside := recordName(r.dir, r.path), filepath.Join(t.TempDir(), "aside")
			if r.uncached = c.uncached; !c.uncached {
				must(os.Rename(name, aside))
				must(os.MkdirAll(filepath.Join(name, "in the way"), 0o700))
			}
			v = r.open(linux)
			if id := v.Info().CacheID; id != "" {
				t.Errorf("the cache has the name %q", id)
			}
			if r.uncached = false; !c.uncached {
				must(os.RemoveAll(name))
				must(os.Rename(aside, name))
			}
			if c.taken {
				o, err := v.HandOver()
				must(err)
				kill(t, v)
				v, err = open(Config{FD: o.FD, Path: r.path, EpochDir: r.dir, Opened: &o, Info: v.cfg.Info}, linux)
				must(err)
			}
			if c.lost {
				v.sys.fdatasync = func(int) error { return unix.EIO }
				if v.Flush() == nil {
					t.Error("the disk does not fail")
				}
			}
			if err := v.Close(); (err != nil) != c.lost {
				t.Errorf("Close: %v", err)
			}
			v = r.open(linux)
			defer v.Close()
			if id := v.Info().CacheID; id == "" || (id == first) == c.lost {
				t.Errorf("before %q, after %q; lost: %v", first, id, c.lost)
			}
		})
	}
}

// TestEpochWithoutAPlace: a cache that nobody can remember has no name, and is served
// all the same.
func TestEpochWithoutAPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*reopener)
	}{
		{"none named", func(r *reopener) { r.dir = "" }},
		{"missing", func(r *reopener) { r.dir = filepath.Join(r.dir, "missing") }},
		{"a file", func(r *reopener) { r.dir = r.path }},
	} {
		r := newReopener(t)
		c.make(r)
		v := r.open(linux)
		if id := v.Info().CacheID; id != "" {
			t.Errorf("%s: %q", c.name, id)
		}
		if _, err := v.WriteAt(make([]byte, 512), 0); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := v.Flush(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := v.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRecordIsDurable: the record's content is on disk before its name, its name before the
// volume is used, and so is its removal before anybody hears of a failed sync.
func TestRecordIsDurable(t *testing.T) {
	var synced []string
	var fail error
	files, dirs := durable.SyncFile, durable.SyncDir
	t.Cleanup(func() { durable.SyncFile, durable.SyncDir = files, dirs })
	durable.SyncFile = func(f *os.File) error {
		synced = append(synced, filepath.Base(f.Name()))
		return fail
	}
	durable.SyncDir = func(name string) error {
		synced = append(synced, filepath.Base(name))
		return fail
	}
	r := newReopener(t)
	name, dir := filepath.Base(recordName(r.dir, r.path)), filepath.Base(r.dir)
	check := func(step string, want ...string) {
		t.Helper()
		if !slices.Equal(synced, want) {
			t.Errorf("%s: synced %v, want %v", step, synced, want)
		}
		synced = nil
	}
	v := r.open(linux)
	check("opening", name+".new", dir)
	v.sys.fdatasync = func(int) error { return unix.EIO }
	if v.Flush() == nil {
		t.Error("the disk does not fail")
	}
	check("a failed flush", dir)
	v.Close()
	synced = nil
	v = r.open(linux)
	synced = nil
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	check("closing", name+".new", dir)

	// A record that cannot be written is not relied on, and no old one is left.
	fail = unix.EIO
	v = r.open(linux)
	if id := v.Info().CacheID; id != "" {
		t.Errorf("a record that is not durable names the cache %s", id)
	}
	v.Close()
	if left, _ := os.ReadDir(r.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
