package mem

import (
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
)

func TestConformance(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		t.Run(map[int]string{512: "512", 4096: "4096"}[bs], func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Backend{
				Direct: true,
				Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
					d, err := Open(Config{Name: t.Name(), Size: size, BlockSize: bs, Pool: pool})
					if err != nil {
						t.Fatal(err)
					}
					return d
				},
			})
		})
	}
}
