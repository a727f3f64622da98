package table

import (
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
)

// cached is a disk with a cache of this name.
type cached struct {
	blockdev.Device
	id string
}

func (c *cached) Info() blockdev.Info {
	i := c.Device.Info()
	i.CacheID = c.id
	return i
}

// TestCacheID: a table loses what one of its disks loses, and nothing is known of it if
// nothing is known of one of them.
func TestCacheID(t *testing.T) {
	disk := func(id string) blockdev.Device {
		m, err := mem.Open(mem.Config{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return &cached{m, id}
	}
	id := func(devs ...blockdev.Device) string {
		t.Helper()
		var runs []Run
		for _, d := range devs {
			runs = append(runs, Run{Len: 4096, Stripes: []Stripe{{Dev: d, Disk: true}}})
		}
		d, err := New("t", runs)
		if err != nil {
			t.Fatal(err)
		}
		return d.Info().CacheID
	}
	a, b, other, unknown := disk("a"), disk("b"), disk("c"), disk("")
	if id(a) == "" || id(a) != id(a, a) || id(a) == id(b) {
		t.Error("a table on one disk has not its cache")
	}
	if id(a, b) == id(a) || id(a, b) == id(a, other) {
		t.Error("the second disk does not count")
	}
	if got := id(a, unknown); got != "" {
		t.Errorf("one disk is not known: %q", got)
	}
}
