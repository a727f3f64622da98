package backing

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

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

// TestRoomThatIsNotThere: where the process has no address space for what a volume may grow by, the volume is opened
// with less, and only what it has counts; one for which there is none at all leaves nothing behind.
func TestRoomThatIsNotThere(t *testing.T) {
	const size = 1 << 20
	before := reserved.all
	for _, c := range []struct {
		name        string
		space, room int64
	}{
		{"all", 1 << 40, roomUsual},
		{"some", roomUsual, size},
		{"none to grow", 2*size - 1, 0},
		{"not even for the volume", size - 1, -1},
	} {
		k := linux
		k.mmap = func(fd int, off int64, n, prot, flags int) ([]byte, error) {
			if int64(n) > c.space {
				return nil, unix.ENOMEM
			}
			return unix.Mmap(fd, off, n, prot, flags)
		}
		m := mapped{sys: k}
		fd, err := unix.MemfdCreate("room", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(unix.Ftruncate(fd, size), m.mapStore(fd, size, int64(unix.Getpagesize()), false))
		if c.room < 0 {
			if !errors.Is(err, unix.ENOMEM) || reserved.all != before {
				t.Errorf("%s: %v, %d bytes are still reserved", c.name, err, reserved.all-before)
			}
			unix.Close(fd)
			continue
		}
		if err != nil || int64(len(m.mem)) != size+c.room || reserved.all != before+c.room {
			t.Errorf("%s: %v, %d bytes are mapped and %d reserved, want room of %d", c.name, err, len(m.mem), reserved.all-before, c.room)
		}
		if err := errors.Join(m.unmapStore(), unix.Close(fd)); err != nil || reserved.all != before {
			t.Errorf("%s: %v, afterwards %d bytes are reserved", c.name, err, reserved.all-before)
		}
	}
}

// TestGrowthWithoutRoom: a volume that has been opened with little room says how far it can grow.
func TestGrowthWithoutRoom(t *testing.T) {
	const size = 1 << 20
	k := linux
	k.mmap = func(fd int, off int64, n, prot, flags int) ([]byte, error) {
		if n > 2*size {
			return nil, unix.ENOMEM
		}
		return unix.Mmap(fd, off, n, prot, flags)
	}
	v, _ := openFile(t, size, k, nil)
	if err := v.Resize(3 * size); err == nil || !strings.Contains(err.Error(), "can grow to 2MiB while it is open; close and reopen it to reach 3MiB") {
		t.Errorf("three times the size: %v", err)
	}
	if err := v.Resize(2 * size); err != nil || v.Info().Size != 2*size {
		t.Errorf("twice the size: %v", err)
	}
}
