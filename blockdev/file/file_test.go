package file

import (
	"path/filepath"
	"testing"

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
