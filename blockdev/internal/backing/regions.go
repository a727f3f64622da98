package backing

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// regionSize is how much of a volume is remembered to have no holes, bytes.
const regionSize = 2 << 20

// regions remembers, a bit each, which parts of a volume are known to have no holes: what is not
// in memory there is read without a look at the file system first. When it is wrong it costs
// memory: a hole that somebody has punched since is read as zeroes, and taken for data, which has
// no space reserved. What a shrinking cuts off is forgotten.
type regions struct {
	words []atomic.Uint64
	raw   []byte
}

// newRegions makes the table for a mapping of n bytes, as newPages does.
func newRegions(n int64) (*regions, error) {
	words := (n + 64*regionSize - 1) / (64 * regionSize)
	raw, err := unix.Mmap(-1, 0, int(words*8), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping the table of regions of a volume (%d bytes): %w", words*8, err)
	}
	return &regions{unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(raw))), words), raw}, nil
}

func (r *regions) close() error {
	raw := r.raw
	r.raw, r.words = nil, nil
	return unix.Munmap(raw)
}

// full reports whether [off, end) is known to have no holes; end > off.
func (r *regions) full(off, end int64) bool {
	first, last := uint64(off)/regionSize, uint64(end-1)/regionSize
	for w := first / 64; w <= last/64; w++ {
		if m := wordMask(w, first, last); r.words[w].Load()&m != m {
			return false
		}
	}
	return true
}

// filled notes that [off, end) has no holes.
func (r *regions) filled(off, end int64) {
	first, behind := uint64(off+regionSize-1)/regionSize, uint64(end)/regionSize
	if first >= behind {
		return
	}
	for w := first / 64; w <= (behind-1)/64; w++ {
		or(&r.words[w], wordMask(w, first, behind-1))
	}
}

// forget takes the notes about everything from off on away.
func (r *regions) forget(off int64) {
	first := uint64(off) / regionSize
	last := uint64(len(r.words))*64 - 1
	for w := first / 64; w < uint64(len(r.words)); w++ {
		if m := wordMask(w, first, last); r.words[w].Load()&m != 0 {
			r.words[w].And(^m)
		}
	}
}
