package volume

import (
	"path/filepath"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/file"
)

// TestWritesAtOnce: a write into memory is made by who has received it, parts of pages included, unless it is
// long; one to a file is a worker's.
func TestWritesAtOnce(t *testing.T) {
	m := newDevice(t, "memory")
	f, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "file"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for _, d := range []blockdev.Device{m, f} {
		v := serve(t, new(Registry), Config{Device: d}, d.Info().Backend).v
		var probe blockdev.Lease
		for _, c := range []struct {
			off    int64
			n      int
			memory bool
		}{
			{0, 4096, true},
			{8192, 512, true},
			{512, 512, true},
			{4096 - 512, 1024, true},
			{512, 64 << 10, true},
			{512, 64<<10 + 512, false}, // would claim whole pages
		} {
			want := c.memory && d == m
			if is := v.WritesAtOnce(&probe, c.off, c.n); is != want {
				t.Errorf("%s: %d bytes at %d are written at once: %v, want %v", d.Info().Backend, c.n, c.off, is, want)
			}
		}
	}
}
