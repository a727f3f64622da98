package namelock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// One at a time has the turn of a name; another name's does not wait for it.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts Turns[string]
		end := ts.Begin("a")
		ts.Begin("b")()
		var began atomic.Int32
		for range 3 {
			go func() {
				defer ts.Begin("a")()
				began.Add(1)
				time.Sleep(time.Second)
			}()
		}
		synctest.Wait()
		for want := range int32(4) {
			if got := began.Load(); got != want {
				t.Errorf("%d have begun, want %d", got, want)
			}
			if got := ts.Names(); !slices.Equal(got, []string{"a"}) {
				t.Errorf("turns of %v", got)
			}
			if want == 0 {
				end()
			} else {
				time.Sleep(time.Second)
			}
			synctest.Wait()
		}
		if got := ts.Names(); len(got) > 0 {
			t.Errorf("turns of %v are kept", got)
		}
	})
}

// Patience ends the wait for a turn that another one has, and nothing else: who goes away keeps nobody
// waiting, and a turn that nobody has is given whatever the context says.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts Turns[int]
		end := ts.Begin(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := ts.BeginWithin(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("of a turn that is not over: %v", err)
			}
		})
		wg.Go(func() { ts.Begin(1)() })
		time.Sleep(time.Second)
		synctest.Wait()
		end()
		wg.Wait()
		for range 20 {
			end, err := ts.BeginWithin(ctx, 1)
			if err != nil {
				t.Fatalf("a turn that nobody has: %v", err)
			}
			end()
		}
		if got := ts.Names(); len(got) > 0 {
			t.Errorf("turns of %v are kept", got)
		}
	})
}
