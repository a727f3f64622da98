package backing

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pages remembers what is known of every page of a volume, so that the usual
// lease costs no system call. Two bits:
//
//	map  own
//	 0    0   unknown: ask the file system (memory volumes: a hole)
//	 0    1   a hole: read leases get shared zeroes
//	 1    0   data: the mapping may be read, a store might need space
//	 1    1   data with space reserved: the mapping may be read and stored to
//
// The bits of 64 pages are two adjacent words, updated atomically. Setting bits
// needs a lease on the range; clearing map needs an exclusive claim on whole
// pages. They are a hint about residency (the kernel may reclaim a page). What is a hole here
// is one in the store, as nobody else writes to that; what is data may be a hole that somebody
// has found in the page cache.
type pages struct {
	words []atomic.Uint64
	raw   []byte
	shift uint
	// holesKnown makes unknown pages holes: the store began empty and only
	// this process writes to it.
	holesKnown bool
	marking    sync.Mutex // of readers, and of those who take marks away; guards cleared
	cleared    uint64     // how often marks were taken away
}

type pageState uint8

const (
	pageUnknown pageState = iota
	pageHole
	pageData
	pageOwned
)

// newPages makes the table for a mapping of n bytes. It is demand-zero memory
// outside the Go heap: 64 MiB of address space per TiB, resident where used.
func newPages(n int64, pageSize int, holesKnown bool) (*pages, error) {
	shift := uint(bits.TrailingZeros(uint(pageSize)))
	count := (n + int64(pageSize) - 1) >> shift
	words := (count + 63) / 64 * 2
	raw, err := unix.Mmap(-1, 0, int(words*8), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping the page table of a volume (%d bytes): %w", words*8, err)
	}
	return &pages{
		words:      unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(raw))), words),
		raw:        raw,
		shift:      shift,
		holesKnown: holesKnown,
	}, nil
}

func (t *pages) close() error {
	raw := t.raw
	t.raw, t.words = nil, nil
	return unix.Munmap(raw)
}

// readable reports whether [off, off+n) may be lent from the mapping; n > 0.
func (t *pages) readable(off, n int64) bool {
	first, last := uint64(off)>>t.shift, uint64(off+n-1)>>t.shift
	for w := first / 64; w <= last/64; w++ {
		m := wordMask(w, first, last)
		if t.words[2*w].Load()&m != m {
			return false
		}
	}
	return true
}

// writable reports whether [off, off+n) may be lent to be stored to.
func (t *pages) writable(off, n int64) bool {
	first, last := uint64(off)>>t.shift, uint64(off+n-1)>>t.shift
	for w := first / 64; w <= last/64; w++ {
		m := wordMask(w, first, last)
		if t.words[2*w].Load()&t.words[2*w+1].Load()&m != m {
			return false
		}
	}
	return true
}

// run returns the state of the page that holds off, and how far into
// [off, end) it goes on.
func (t *pages) run(off, end int64) (pageState, int64) {
	first, last := uint64(off)>>t.shift, uint64(end-1)>>t.shift
	state := t.at(first)
	p := first + 1
	for p <= last {
		// A whole word at once where 64 pages are alike.
		if p%64 == 0 && p+63 <= last && t.wordIs(p/64, state) {
			p += 64
			continue
		}
		if t.at(p) != state {
			break
		}
		p++
	}
	return state, min(int64(p)<<t.shift, end) - off
}

func (t *pages) at(p uint64) pageState {
	bit := uint64(1) << (p % 64)
	m, o := t.load(p / 64)
	mapped, own := m&bit != 0, o&bit != 0
	switch {
	case mapped && own:
		return pageOwned
	case mapped:
		return pageData
	case own || t.holesKnown:
		return pageHole
	}
	return pageUnknown
}

