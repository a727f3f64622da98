package multipath

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/initiator/blockio"
)

// fence makes one attempt to get to know that nothing of what the path carried can take
// effect any more, and then lets go what waits for that. A path that is up is asked too: it may
// have several sessions, and has lost one of them.
func (p *path) fence() (done bool) {
	v := p.v
	v.mu.Lock()
	p.fencing.join(&p.limbo)
	others, through := p.othersLocked()
	v.mu.Unlock()
	err := p.tryFence(others, through)
	v.mu.Lock()
	late := v.cfg.NoPathRetry > 0 && time.Since(p.lost) >= v.cfg.NoPathRetry
	if err != nil && !late {
		p.fencing.join(&p.limbo) // what was lost meanwhile comes behind
		p.limbo.join(&p.fencing)
		v.mu.Unlock()
		return false
	}
	var end []*request
	n := p.fencing.n
	if err == nil {
		v.held.join(&p.fencing)
		v.eventLocked("%s: fenced, %s repeated", p.dial.Name, english.Plural(n, "request is", "requests are"))
	} else {
		end = p.fencing.take(idle)
	}
	v.settleUnlock()
	endAll(end, &unfencedError{v.cfg.NoPathRetry, err})
	return true
}

// othersLocked are the other paths that are up, and one of them that serves the volume; nil: none does.
func (p *path) othersLocked() (others []blockio.Path, through blockio.Path) {
	for _, o := range p.v.paths {
		if o == p || !o.up {
			continue
		}
		others = append(others, o.vol)
		if o.serves() {
			through = o.vol
		}
	}
	return others, through
}

// tryFence asks for the end of what the path carried, by Config.Fence. No lock is held: it waits for the target.
func (p *path) tryFence(others []blockio.Path, through blockio.Path) error {
	v := p.v
	ctx, cancel := context.WithTimeout(v.ctx, v.cfg.CheckInterval)
	defer cancel()
	err := p.vol.Fence(ctx, others)
	if err != nil && v.cfg.Fence == FenceReset && through != nil {
		err = through.Reset(ctx)
	}
	return err
}

// unfencedError ends a write whose path was not fenced in time. It is a time-out, whatever the last
// attempt to fence the path has ended with.
type unfencedError struct {
	after time.Duration
	last  error
}

func (e *unfencedError) Error() string {
	within := ""
	if e.after != FailFast {
		within = fmt.Sprintf(" within %v", e.after)
	}
	return fmt.Sprintf("%v: the lost path could not be fenced%s: %v", blockio.ErrOutcomeUnknown, within, e.last)
}

func (e *unfencedError) Unwrap() []error {
	return []error{blockio.ErrOutcomeUnknown, os.ErrDeadlineExceeded}
}

// unknownLocked is how many changes wait until the path is fenced.
func (p *path) unknownLocked() int { return p.fencing.n + p.limbo.n }
