package multipath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// path is one way to the volume. Its keeper is the only one that opens it and asks for
// its state.
type path struct {
	v    *Volume
	dial Dialer
	wake chan struct{} // makes the keeper look; one slot
	turn chan struct{} // full while the keeper does something, or must not (Volume.Rest); one slot
	vol  blockio.Path  // nil until it has been opened; then it stays

	carried *Carried // to go on with; the keeper's
	rest    rest     // of Rest and Resume

	outstanding atomic.Int32 // requests that it carries

	// Volume.mu guards the rest.
	condition
	// stands says that the path has not served the volume since its target has said so, or another
	// path has taken over. One that is in transition and did serve it does not stand by: that it serves it
	// again says nothing of others.
	stands bool
	why    error
	untold bool      // that why keeps it from being opened
	unseen bool      // nothing has been told of it, and it has not been up
	lost   time.Time // when what is in limbo was lost
	limbo  queue     // changes whose outcome is unknown, until the path is fenced
	// fencing are those of limbo that the present attempt to fence the path is about. What is lost
	// while it is made may have been sent behind it.
	fencing queue
	// standby are the paths that did not serve the volume when this one was lost. When one
	// of them does, and its target knows of no other port that does, the storage has moved
	// the volume, and this path's owner writes no more.
	standby []*path
	// moved says that the storage has moved the volume away from this path, as standby tells,
	// and that the path's target has not answered since. It may have gone without this being
	// known yet, so it is asked before the path is used again; what the path still carries was
	// given to an owner that writes no more.
	moved bool
}

// condition is what a look at a path finds.
type condition struct {
	up     bool
	access blockio.Access // says nothing unless up
	shared bool           // the target has other ports that serve the volume
	info   blockdev.Info
}

// serves reports whether requests may go to the path.
func (c *condition) serves() bool { return c.up && c.access.Usable() }

var errOpening = errors.New("it is being opened")

// reasonLocked says why the path is not used.
func (p *path) reasonLocked() error {
	if !p.up {
		return p.why
	}
	return fmt.Errorf("the target says %v", p.access)
}

// nudge makes the keeper look.
func (p *path) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// open makes one attempt.
func (p *path) open(ctx context.Context) error {
	vol, err := p.connect(ctx)
	if err == nil {
		if err = p.v.admit(vol); err != nil {
			err = errors.Join(err, vol.Close())
		}
	}
	p.v.mu.Lock()
	if err != nil {
		if was := p.why; was == nil || was.Error() != err.Error() {
			p.untold = true
		}
		p.why = err
		p.v.tellUnusedLocked()
	} else {
		p.vol, p.untold = vol, false
	}
	p.v.mu.Unlock()
	p.v.events.Tell()
	if err == nil {
		vol.OnResize(func(blockdev.Info) { p.nudge() })
	}
	return err
}

