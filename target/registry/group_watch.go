package registry

import (
	"context"
	"sync"
	"time"
)

// ownerCheck is how often an active group asks whether it still is this node's.
const ownerCheck = time.Second

// watch looks whether a group still is this node's. The zero value does not.
type watch struct {
	mu     sync.Mutex // guards what follows
	cancel context.CancelFunc
	over   chan struct{} // closed when the watch has ended
}

// start begins to ask check, until it has an error for lost, which ends the watch. The
// context of lost ends with the watch.
func (w *watch) start(check func() error, lost func(context.Context, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	w.mu.Lock()
	w.cancel, w.over = cancel, over
	w.mu.Unlock()
	go func() {
		defer close(over)
		t := time.NewTicker(ownerCheck)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := check(); err != nil {
				lost(ctx, err)
				return
			}
		}
	}()
}

// end ends the watch, and waits for it.
func (w *watch) end() {
	w.mu.Lock()
	cancel, over := w.cancel, w.over
	w.cancel = nil
	w.mu.Unlock()
	if cancel != nil {
		cancel()
		<-over
	}
}
