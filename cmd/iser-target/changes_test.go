package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestChangesAfterATakeover: an administrator who asks for a change while a new process still
// opens what was not handed over is answered when it has; a further handover waits for that, too.
func TestChangesAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &app{opened: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.change(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a change whose patience has ended: %v", err)
		}
		if err := a.stopChanges(time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a handover whose patience has ended: %v", err)
		}
		changed := make(chan error)
		go func() {
			end, err := a.change(t.Context())
			if err == nil {
				end()
			}
			changed <- err
		}()
		synctest.Wait()
		select {
		case err := <-changed:
			t.Fatalf("a change before everything is open: %v", err)
		default:
		}
		close(a.opened)
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		if err := a.stopChanges(time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := a.change(t.Context()); !errors.Is(err, errHandingOver) {
			t.Fatalf("a change during a handover: %v", err)
		}
	})
}