// connect opens the path, with what another process had of it if there is something.
func (p *path) connect(ctx context.Context) (blockio.Path, error) {
	h := Hooks{Cache: p.v.cache, Changed: p.nudge, Carried: p.carried}
	p.carried = nil
	if h.Carried != nil {
		defer h.Carried.Close()
	} else if after := p.v.cfg.After; after != nil {
		select {
		case <-after:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return p.dial.Open(ctx, h)
}

// first opens the path before it has a keeper, and asks for its state.
func (p *path) first(ctx context.Context) error {
	err := p.open(ctx)
	if err == nil {
		p.check(ctx)
	}
	return err
}

// keep opens the path and follows its state until the volume is closed.
func (p *path) keep(tried chan<- struct{}) {
	v := p.v
	defer v.wg.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		select {
		case <-v.ctx.Done():
			return
		case p.turn <- struct{}{}:
		}
		timer.Reset(p.round())
		<-p.turn
		if tried != nil {
			tried <- struct{}{}
			tried = nil
		}
	}
}

// Pauses of a keeper.
const (
	fencePause      = 100 * time.Millisecond // before it is tried again to fence a path
	transitionPause = 200 * time.Millisecond // while the target changes the state
	noPathPause     = 250 * time.Millisecond // while requests wait for a path: the volume is moving to another node
)

// round does what is to be done, and returns when to look again at the latest.
func (p *path) round() time.Duration {
	v := p.v
	if p.vol == nil && p.open(v.ctx) != nil {
		return v.cfg.CheckInterval
	}
	p.check(v.ctx)
	v.mu.Lock()
	waiting, access := !p.limbo.Empty(), p.access
	v.mu.Unlock()
	switch {
	case waiting && !p.fence():
		return min(fencePause, v.cfg.CheckInterval)
	case access == blockio.AccessTransitioning:
		return min(transitionPause, v.cfg.CheckInterval)
	case len(*v.active.Load()) == 0:
		return min(noPathPause, v.cfg.CheckInterval)
	}
	return v.cfg.CheckInterval
}

// check asks for the state of the path and acts on what has changed.
func (p *path) check(ctx context.Context) {
	v := p.v
	now := condition{access: blockio.AccessGone}
	up, why := p.vol.Connected()
	if up {
		limit, cancel := context.WithTimeoutCause(ctx, max(v.cfg.CheckInterval, time.Second),
			fmt.Errorf("the target did not say what the path is good for: %w", context.DeadlineExceeded))
		now.access, now.shared, why = p.vol.Access(limit)
		now.up = why == nil
		cancel()
	}
	p.set(now, why)
}

// set takes the state of the path but for its geometry, which it looks up. why says why it is not up.
func (p *path) set(now condition, why error) {
	v := p.v
	v.mu.Lock()
	now.info = p.vol.Info()
	answers := p.moved && now.up
	p.moved = p.moved && !now.up
	if !answers && p.condition == now {
		p.why = why
		v.mu.Unlock()
		return
	}
	was, stoodBy := p.condition, p.standsByLocked()
	switch {
	case now.up && p.unseen:
		p.unseen = false
		v.events.Put(noNews)
	case now.up && (!was.up || was.access != now.access):
		v.eventLocked("%s: %v", p.dial.Name, now.access)
	case was.up && !now.up:
		p.downLocked(why)
		if v.ctx.Err() == nil { // else we go, and nothing is lost
			v.eventLocked("%s: lost: %v", p.dial.Name, why)
		}
	}
	p.condition, p.why = now, why
	if now.up && now.access != blockio.AccessTransitioning {
		p.stands = !now.access.Usable()
	}
	if now.serves() && !was.serves() && !now.shared {
		p.takeOverLocked(stoodBy)
	}
	v.settleUnlock()
}

// takeOverLocked takes note that the storage has moved the volume to the path, which serves it from now on as the only
// one: to those that it stood by for, which are up if stoodBy, it has been moved away from, and nothing that they
// carry is waited for.
func (p *path) takeOverLocked(stoodBy bool) {
	v := p.v
	for _, o := range v.paths {
		if o == p || !(o.up && stoodBy || !o.up && slices.Contains(o.standby, p)) {
			continue
		}
		o.standby, o.moved, o.stands = nil, true, true
		o.nudge()
		if n := o.unknownLocked(); n > 0 {
			v.eventLocked("%s has taken over and repeats %s that %s has left unknown", p.dial.Name, english.Plural(n, "request", ""), o.dial.Name)
		}
		v.held.join(&o.fencing)
		v.held.join(&o.limbo)
	}
}

// leave takes note that the path has failed a request with err, which is one of those
// that say something of the path.
func (p *path) leave(err error) {
	v := p.v
	v.mu.Lock()
	switch {
	case errors.Is(err, blockio.ErrInaccessible):
		if !p.serves() {
			v.mu.Unlock()
			return
		}
		p.access = blockio.AccessTransitioning // until the keeper has asked for the state
		v.eventLocked("%s: not accessible: %v", p.dial.Name, err)
	case p.up:
		p.downLocked(err)
		v.eventLocked("%s: lost: %v", p.dial.Name, err)
	default:
		v.mu.Unlock()
		return
	}
	v.settleUnlock()
	p.nudge()
}

// downLocked takes note that the path is lost.
func (p *path) downLocked(err error) {
	p.up, p.why, p.lost = false, err, time.Now()
	p.standby = nil
	for _, o := range p.v.paths {
		if o.standsByLocked() {
			p.standby = append(p.standby, o)
		}
	}
}

// standsByLocked reports whether the path, which is up, may take over the volume from another one.
func (p *path) standsByLocked() bool { return p.up && !p.access.Usable() && p.stands }
