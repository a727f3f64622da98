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
}

// start begins to ask check, until it has an error for lost, which ends the watch. The
// context of lost ends with the watch, and may have when it is called.
func (w *watch) start(check func() error, lost func(context.Context, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.cancel = cancel
	w.mu.Unlock()
	go func() {
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

// end ends the watch. It does not wait for a check: the store may not answer.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
}
