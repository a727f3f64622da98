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

// keep watches time: keep alive, and commands without an answer.
func (a *Association) keep() {
	defer a.wg.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	var pinged time.Time // the last keep alive, or what stands for it
	var pong chan error  // of the one that is under way
	proved := time.Now()
	var proving chan struct{} // closed when the authentication that is under way is over
	for {
		select {
		case <-t.C:
		case <-proving:
			proved, proving = time.Now(), nil
		case <-a.ctx.Done():
			return
		}
		a.now.Store(int64(time.Since(a.begun)))
		a.mu.Lock()
		live, c := a.state == StateLive, a.ctrl
		a.mu.Unlock()
		if !live {
			pinged, pong = time.Now(), nil
			proved = pinged
			continue
		}
		a.expire()
		a.silent(c.kato)
		if every := a.cfg.Reauthenticate; every > 0 && a.cfg.Authenticate != nil && proving == nil && time.Since(proved) >= every {
			proving = make(chan struct{})
			a.wg.Go(func() {
				a.reauthenticate()
				close(proving)
			})
		}
		if c.kato == 0 {
			continue
		}
		select {
		case err := <-pong:
			pong = nil
			if err != nil {
				a.breakOff(fmt.Errorf("nvmf: keep alive: %w", err))
				continue
			}
		default:
		}
		// Half of the time-out is left for the way, and for the controller's clock.
		if pong != nil || time.Since(pinged) < c.kato/2-tick/2 {
			continue
		}
		pinged = time.Now()
		if a.heard.Swap(false) && c.ident.CTRATT&nvme.AttrTBKAS != 0 {
			continue // commands keep the association alive as well
		}
		pong = make(chan error, 1)
		a.wg.Go(func() { a.ping(c.kato, pong) })
	}
}

// ping sends a Keep Alive.
func (a *Association) ping(limit time.Duration, pong chan<- error) {
	ctx, cancel := context.WithTimeoutCause(a.ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	_, err := a.do(ctx, func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) }, nil, "Keep Alive")
	if err == nil {
		a.mu.Lock()
		a.pings++
		a.mu.Unlock()
	}
	pong <- err
}

// expire breaks the association off when a command is not answered in time.
func (a *Association) expire() {
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

// listen takes asynchronous events, one at a time: a controller tells no more than we ask
// for.
func (a *Association) listen() {
	defer a.wg.Done()
	for a.WaitLive(a.ctx) == nil {
		e, err := a.do(a.ctx, func(s *nvme.SQE) { s.Init(nvme.AdminAsyncEvent, 0) }, nil, "Asynchronous Event Request")
		if err != nil {
			if !errors.Is(err, errLost) && a.ctx.Err() == nil {
				a.event(Event{Kind: EventAsync, Err: err, Detail: "no events will be heard of"})
				<-a.ctx.Done() // it does not have them
			}
			a.pause(tick)
			continue
		}
		ev := nvme.Event(e.DW0())
		a.event(Event{Kind: EventAsync, Detail: ev.String()})
		switch ev {
		case nvme.EventNamespaceChanged, nvme.EventANAChanged:
			a.poke()
		case nvme.EventDiscoveryChanged:
			a.event(Event{Kind: EventDiscovery})
		}
		// The log page is read before the next event can come of it; this is what
		// bounds a controller that has much to tell.
		a.acknowledge(ev.Log())
		a.pause(tick)
	}
}

// pause waits for a moment, or for the end.
func (a *Association) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.ctx.Done():
	}
}

// acknowledge reads the log page of an event, which allows the next one of its kind. The
// discovery log is read by whoever wants it.
func (a *Association) acknowledge(id nvme.LogID) {
	n := 512
	switch id {
	case nvme.LogChangedNamespaces:
		n = nvme.ChangedLen
	case nvme.LogANA:
		n = 4096
	case nvme.LogDiscovery:
		n = nvme.DiscoveryEntryLen
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.ConnectTimeout)
	defer cancel()
	_, err := a.do(ctx, func(s *nvme.SQE) { s.NewGetLogPage(id, nvme.NSIDAll, 0, uint32(n)) }, make([]byte, n), "Get Log Page")
	if err != nil && !errors.Is(err, errLost) && a.ctx.Err() == nil {
		a.event(Event{Kind: EventAsync, Err: err})
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
