package rdma

import (
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
)

// An STag is a 24-bit index into the table of its device and an 8-bit key. The
// index is drawn at random, so that the STags of one connection tell nothing
// about those of another, and is never 0, which some peers take for "none".
const (
	stagKeyBits = 8
	stagMax     = 1 << 23 // regions; half of the index space keeps the draw short
	chunkBits   = 12
	chunkLen    = 1 << chunkBits
)

type stagChunk [chunkLen]atomic.Pointer[region]

// stagTable maps indexes to regions in two levels, so that an empty device costs
// one page and a lookup costs two loads and no lock.
type stagTable struct {
	chunks [1 << (24 - chunkBits)]atomic.Pointer[stagChunk]

	mu    sync.Mutex // guards what follows and every store to chunks
	n     int
	limit int
	rng   *mrand.ChaCha8
}

// lookup returns the region at the index of stag, or nil. The caller must still
// compare the whole STag under the region's lock.
func (t *stagTable) lookup(stag uint32) *region {
	i := stag >> stagKeyBits
	c := t.chunks[i>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[i&(chunkLen-1)].Load()
}

// insert gives r a fresh random STag.
func (t *stagTable) insert(r *region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n >= t.limit {
		return fmt.Errorf("%w: %d memory regions and windows", ErrLimit, t.limit)
	}
	if t.rng == nil {
		var seed [32]byte
		if _, err := rand.Read(seed[:]); err != nil {
			return fmt.Errorf("rdma: no randomness for STags: %w", err)
		}
		t.rng = mrand.NewChaCha8(seed)
	}
	// Random chunks spread over the table would cost a chunk per region, so new
	// indexes come from chunks in use while these are less than half full.
	for {
		i := uint32(t.rng.Uint64()>>32) >> stagKeyBits
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
			c = new(stagChunk)
			t.chunks[i>>chunkBits].Store(c)
		}
		slot := &c[i&(chunkLen-1)]
		if slot.Load() != nil {
			continue
		}
		r.index = i
		r.stag = i<<stagKeyBits | uint32(t.rng.Uint64()&0xff)
		slot.Store(r)
		t.n++
		return nil
	}
}

func (t *stagTable) remove(r *region) {
	t.mu.Lock()
	t.chunks[r.index>>chunkBits].Load()[r.index&(chunkLen-1)].Store(nil)
	t.n--
	t.mu.Unlock()
}

func (t *stagTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// freshKey draws a new key for an STag, different from the old one. The
// generator is seeded by the system and cheap enough for every bind.
func freshKey(old uint32) uint32 {
	for {
		if k := mrand.Uint32() & 0xff; k != old&0xff {
			return old&^0xff | k
		}
	}
}
