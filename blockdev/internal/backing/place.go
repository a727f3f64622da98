package backing

import (
	"runtime/debug"

	"softiser/internal/memfault"
	"softiser/internal/resident"
)

// placeMax is the longest write that place copies, bytes. Above, the system call is
// cheap for what it moves, and does not hold a scheduler slot meanwhile.
const placeMax = 64 << 10

// cached is how large a volume may be so that what is written to it is likely to lie in the processor's caches,
// bytes. To a larger one the copy goes past them (resident.Stream).
const cached = 64 << 20

// placeable reports whether a write may be copied into the mapping: the store is
// memory that only this volume writes to, and each of the pages has its space.
func (m *mapped) placeable(off, n int64) bool {
	return n <= int64(m.cfg.Info.ExactWrite) && m.pages.writable(off, n)
}

// place copies bufs into the mapping at off, and saves a short write its system
// call, half of which is finding the page. It reports false when the mapping faults:
// then pwrite finds out why. Preconditions: placeable, and the range is claimed.
func (m *mapped) place(bufs [][]byte, off int64) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	into := resident.Stream
	if len(m.mem) <= cached {
		into = func(dst, src []byte) int { return copy(dst, src) }
	}
	for _, b := range bufs {
		off += int64(into(m.mem[off:], b))
	}
	return true
}
