// Package silence finds out that a peer has gone and another has taken its place behind the
// same address, as a cluster's floating address has it after a power cut. TCP notices only
// when it repeats a segment, which it does less and less often.
//
//	something comes, or nothing is waited for ──▶ quiet
//	quiet ──Times.Ping── a ping ──Times.Probe── probes on a second connection
//	   probe fails: again        answered, and the first one is still mute: it is given up
//
// A peer that answers the ping keeps its connection, however long it takes for what was asked
// of it; so does one that answers neither, or both.
package silence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"softiser/initiator/internal/pause"
)

// Times are how long a peer may be silent while something is waited for. Silent means that
// not a byte comes.
type Times struct {
	Ping  time.Duration // before it is asked for a sign of life
	Probe time.Duration // before a second connection is tried; 0 or less: never
}

// Default times.
const (
	DefaultPing  = 500 * time.Millisecond
	DefaultProbe = time.Second
)

// Check says what is wrong with t, which has its defaults: a ping comes before the probe.
func (t Times) Check() error {
	if t.Probe > 0 && (t.Ping < 0 || t.Ping >= t.Probe) {
		return fmt.Errorf("a ping after %v of silence has to come before the probe after %v", t.Ping, t.Probe)
	}
	return nil
}

// WithDefaults returns t with zero fields replaced.
func (t Times) WithDefaults() Times {
	if t.Probe == 0 {
		t.Probe = DefaultProbe
	}
	if t.Ping == 0 {
		t.Ping = DefaultPing
		if t.Probe > 0 {
			t.Ping = min(t.Ping, t.Probe/2)
		}
	}
	return t
}

// Action is what Look asks for.
type Action uint8

// Actions.
const (
	Nothing Action = iota
	Ping
	Probe
)

// Watch follows one connection, or several to one peer. The zero value is ready; it is not
// safe for concurrent use.
type Watch struct {
	heard  uint64
	quiet  time.Duration // since when nothing comes though something is waited for
	pinged time.Duration // when Look last returned Ping
	asked  bool          // it has returned Ping since quiet
	waited bool          // something was outstanding at the last look
}

// Look is called now and then: now is a clock's reading, heard a number that changes with
// every byte that comes, waiting whether an answer is outstanding.
func (w *Watch) Look(t Times, now time.Duration, heard uint64, waiting bool) Action {
	if heard != w.heard || !waiting || !w.waited {
		w.heard, w.quiet, w.asked, w.waited = heard, now, false, waiting
		return Nothing
	}
	switch {
	case t.Probe <= 0:
	case !w.asked && now-w.quiet >= t.Ping:
		w.asked, w.pinged = true, now
		return Ping
	case w.asked && now-w.quiet >= t.Probe && now-w.pinged >= t.Probe-t.Ping:
		return Probe
	}
	return Nothing
}

const (
	maxPatience = 5 // the most times that Patience doubles
	// young is the age, in multiples of Probe, up to which a connection counts as given up soon.
	young = 10
)

// Patience makes the time before a probe longer after connections that had to be given up
// soon: a peer that is merely slow is left more time.
type Patience struct{ soon uint }

// Of returns t for the next connection.
func (p *Patience) Of(t Times) Times {
	if t.Probe > 0 {
		t.Probe <<= p.soon
	}
	return t
}

// GivenUp takes note that a connection was given up which had been there for age.
func (p *Patience) GivenUp(t Times, age time.Duration) {
	if age > young*t.Probe {
		p.soon = 0
	} else if p.soon < maxPatience {
		p.soon++
	}
}

const (
	retry = 50 * time.Millisecond // between probes
	// grace is how long a peer that has answered a probe may take to answer on the first
	// connection as well: it may have been stopped, and goes on.
	grace = 250 * time.Millisecond
)

// Patience for one probe: for its connection, after which the next probe begins, and for all
// of it.
func (t Times) dial() time.Duration  { return t.Probe - t.Ping }
func (t Times) limit() time.Duration { return 2 * t.Probe }

// Confirm probes until that succeeds, and reports whether the peer is still mute then. It
// returns false as soon as it is not, and when ctx ends. dial bounds the time for a probe's
// connection. A probe that is connected and not answered has not failed, for a peer may be
// slow to answer; but the one that it waits for may have been stopped, and have lost its
// address since: others begin beside it.
func Confirm(ctx context.Context, t Times, probe func(ctx context.Context, dial time.Duration) bool, mute func() bool) bool {
	var probes sync.WaitGroup
	defer probes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan struct{}, 1)
	for mute() {
		failed := make(chan struct{})
		probes.Go(func() {
			one, cancel := context.WithTimeout(ctx, t.limit())
			defer cancel()
			if !probe(one, t.dial()) {
				close(failed)
				return
			}
			select {
			case answered <- struct{}{}:
			default:
			}
		})
		next := time.NewTimer(t.dial())
		select {
		case <-answered:
			return pause.For(ctx, grace) && mute()
		case <-failed:
			if !pause.For(ctx, retry) {
				return false
			}
		case <-next.C:
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// ErrMute is in the error of an attempt that was given up for a fresh one.
var ErrMute = errors.New("it is not answered, though a second connection is")

// Attempt makes an attempt to connect to a peer that was lost, beside which others are tried
// when it takes longer than t.Probe: it may have got as far as a host that is stopped, or its
// SYN may wait for TCP to repeat it. When another is answered and the attempt still is not,
// its context ends, and the error is ErrMute.
func Attempt(ctx context.Context, t Times, attempt func(context.Context) error, probe func(ctx context.Context, dial time.Duration) bool) error {
	if t.Probe <= 0 {
		return attempt(ctx)
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	under, end := context.WithCancel(ctx)
	defer end()
	mute := false
	var watch sync.WaitGroup
	watch.Go(func() {
		mute = pause.For(under, t.Probe) && Confirm(under, t, probe, func() bool { return under.Err() == nil })
		if mute {
			giveUp()
		}
	})
	err := attempt(ctx)
	end()
	watch.Wait()
	if err != nil && mute {
		err = fmt.Errorf("%w: %w", ErrMute, err)
	}
	return err
}
