package nvmf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/silence"
)

// This file is how an association that has lost its connections is made again, or given up.

// lost takes the end of a connection. It does not wait.
func (a *Association) lost(err error) {
	a.mu.Lock()
	if a.state != StateLive {
		a.mu.Unlock()
		return // establish finds the loss itself, or the association is being closed
	}
	a.losses.Add(1)
	a.since = time.Now()
	a.toLocked(StateReconnecting)
	a.noteLocked(Event{Kind: EventLost, Err: err})
	a.wg.Add(1)
	a.mu.Unlock()
	go a.recover(err, time.Now())
}

// recover makes the association again until that works or takes too long.
func (a *Association) recover(cause error, since time.Time) {
	defer a.wg.Done()
	a.events.Tell()
	a.hangUp(errLost)
	for _, q := range a.io {
		q.retire()
	}
	if a.cfg.Path {
		a.down(cause)
	}
	wait := firstRetry
	var refused time.Time // since when the controller has refused us; zero: it has not
	for {
		pause := wait/2 + rand.N(wait/2+1)
		if limit := a.cfg.CtrlLossTimeout; limit > 0 && !a.cfg.Path {
			pause = min(pause, max(limit-time.Since(since), 0))
		}
		select {
		case <-time.After(pause):
		case <-a.ctx.Done():
			return
		}
		a.cfg.pace.Attempt(time.Since(since))
		err := a.again(since)
		if err == nil || a.ctx.Err() != nil {
			return
		}
		down := time.Since(since)
		if !final(err) {
			refused = time.Time{}
		} else if refused.IsZero() {
			refused = time.Now()
		}
		if why := a.givesUp(err, down, refused); why != nil {
			a.fail(why)
			return
		}
		wait = a.nextWait(err, wait)
		a.mu.Lock()
		a.failed++
		a.mu.Unlock()
		a.event(Event{Kind: EventRetry, Err: err, Wait: wait, Down: down})
	}
}

// nextWait is how long to wait after an attempt that has failed with err, before which wait was waited.
func (a *Association) nextWait(err error, wait time.Duration) time.Duration {
	wait = a.cfg.pace.Next(err, min(2*wait, a.cfg.ReconnectDelay))
	switch {
	case errors.Is(err, silence.ErrMute):
		return firstRetry // others are answered there
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH):
		return min(wait, refusedRetry)
	}
	return wait
}

// startGrace is how long a controller that refuses its host for good is not believed when
// the association is looked for for ever: one that has just been started may not have its
// subsystems yet.
const startGrace = 20 * time.Second

// final reports whether the controller has refused the host and says that it would do so
// again: the subsystem is gone, or the host may not use it any more.
func final(err error) bool {
	ce, ok := errors.AsType[*ConnectError](err)
	return ok && ce.DoNotRetry
}

// givesUp says why the association is not looked for any longer, after an attempt has
// failed with err; nil: it is. refused is since when all have been refused for good.
func (a *Association) givesUp(err error, down time.Duration, refused time.Time) error {
	limit := a.cfg.CtrlLossTimeout
	switch {
	case a.cfg.Path:
		return nil
	case errors.Is(err, ErrChanged):
		return err
	case limit > 0 && down >= limit:
		return fmt.Errorf("no association within the controller loss time-out of %v: %w", limit, err)
	case limit < 0 && !refused.IsZero() && time.Since(refused) >= startGrace:
		return fmt.Errorf("the controller has refused us for %v, and would go on: %w", startGrace, err)
	}
	return nil
}

// again is one attempt.
func (a *Association) again(since time.Time) error {
	err := a.mute.attempt(a.establish)
	if err == nil {
		err = a.verify()
	}
	if err == nil && !a.live() {
		err = errLost
	}
	if err != nil {
		a.hangUp(errLost)
		return err
	}
	n := 0
	for _, q := range a.io[a.open.Load():] {
		n += q.vacate()
	}
	for _, q := range a.granted() {
		q.refit()
		n += q.flow()
	}
	a.announce(Event{Kind: EventRecovered, Down: time.Since(since), Replayed: n})
	a.poke()
	return nil
}

// verify looks whether the namespaces are what they were.
func (a *Association) verify() error {
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.ConnectTimeout)
	defer cancel()
	a.mu.Lock()
	spaces := slices.Clone(a.spaces)
	a.mu.Unlock()
	for _, n := range spaces {
		if err := n.refresh(ctx); err != nil {
			return err
		}
	}
	return nil
}

// down fails what waits, and what comes until the association is back.
func (a *Association) down(err error) {
	if a.ends(StateDown, Event{Kind: EventDown, Err: err}) {
		a.events.Tell()
		a.failAll(fmt.Errorf("%w: %w", blockio.ErrSessionLost, err))
	}
}

// fail gives the association up.
func (a *Association) fail(err error) {
	if a.ends(StateFailed, Event{Kind: EventFailed, Err: err}) {
		a.hangUp(err)
		for _, q := range a.io {
			q.retire()
		}
		a.events.Tell()
		a.failAll(fmt.Errorf("%w: %w", blockio.ErrSessionLost, err))
	}
}

// ends changes to a state in which commands fail, because of e, and notes e. It reports false where that state cannot follow.
func (a *Association) ends(s State, e Event) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.toLocked(s) {
		return false
	}
	a.err = e.Err
	a.noteLocked(e)
	return true
}

func (a *Association) failAll(err error) {
	for _, q := range a.io {
		q.fail(err)
	}
}
