package mem

import (
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
)

// An STag is a 24-bit index into the table of its device and an 8-bit key. The
// index is drawn at random, so that the STags of one connection tell nothing
// about those of another, and is never 0, which some peers take for "none".
const (
	keyBits   = 8
	keyMask   = 1<<keyBits - 1
	chunkBits = 12
	chunkLen  = 1 << chunkBits
)

// MaxRegions is how many regions a table may be given room for: half of the index
// space keeps the draw of an index short.
const MaxRegions = 1 << 23

// ErrFull says that a table has as many regions as it was given room for.
var ErrFull = errors.New("no room for another memory region or window")

type chunk [chunkLen]atomic.Pointer[Region]

// Table maps indexes to regions in two levels, so that an empty device costs
// one page and a lookup costs two loads and no lock.
type Table struct {
	chunks [1 << (24 - chunkBits)]atomic.Pointer[chunk]

	mu    sync.Mutex // guards what follows and every store to chunks
	n     int
	limit int
	rng   *mrand.ChaCha8
}

// Limit sets for how many regions there is room, before the first one.
func (t *Table) Limit(n int) { t.limit = n }

// Lookup returns the region at the index of stag, or nil. Check compares the whole
// STag.
func (t *Table) Lookup(stag uint32) *Region {
	i := stag >> keyBits
	c := t.chunks[i>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[i&(chunkLen-1)].Load()
}

// Insert gives r a fresh random STag.
func (t *Table) Insert(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= t.limit {
		return ErrFull
	}
	if t.rng == nil {
		var seed [32]byte
		if _, err := rand.Read(seed[:]); err != nil {
			return fmt.Errorf("no randomness for STags: %w", err)
		}
		t.rng = mrand.NewChaCha8(seed)
	}
	// Random chunks spread over the table would cost a chunk per region, so new
	// indexes come from chunks in use while these are less than half full.
	for {
		i := uint32(t.rng.Uint64()>>32) >> keyBits
		span := uint32(chunkLen)
		for int(span) < 2*(t.n+1) {
			span <<= 1
		}
		i &= span - 1
		if i == 0 {
			continue
		}
		c := t.chunks[i>>chunkBits].Load()
		if c == nil {
			c = new(chunk)
			t.chunks[i>>chunkBits].Store(c)
		}
		slot := &c[i&(chunkLen-1)]
		if slot.Load() != nil {
			continue
		}
		r.index = i
		r.stag = i<<keyBits | uint32(t.rng.Uint64()&keyMask)
		slot.Store(r)
		t.n++
		return nil
	}
}

// Remove takes the STag of a region away, which has been revoked.
func (t *Table) Remove(r *Region) {
	t.mu.Lock()
	t.chunks[r.index>>chunkBits].Load()[r.index&(chunkLen-1)].Store(nil)
	t.n--
	t.mu.Unlock()
}

// Count is how many regions there are.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// nextKey draws a new key for an STag, different from the old one. The
// generator is seeded by the system and cheap enough for every bind.
func nextKey(old uint32) uint32 {
	for {
		if k := mrand.Uint32() & 0xff; k != old&keyMask {
			return old&^keyMask | k
		}
	}
}