// load returns the two words of 64 pages as they were together at one moment:
// a mix of old and new could look like a hole.
func (t *pages) load(w uint64) (mapped, own uint64) {
	for {
		own = t.words[2*w+1].Load()
		mapped = t.words[2*w].Load()
		if t.words[2*w+1].Load() == own {
			return mapped, own
		}
	}
}

func (t *pages) wordIs(w uint64, s pageState) bool {
	m, o := t.load(w)
	switch s {
	case pageOwned:
		return m == ^uint64(0) && o == m
	case pageData:
		return m == ^uint64(0) && o == 0
	case pageHole:
		return m == 0 && (o == ^uint64(0) || t.holesKnown && o == 0)
	}
	return m == 0 && o == 0
}

// set records what was learnt about the pages that [off, off+n) touches. Writers, who have reserved
// the space, make them owned. Readers find holes and data, and what is known of a page stays: the
// marks of a hole and of data together would look like reserved space.
func (t *pages) set(off, n int64, s pageState) {
	if n <= 0 {
		return
	}
	if s != pageOwned {
		t.marking.Lock()
		defer t.marking.Unlock()
	}
	t.mark(off, n, s)
}

// look begins a look at the store for holes that setHoles may note.
func (t *pages) look() (cleared uint64) {
	t.marking.Lock()
	defer t.marking.Unlock()
	return t.cleared
}

// setHoles is set for holes that a look has found, unless marks have been taken away since it
// began: a write that failed may have left something behind it. It reports whether they are noted.
func (t *pages) setHoles(off, n int64, look uint64) bool {
	t.marking.Lock()
	defer t.marking.Unlock()
	if t.cleared != look {
		return false
	}
	t.mark(off, n, pageHole)
	return true
}

// mark is set for a caller that has what that needs; n > 0.
func (t *pages) mark(off, n int64, s pageState) {
	first, last := uint64(off)>>t.shift, uint64(off+n-1)>>t.shift
	for w := first / 64; w <= last/64; w++ {
		mapped, own := &t.words[2*w], &t.words[2*w+1]
		m := wordMask(w, first, last)
		if s != pageOwned {
			m &^= mapped.Load() | own.Load() // a writer may set more meanwhile: both
		}
		// Set the bit "map" before "own": "own" alone means a hole, which readers must not see here.
		if s == pageData || s == pageOwned {
			or(mapped, m)
		}
		if s == pageHole || s == pageOwned {
			or(own, m)
		}
	}
}

// clear forgets the pages that lie wholly in [off, off+n), or turns them into
// holes, or into data, whatever readers have noted. The caller has an exclusive claim on them.
func (t *pages) clear(off, n int64, s pageState) {
	size := int64(1) << t.shift
	off, end := (off+size-1)&^(size-1), (off+n)&^(size-1)
	if off >= end {
		return
	}
	t.marking.Lock()
	defer t.marking.Unlock()
	t.cleared++
	first, last := uint64(off)>>t.shift, uint64(end-1)>>t.shift
	for w := first / 64; w <= last/64; w++ {
		m := wordMask(w, first, last)
		if t.words[2*w].Load()|t.words[2*w+1].Load() != 0 {
			// Clear the bit "own" before "map": "own" alone means a hole, which readers must not see here.
			t.words[2*w+1].And(^m)
			t.words[2*w].And(^m)
		}
		switch {
		case s == pageHole && !t.holesKnown:
			or(&t.words[2*w+1], m)
		case s == pageData:
			or(&t.words[2*w], m)
		}
	}
}

// or spares a store to a shared cache line when the bits are there already.
func or(w *atomic.Uint64, m uint64) {
	if w.Load()&m != m {
		w.Or(m)
	}
}

// wordMask selects the pages first..last that fall into word w.
func wordMask(w, first, last uint64) uint64 {
	m := ^uint64(0)
	if w == first/64 {
		m <<= first % 64
	}
	if w == last/64 {
		m &= ^uint64(0) >> (63 - last%64)
	}
	return m
}
