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

// TestIdentityPerContent: a volume that begins anew is another one, and one that is
// resized is not.
func TestIdentityPerContent(t *testing.T) {
	open := func() *Device {
		d, err := Open(Config{Name: "disk", Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	d := open()
	first := d.Info().ID
	if err := d.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	if got := d.Info().ID; got != first {
		t.Errorf("resized: %q, before it %q", got, first)
	}
	if got := open().Info().ID; got == first {
		t.Errorf("another content, the same identity: %q", got)
	}
}
