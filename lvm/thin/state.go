package thin

import (
	"fmt"
	"sync"
	"time"

	"softiser/blockdev"
	"softiser/internal/fsm"
)

// poolState is what a pool can do.
//
//	working ◄──────────────► full: writes that need a block wait, or fail
//	   │    no block is free;  │
//	   │    there is one       │
//	   └──────► failed ◄───────┘ a commit failed, or a change half-way: read-only
//	                             until it is reopened
type poolState uint8

const (
	poolWorking poolState = iota
	poolFull
	poolFailed
)

func (s poolState) String() string { return [...]string{"working", "full", "failed"}[s] }

// nextPool says which states may follow each.
var nextPool = fsm.Of([][]poolState{
	poolWorking: {poolFull, poolFailed},
	poolFull:    {poolWorking, poolFailed},
	poolFailed:  {},
})

// condition is the state of a pool, and what waits for a better one: dm-thin's "out of data
// space" mode. The pool's mu guards it.
type condition struct {
	mu     *sync.RWMutex // the pool's
	alarms *alarms
	state  poolState     // see enter
	failed error         // why, if the state is poolFailed
	since  time.Time     // when the pool became full
	room   chan struct{} // closed when there may be space again
}

// enter is the only place where a pool changes its state. One that would go where it
// cannot fails: nobody knows any more what its metadata is.
func (c *condition) enter(to poolState) {
	if !nextPool.Has(c.state, to) {
		err := fsm.Illegal("thin", "a pool", c.state, to)
		c.alarms.say("%v", err)
		if c.failed == nil {
			c.failed = err
		}
		to = poolFailed
	}
	c.state = to
}

// fail makes the pool read-only. The first cause is kept. It is poison, whatever it is: with more space no
// write succeeds.
func (c *condition) fail(err error) {
	if c.state != poolFailed {
		c.failed = fmt.Errorf("%w (%w)", err, blockdev.ErrPoisoned)
		c.enter(poolFailed)
	}
}

// full notes that the pool has run out of blocks, and returns since when it has.
func (c *condition) full(now time.Time) time.Time {
	if c.state == poolWorking {
		c.since = now
		c.enter(poolFull)
	}
	return c.since
}

// roomy notes that there was a free block.
func (c *condition) roomy() {
	c.alarms.told = false
	if c.state == poolFull {
		c.enter(poolWorking)
	}
}

// again lets those that wait for space try again.
func (c *condition) again() {
	close(c.room)
	c.room = make(chan struct{})
}

// waitSpace waits until there may be space; full is what to fail with when there is no more
// waiting. mu is given up while it waits. The time-out runs from when the pool ran out, not
// from when a write came: a full pool holds its writers once, and refuses at once from then
// on. stop may be nil.
func (c *condition) waitSpace(timeout time.Duration, full error, stop blockdev.Stop) error {
	now := time.Now()
	left := c.full(now).Add(timeout).Sub(now)
	if left <= 0 {
		return full
	}
	room := c.room
	c.mu.Unlock()
	defer c.mu.Lock()
	var stopped <-chan struct{}
	if stop != nil {
		stopped = stop.Done()
	}
	// Nobody is woken up when a lease ends and its blocks become free: look again every second.
	t := time.NewTimer(min(left, time.Second))
	defer t.Stop()
	select {
	case <-room:
	case <-t.C:
	case <-stopped:
	}
	// Space and stop may come at the same time: a write that was given up must not be done.
	select {
	case <-stopped:
		return blockdev.ErrStopped
	default:
		return nil
	}
}
