package verbs

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatchDrain: a graceful close goes on as long as anything moves, and ends when nothing has for
// drainTimeout, unless it is over by then.
func TestWatchDrain(t *testing.T) {
	for name, c := range map[string]struct {
		moves int // once in nine seconds
		over  bool
		ends  time.Duration // 0: it does not
	}{
		"nothing moves":        {0, false, drainTimeout},
		"it moves for a while": {3, false, 4 * drainTimeout},
		"it is over":           {1, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				qp, _ := newIdle()
				var moved uint64
				over, begin := false, time.Now()
				qp.Mu.Lock()
				timer := qp.WatchDrainLocked(func() uint64 { return moved }, func() bool { return over }, "the peer has answered nothing")
				qp.Mu.Unlock()
				defer timer.Stop()
				for range c.moves {
					time.Sleep(9 * time.Second)
					qp.Mu.Lock()
					moved++
					qp.Mu.Unlock()
				}
				qp.Mu.Lock()
				over = c.over
				qp.Mu.Unlock()
				var ended time.Duration
				select {
				case <-qp.Failing:
					ended = time.Since(begin)
				case <-time.After(time.Hour):
				}
				if ended != c.ends || ended != 0 && !errors.Is(qp.Err, ErrTimeout) {
					t.Errorf("ended after %v, want %v: %v", ended, c.ends, qp.Err)
				}
			})
		})
	}
}
