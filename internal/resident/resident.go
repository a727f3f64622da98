// Package resident keeps track of which mappings are RAM, so that an access never waits for a
// disk. A volume in memory is; the mapping of a file is not, because the kernel may have
// reclaimed a page of it. System calls on such memory need not be announced to the Go
// scheduler (sockio.Conn.Writev).
//
// Memory that was not registered here counts as memory that may wait. Load, Fetch and Stream
// read such memory ahead, and write it past the caches. The package is a leaf.
package resident

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// span is [lo, hi) of the address space.
type span struct{ lo, hi uintptr }

var (
	mu    sync.Mutex // of writers
	spans atomic.Pointer[[]span]
)

func spanOf(p []byte) span {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	return span{lo, lo + uintptr(len(p))}
}

// Add enters p, a mapping that is not empty and overlaps no other one. It is to be taken
// out by remove, once, before p is unmapped.
func Add(p []byte) (remove func()) {
	s := spanOf(p)
	change(func(all []span) []span {
		i, _ := slices.BinarySearchFunc(all, s.lo, byStart)
		return slices.Insert(all, i, s)
	})
	return func() {
		change(func(all []span) []span {
			i, _ := slices.BinarySearchFunc(all, s.lo, byStart)
			return slices.Delete(all, i, i+1)
		})
	}
}

func byStart(s span, lo uintptr) int {
	switch {
	case s.lo < lo:
		return -1
	case s.lo > lo:
		return 1
	}
	return 0
}

// change replaces the list: who looks at it takes no lock.
func change(f func([]span) []span) {
	mu.Lock()
	defer mu.Unlock()
	var all []span
	if old := spans.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = f(all)
	spans.Store(&all)
}

// Holds reports whether all of p lies in one of the mappings.
func Holds(p []byte) bool {
	all := spans.Load()
	if all == nil {
		return false
	}
	q := spanOf(p)
	lo, hi := 0, len(*all) // the first span that ends at or behind the end of p
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if (*all)[mid].hi < q.hi {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(*all) && (*all)[lo].lo <= q.lo
}
