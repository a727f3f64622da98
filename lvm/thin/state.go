package thin

import (
	"fmt"
	"slices"
	"time"
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
var nextPool = [][]poolState{
	poolWorking: {poolFull, poolFailed},
	poolFull:    {poolWorking, poolFailed},
	poolFailed:  nil,
}

// badTransition is told of a transition that the table does not have, which is a mistake
// of ours. Tests make it panic.
var badTransition = func(error) {}

// enterLocked is the only place where a pool changes its state. One that would go where
// it cannot fails: nobody knows any more what its metadata is.
func (p *Pool) enterLocked(to poolState) {
	if !slices.Contains(nextPool[p.state], to) {
		err := fmt.Errorf("internal error: a thin pool cannot go from %v to %v", p.state, to)
		badTransition(err)
		p.notice("%v", err)
		if p.failed == nil {
			p.failed = err
		}
		to = poolFailed
	}
	p.state = to
}

// failLocked makes the pool read-only. The first cause is kept.
func (p *Pool) failLocked(err error) {
	if p.state != poolFailed {
		p.failed = err
		p.enterLocked(poolFailed)
	}
}

// fullLocked notes that the pool has run out of blocks, and returns since when it has.
func (p *Pool) fullLocked(now time.Time) time.Time {
	if p.state == poolWorking {
		p.out.since = now
		p.enterLocked(poolFull)
	}
	return p.out.since
}

// roomyLocked notes that there was a free block.
func (p *Pool) roomyLocked() {
	p.out.told = false
	if p.state == poolFull {
		p.enterLocked(poolWorking)
	}
}
