// Package namelock lets one at a time do something with what has a name, and others with what has
// another one.
//
// A mutex would do if there were one thing, or if nobody stayed long. Here who has a turn opens storage,
// or closes it, and that may hang: then those that want the same storage wait, as long as they have
// patience, and nobody else does.
//
// What may have a turn need not exist yet: who makes a volume has the turn of its name first. So turns are
// kept by names, and one that nobody has or awaits is forgotten.
package namelock

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Turns are those of things that K names. The zero value is ready.
type Turns[K comparable] struct {
	mu    sync.Mutex // guards what follows; nobody waits while holding it
	turns map[K]*turn
}

type turn struct {
	held  chan struct{} // full while somebody has it
	users int           // who has or awaits it; guarded by Turns.mu
}

// Begin waits for the turn of name, which end gives back.
func (ts *Turns[K]) Begin(name K) (end func()) {
	end, _ = ts.BeginWithin(context.Background(), name) // which does not fail
	return end
}

// BeginWithin is Begin that waits as long as ctx allows; the error is that of ctx. A turn that nobody has is
// given although ctx has ended: there is nothing to wait for.
func (ts *Turns[K]) BeginWithin(ctx context.Context, name K) (end func(), err error) {
	t := ts.enter(name)
	end = func() { <-t.held; ts.leave(name, t) }
	select {
	case t.held <- struct{}{}:
		return end, nil
	default:
	}
	select {
	case t.held <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		ts.leave(name, t)
		return nil, ctx.Err()
	}
}

func (ts *Turns[K]) enter(name K) *turn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.turns[name]
	if t == nil {
		if ts.turns == nil {
			ts.turns = map[K]*turn{}
		}
		t = &turn{held: make(chan struct{}, 1)}
		ts.turns[name] = t
	}
	t.users++
	return t
}

func (ts *Turns[K]) leave(name K, t *turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(ts.turns, name)
	}
}

// Names are those whose turn somebody has or awaits.
func (ts *Turns[K]) Names() []K {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.Collect(maps.Keys(ts.turns))
}
