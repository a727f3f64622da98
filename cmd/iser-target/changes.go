package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// changeGate says when what is served may be changed: not while it is handed over to another
// process, and in a process that has taken over not before it has opened everything. The zero
// value is that of a process that has taken nobody's place.
type changeGate struct {
	opened chan struct{} // set before services run, closed when a takeover is complete; nil: nobody's place was taken

	mu     sync.Mutex          // guards what follows
	closed bool                // what is served is being handed over
	in     map[*begun]struct{} // what is being done
	moved  chan struct{}       // closed when somebody leaves or the gate opens; nil: nobody waits for that
}

// begun is something that is being done.
type begun struct {
	what string
	at   time.Time
}

// errHandingOver is the answer to administrators during a handover.
var errHandingOver = errors.New("another process is taking this one's place; ask again in a moment")

// enter is for a change whose requester can ask again: during a handover it is refused.
// what names it for those who wait for its end.
func (g *changeGate) enter(ctx context.Context, what string) (leave func(), err error) {
	if err := g.waitOpened(ctx); err != nil {
		return nil, err
	}
	leave, _ = g.try(what)
	if leave == nil {
		return nil, errHandingOver
	}
	return leave, nil
}

// wait is enter for a change that cannot be asked for again: it waits for the end of a handover.
func (g *changeGate) wait(ctx context.Context, what string) (leave func(), err error) {
	if err := g.waitOpened(ctx); err != nil {
		return nil, err
	}
	for {
		leave, moved := g.try(what)
		if leave != nil {
			return leave, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errHandingOver, ctx.Err())
		}
	}
}

// try enters unless the gate is closed, in which case moved is closed when that may have changed.
func (g *changeGate) try(what string) (leave func(), moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, g.next()
	}
	b := &begun{what, time.Now()}
	if g.in == nil {
		g.in = map[*begun]struct{}{}
	}
	g.in[b] = struct{}{}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.in, b)
		g.tell()
	}, nil
}

// close waits until nobody is in; then nobody enters until open.
func (g *changeGate) close(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.waitOpened(ctx); err != nil {
		return err
	}
	for {
		g.mu.Lock()
		if !g.closed && len(g.in) == 0 {
			g.closed = true
			g.mu.Unlock()
			return nil
		}
		moved := g.next()
		g.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("what is served is being changed, by %s; try again when that has ended", cmp.Or(g.underWay(), "somebody who has just begun or ended"))
		}
	}
}

// open ends close.
func (g *changeGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	g.tell()
}

// next is closed when somebody leaves or the gate opens. Preconditions: g.mu is held.
func (g *changeGate) next() <-chan struct{} {
	if g.moved == nil {
		g.moved = make(chan struct{})
	}
	return g.moved
}

// tell wakes who waits for next. Preconditions: g.mu is held.
func (g *changeGate) tell() {
	if g.moved != nil {
		close(g.moved)
		g.moved = nil
	}
}

// waitOpened waits until this process has opened what the one before it has not handed over.
func (g *changeGate) waitOpened(ctx context.Context) error {
	if g.opened == nil {
		return nil
	}
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("what was not handed over to this process is still being opened: %w", ctx.Err())
	}
}

// underWay is what is being done, and for how long.
func (g *changeGate) underWay() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for b := range g.in {
		all = append(all, fmt.Sprintf("%s (for %v)", b.what, time.Since(b.at).Round(time.Second)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
