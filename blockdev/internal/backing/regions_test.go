package backing

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

func TestRegions(t *testing.T) {
	r, err := newRegions(130*regionSize + 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	r.filled(4096, 2*regionSize+4096) // the second, and parts of two others
	r.filled(50*regionSize, 130*regionSize)
	r.filled(4096, regionSize+4096)
	for _, c := range []struct {
		off, end int64
		full     bool
	}{
		{0, 4096, false},
		{4096, 8192, false},
		{regionSize, 2 * regionSize, true},
		{2*regionSize - 4096, 2*regionSize + 4096, false},
		{3 * regionSize, 3*regionSize + 4096, false},
		{50 * regionSize, 130 * regionSize, true},
		{49 * regionSize, 51 * regionSize, false},
		{129 * regionSize, 130*regionSize + 4096, false},
	} {
		if got := r.full(c.off, c.end); got != c.full {
			t.Errorf("[%d, %d) full: %v", c.off, c.end, got)
		}
	}
	r.forget(100*regionSize + 4096)
	for _, c := range []struct {
		off, end int64
		full     bool
	}{
		{50 * regionSize, 100 * regionSize, true},
		{100 * regionSize, 100*regionSize + 4096, false},
		{129 * regionSize, 130 * regionSize, false},
	} {
		if got := r.full(c.off, c.end); got != c.full {
			t.Errorf("[%d, %d) full after a shrinking: %v", c.off, c.end, got)
		}
	}
}

// Storage is told of what is read, and of nothing else: neither of holes, nor of what is known to be
// in memory.
func TestAnnounce(t *testing.T) {
	type call struct{ off, n int64 }
	var calls []call
	k := linux
	k.fadvise = func(_ int, off, n int64, advice int) error {
		if advice != unix.FADV_WILLNEED {
			t.Errorf("advice %d", advice)
		}
		calls = append(calls, call{off, n})
		return unix.EIO // and nobody minds
	}
	page := unix.Getpagesize()
	first := int64(regionSize + 2*page)
	size := int64(2*regionSize + 2*page)
	v, path := openFile(t, size, k, func(c *Config) { c.Local = true })
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, make([]byte, size-regionSize), regionSize); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		off  int64
		n    int
		want []call
	}{
		{"data", first, page, []call{{first, int64(page)}}},
		{"parts of pages", first + 512, page, []call{{first, 2 * int64(page)}}},
		{"a hole", int64(page), page, nil},
		{"beyond the end", size, page, nil},
	} {
		calls = nil
		if v.Announce(c.off, c.n); !slices.Equal(calls, c.want) {
			t.Errorf("%s: %v, want %v", c.what, calls, c.want)
		}
	}
	var l blockdev.Lease
	if err := v.LeaseRead(&l, regionSize, page, blockdev.Wait); err != nil {
		t.Fatal(err)
	}
	l.Release()
	calls = nil
	if v.Announce(regionSize, page); len(calls) != 0 {
		t.Errorf("what is known: %v", calls)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	calls = nil
	if v.Announce(first, page); len(calls) != 0 {
		t.Errorf("closed: %v", calls)
	}
}
