package null

import (
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/blockdevtest"
)

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Backend{
		Sink: true,
		Open: func(t *testing.T, size int64, pool *blockdev.Pool) blockdev.Device {
			d, err := Open(Config{Size: size, Pool: pool})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	})
}

func TestHuge(t *testing.T) {
	d, err := Open(Config{Size: 1 << 50, BlockSize: 4096, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var l blockdev.Lease
	// Longer than the zero region: several slices.
	if err := d.LeaseRead(&l, 1<<50-16<<20, 16<<20, blockdev.NoWait); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range l.Segs {
		n += len(s)
	}
	if n != 16<<20 {
		t.Errorf("a lease of 16 MiB holds %d bytes", n)
	}
	l.Release()
	if _, err := d.WriteAt(make([]byte, 4096), 0); err != blockdev.ErrReadOnly {
		t.Errorf("WriteAt on a read-only volume = %v", err)
	}
}
