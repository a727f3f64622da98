// Package turns lets one at a time do something with what has a name, and others with what has
// another one.
//
// A mutex would do if there were one thing, or if nobody stayed long. Here who has a turn opens storage,
// or closes it, and that may hang: then those that want the same storage wait, as long as they have
// patience, and nobody else does.
//
// What may have a turn need not exist yet: who makes a volume has the turn of its name first. So turns are
// kept by names, and one that nobody has or awaits is forgotten.
package turns

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Of are the turns of things that K names. The zero value is ready.
type Of[K comparable] struct {
	mu    sync.Mutex // guards what follows; nobody waits while holding it
	turns map[K]*turn
}

type turn struct {
	held  chan struct{} // full while somebody has it
	users int           // who has or awaits it; guarded by Of.mu
}

// Begin waits for the turn of name, which end gives back.
func (o *Of[K]) Begin(name K) (end func()) {
	end, _ = o.BeginWithin(context.Background(), name) // which does not fail
	return end
}

// BeginWithin is Begin for who waits as long as ctx allows; the error is that of ctx. A turn that nobody has is
// given although ctx has ended: there is nothing to wait for.
func (o *Of[K]) BeginWithin(ctx context.Context, name K) (end func(), err error) {
	t := o.enter(name)
	end = func() { <-t.held; o.leave(name, t) }
	select {
	case t.held <- struct{}{}:
		return end, nil
	default:
	}
	select {
	case t.held <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		o.leave(name, t)
		return nil, ctx.Err()
	}
}

func (o *Of[K]) enter(name K) *turn {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.turns[name]
	if t == nil {
		if o.turns == nil {
			o.turns = map[K]*turn{}
		}
		t = &turn{held: make(chan struct{}, 1)}
		o.turns[name] = t
	}
	t.users++
	return t
}

func (o *Of[K]) leave(name K, t *turn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(o.turns, name)
	}
}

// Names are those whose turn somebody has or awaits.
func (o *Of[K]) Names() []K {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.turns))
}
