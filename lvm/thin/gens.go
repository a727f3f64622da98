package thin

import (
	"sync"
	"sync/atomic"
)

// gens delays the reuse of data blocks until every lease and call that was
// under way when they were freed has ended: somebody may still be reading or
// filling them.
//
// Users enter the current generation. Freed blocks belong to the generation
// that is current then; they come back when it and all older ones are empty.
type gens struct {
	cur  atomic.Uint64
	refs [64]struct {
		n atomic.Int64
		_ [56]byte // keeps neighbours off one cache line
	}

	mu     sync.Mutex // guards what follows
	oldest uint64
	freed  map[uint64][]uint64 // generation → blocks
}

func (g *gens) init() { g.freed = map[uint64][]uint64{} }

func (g *gens) enter() uint64 {
	for {
		c := g.cur.Load()
		g.refs[c%64].n.Add(1)
		if g.cur.Load() == c {
			return c
		}
		g.refs[c%64].n.Add(-1)
	}
}

func (g *gens) leave(c uint64) { g.refs[c%64].n.Add(-1) }

func (g *gens) free(b uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.cur.Load()
	g.freed[c] = append(g.freed[c], b)
}

// reclaim returns the blocks that nobody can refer to any more.
func (g *gens) reclaim() []uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.cur.Load()
	if len(g.freed[c]) > 0 && c-g.oldest < 62 {
		// From here on users enter the next generation, in which these blocks
		// are out of reach.
		g.cur.Store(c + 1)
		c++
	}
	var out []uint64
	for g.oldest < c && g.refs[g.oldest%64].n.Load() == 0 {
		out = append(out, g.freed[g.oldest]...)
		delete(g.freed, g.oldest)
		g.oldest++
	}
	return out
}
