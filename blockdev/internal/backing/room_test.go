package backing

import "testing"

// TestRooms: volumes can grow, and what they reserve for that leaves the others of a process their place.
func TestRooms(t *testing.T) {
	const gib, tib = 1 << 30, 1 << 40
	for _, c := range []struct {
		name        string
		size, count int64
		first, last int64 // room, at least
	}{
		{"one", 4096, 1, 64 * gib, 64 * gib},
		{"of 100 GiB", 100 * gib, 10, 300 * gib, 300 * gib},
		{"of 1 TiB", tib, 90, 3 * tib, 16 * gib},
		{"of 40 TiB", 40 * tib, 1, 8 * tib, 8 * tib},
		{"of 15 TiB", 15 * tib, 6, 8 * tib, tib},
		{"thousands", gib, 10_000, 64 * gib, 3 * gib},
	} {
		var r rooms
		var room []int64
		sum := int64(0)
		for range c.count {
			n := r.take(c.size)
			if n%roomAlign != 0 {
				t.Errorf("%s: room of %d", c.name, n)
			}
			room, sum = append(room, n), sum+c.size+n
		}
		if sum > 127*tib {
			t.Errorf("%s: %d volumes take %d TiB", c.name, c.count, sum/tib)
		}
		if first, last := room[0], room[c.count-1]; first < c.first || last < c.last {
			t.Errorf("%s: room of %d, %d at last, want %d and %d", c.name, first, last, c.first, c.last)
		}
		for _, n := range room {
			r.put(n)
		}
		if r.all != 0 {
			t.Errorf("%s: %d are left", c.name, r.all)
		}
	}
}
