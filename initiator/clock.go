package initiator

import (
	"math/rand/v2"
	"time"
)

// clock is what a session measures its waits with: the time of the last tick, which commands take
// without asking the system for it. The session's mutex guards now and busy; the rest does not change.
type clock struct {
	begun time.Time
	now   int64         // nanoseconds since begun, as of the last tick
	wake  chan struct{} // makes watch.keep tick before it is time; one slot
	busy  bool          // commands were outstanding at the last tick: the next one is near
}

// used takes note of a command. The caller holds s.mu.
func (cl *clock) used() {
	if !cl.busy {
		cl.busy = true
		cl.nudge()
	}
}

// elapsed returns now on the session's clock.
func (cl *clock) elapsed() int64 { return int64(time.Since(cl.begun)) }

// nudge has the next tick come at once.
func (cl *clock) nudge() {
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

// jitter returns a duration between d/2 and d, so that many sessions that lost
// the same target do not come back in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
