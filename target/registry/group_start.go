package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/target/internal/ownership"
)

const (
	// startPause is the time between two attempts of a group that waits for another node.
	startPause = 100 * time.Millisecond
	// tellPatience is how long storage may take at the start before the group says so.
	tellPatience = 2 * time.Second
)

// starts notes that a group waits to become active, until over or endStart.
func (g *haGroup) starts(ctx context.Context) (_ context.Context, over func()) {
	ctx, cancel := context.WithCancel(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.starting = cancel
	return ctx, func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.starting = nil
	}
}

// waits reports whether the group waits to become active.
func (g *haGroup) waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.starting != nil
}

// endStart has the group wait no more.
func (g *haGroup) endStart() (waited bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starting == nil {
		return false
	}
	g.starting()
	return true
}

// start promotes the group when other nodes let it, unless ctx ends first, or somebody else changes its
// state. It is on standby while another node has it. begun is called when that is known, or it is over.
func (g *haGroup) start(ctx context.Context, begun func()) {
	defer begun()
	for last := ""; ; {
		end, err := g.begin(ctx)
		if err != nil {
			return
		}
		if ctx.Err() == nil && g.now() == GroupStandby {
			err = g.startOnce(ctx, last)
		}
		end()
		if !errors.Is(err, ownership.ErrHeld) {
			return // the log and the status have the error
		}
		last = err.Error()
		begun()
		select {
		case <-ctx.Done():
			return
		case <-time.After(startPause):
		}
	}
}

// startOnce is one attempt; last is the error of the one before. The caller has the turn.
func (g *haGroup) startOnce(ctx context.Context, last string) error {
	slow := time.AfterFunc(tellPatience, func() { g.tell(errors.New(g.unanswered())) })
	defer slow.Stop()
	over := g.asked.during(g.inStore())
	owner, err := g.store.TryClaim()
	over()
	if errors.Is(err, ownership.ErrHeld) {
		err = fmt.Errorf("group %s waits for another node: %w", g.cfg.Name, err)
		if err.Error() != last {
			g.to(GroupStandby, err)
		}
		return err
	}
	g.to(GroupPromoting, nil)
	return g.settle(ctx, owner, err)
}
