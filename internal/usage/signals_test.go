package usage

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Two signals at once are one: signals are caught until the second is over.
func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stopped atomic.Bool
		Insist(ctx, func() { stopped.Store(true) })
		time.Sleep(5 * twin)
		if stopped.Load() {
			t.Error("the first signal would end the process")
		}
		cancel()
		time.Sleep(twin - 1)
		if stopped.Load() {
			t.Error("a second signal at once would end the process")
		}
		time.Sleep(2)
		if !stopped.Load() {
			t.Error("no signal would end the process")
		}
	})
}
