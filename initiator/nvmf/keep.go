package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/nvme"
)

// tick is how exactly time-outs are kept.
const tick = 100 * time.Millisecond

// keeper watches time: keep alive, authentication, and commands without an answer. Its
// fields are those of the goroutine of run.
type keeper struct {
	a       *Association
	pinged  time.Time     // the last keep alive, or what stood for it
	pong    chan error    // of the one that is under way
	proved  time.Time     // when authentication was last over
	proving chan struct{} // closed when the authentication that is under way is over
}

// run keeps the association alive, and looks at its commands, until it is closed.
func (k *keeper) run() {
	a := k.a
	defer a.wg.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	k.proved = time.Now()
	for {
		select {
		case <-t.C:
		case <-k.proving:
			k.proved, k.proving = time.Now(), nil
		case <-a.ctx.Done():
			return
		}
		a.pulse.tick()
		a.mu.Lock()
		live, c := a.state == StateLive && !a.resting, a.ctrl
		a.mu.Unlock()
		if !live {
			k.begin()
			k.pong, k.proved = nil, k.pinged
			continue
		}
		k.expire()
		a.mute.look(c.kato)
		k.prove()
		if c.kato > 0 {
			k.keepAlive(c)
		}
	}
}

// prove begins to authenticate again when that is due.
func (k *keeper) prove() {
	a := k.a
	every := a.cfg.Reauthenticate
	if every <= 0 || a.cfg.Authenticate == nil || k.proving != nil || time.Since(k.proved) < every {
		return
	}
	over := make(chan struct{})
	k.proving = over
	a.wg.Go(func() {
		k.reauthenticate()
		close(over)
	})
}

// keepAlive takes the answer to a Keep Alive, and sends the next one when it is due.
func (k *keeper) keepAlive(c *controller) {
	a := k.a
	select {
	case err := <-k.pong:
		k.pong = nil
		if err != nil {
			a.breakOff(fmt.Errorf("nvmf: keep alive: %w", err))
			return
		}
	default:
	}
	if k.pong != nil || !k.due(c) {
		return
	}
	pong := make(chan error, 1)
	k.pong = pong
	a.wg.Go(func() { k.ping(c.kato, pong) })
}

// begin begins the time until the next keep alive.
func (k *keeper) begin() {
	k.pinged = time.Now()
	k.a.pulse.begin()
}

// due reports whether a Keep Alive is to be sent. The controller hears of the host after half of
// the time-out at the latest: the other half allows for the network and for the controller's
// clock. Where commands keep the association alive as well, one that was sent in the first
// quarter stands for it, which the answer tells in time: so each quarter is looked at. What was
// sent before, and is answered now, the controller has heard of long ago.
func (k *keeper) due(c *controller) bool {
	every, any := c.kato/2, c.ident.CTRATT&nvme.AttrTBKAS != 0
	if any {
		every /= 2
	}
	if time.Since(k.pinged) < every-tick/2 {
		return false
	}
	heard := k.a.pulse.heard.Load()
	k.begin()
	return !any || !heard
}

// ping sends a Keep Alive.
func (k *keeper) ping(limit time.Duration, pong chan<- error) {
	a := k.a
	ctx, cancel := context.WithTimeoutCause(a.ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	_, err := a.admin.do(ctx, func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) }, nil, "Keep Alive")
	if err == nil {
		a.mu.Lock()
		a.pings++
		a.mu.Unlock()
	}
	pong <- err
}

// expire breaks the association off when a command is not answered in time.
func (k *keeper) expire() {
	a := k.a
	limit := a.cfg.CommandTimeout
	if limit < 0 {
		return
	}
	late := 0
	for _, q := range a.io {
		late += q.overdue(a.pulse.now.Load(), int64(limit))
	}
	if late > 0 {
		a.breakOff(fmt.Errorf("nvmf: %d commands without an answer for %v", late, limit))
	}
}

// poke has the namespaces looked at.
func (a *Association) poke() {
	select {
	case a.look <- struct{}{}:
	default:
	}
}

// watch looks at the namespaces when the controller says that something has changed.
func (a *Association) watch() {
	defer a.wg.Done()
	for {
		select {
		case <-a.look:
		case <-a.ctx.Done():
			return
		}
		if err := a.verify(); err != nil && a.ctx.Err() == nil {
			switch s, _ := a.State(); {
			case s == StateClosed: // the controller shuts down, and is to be asked whether it has
			case !errors.Is(err, ErrChanged):
				a.event(Event{Kind: EventAsync, Err: err})
			case a.cfg.Path: // what it was may come back
				a.breakOff(err)
			default:
				a.fail(err)
			}
		}
	}
}
