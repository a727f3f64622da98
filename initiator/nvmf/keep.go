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
	pinged  time.Time     // the last keep alive, or what stands for it
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
		a.now.Store(int64(time.Since(a.begun)))
		a.mu.Lock()
		live, c := a.state == StateLive && !a.resting, a.ctrl
		a.mu.Unlock()
		if !live {
			k.pinged, k.pong = time.Now(), nil
			k.proved = k.pinged
			continue
		}
		k.expire()
		a.mute.look(c.kato)
		if every := a.cfg.Reauthenticate; every > 0 && a.cfg.Authenticate != nil && k.proving == nil && time.Since(k.proved) >= every {
			over := make(chan struct{})
			k.proving = over
			a.wg.Go(func() {
				k.reauthenticate()
				close(over)
			})
		}
		if c.kato == 0 {
			continue
		}
		select {
		case err := <-k.pong:
			k.pong = nil
			if err != nil {
				a.breakOff(fmt.Errorf("nvmf: keep alive: %w", err))
				continue
			}
		default:
		}
		// Sent after half of the time-out: the other half allows for the network and for the controller's clock.
		if k.pong != nil || time.Since(k.pinged) < c.kato/2-tick/2 {
			continue
		}
		k.pinged = time.Now()
		if a.heard.Swap(false) && c.ident.CTRATT&nvme.AttrTBKAS != 0 {
			continue // commands keep the association alive as well
		}
		pong := make(chan error, 1)
		k.pong = pong
		a.wg.Go(func() { k.ping(c.kato, pong) })
	}
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
		late += q.overdue(a.now.Load(), int64(limit))
	}
	if late > 0 {
		a.breakOff(fmt.Errorf("nvmf: %d commands without an answer for %v", late, limit))
	}
}

// breakOff ends the connections of an association that does not work; it is made again.
func (a *Association) breakOff(reason error) {
	for _, q := range a.queues() {
		if tr, _ := q.connection(); tr != nil {
			tr.Terminate(reason)
		}
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
			if errors.Is(err, ErrChanged) {
				a.fail(err)
				continue
			}
			a.event(Event{Kind: EventAsync, Err: err})
		}
	}
}
