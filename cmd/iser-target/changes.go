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
	mu       sync.RWMutex  // held for reading by whoever changes what is served, for writing while that is handed over
	underWay underWay      // who holds mu for reading
	opened   chan struct{} // set before services run, closed when a takeover is complete; nil: nobody's place was taken
}

// errHandingOver is the answer to administrators during a handover.
var errHandingOver = errors.New("another process is taking this one's place; ask again in a moment")

// enter is for a change that somebody asks for who can ask again: during a handover it is refused.
// what names it for who waits for its end.
func (g *changeGate) enter(ctx context.Context, what string) (leave func(), err error) {
	if err := g.waitOpened(ctx); err != nil {
		return nil, err
	}
	if !g.mu.TryRLock() {
		return nil, errHandingOver
	}
	return g.entered(what), nil
}

// wait is enter for who cannot ask again: it waits for the end of a handover.
func (g *changeGate) wait(ctx context.Context, what string) (leave func(), err error) {
	if err := g.waitOpened(ctx); err != nil {
		return nil, err
	}
	g.mu.RLock()
	return g.entered(what), nil
}

// entered notes that what is being done, under mu.
func (g *changeGate) entered(what string) (leave func()) {
	over := g.underWay.begin(what)
	return func() {
		over()
		g.mu.RUnlock()
	}
}

// close waits until nobody is in; then nobody enters until open.
func (g *changeGate) close(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.waitOpened(ctx); err != nil {
		return err
	}
	for ; !g.mu.TryLock(); time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return fmt.Errorf("what is served is being changed, by %s; try again when that has ended", cmp.Or(g.underWay.list(), "somebody who has just begun or ended"))
		}
	}
	return nil
}

// open ends close.
func (g *changeGate) open() { g.mu.Unlock() }

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

// underWay names what is being done. The zero value is ready for use.
type underWay struct {
	mu  sync.Mutex
	all map[*begun]struct{} // guarded by mu
}

type begun struct {
	what string
	at   time.Time
}

// begin notes something until over is called.
func (u *underWay) begin(what string) (over func()) {
	b := &begun{what, time.Now()}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[*begun]struct{}{}
	}
	u.all[b] = struct{}{}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.all, b)
	}
}

// list is what has not ended, and how long that goes on.
func (u *underWay) list() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []string
	for b := range u.all {
		all = append(all, fmt.Sprintf("%s (for %v)", b.what, time.Since(b.at).Round(time.Second)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
