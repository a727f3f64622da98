package file

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
)

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]Config{
		"sparse":       {},
		"4096":         {BlockSize: 4096},
		"prealloc":     {Prealloc: true},
		"writethrough": {WriteThrough: true},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Direct: true,
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					cfg := cfg
					cfg.Path, cfg.Size, cfg.Pool = filepath.Join(t.TempDir(), "disk.img"), size, pool
					d, err := Open(cfg)
					if err != nil {
						t.Fatal(err)
					}
					return d
				},
			})
		})
	}
}

// TestReservedStaysReserved: a discard takes nothing of a preallocated file's space away.
func TestReservedStaysReserved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	const size = 4 << 20
	d, err := Open(Config{Path: path, Size: size, Prealloc: true})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p := bytes.Repeat([]byte{7}, 1<<20)
	if _, err := d.WriteAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if d.Info().Discard {
		if err := d.Discard(0, size); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 < size {
		t.Errorf("%d bytes are reserved, %v", st.Blocks*512, err)
	}
}
