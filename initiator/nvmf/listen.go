package nvmf

import (
	"context"
	"errors"
	"time"

	"softiser/internal/nvme"
)

// listener hears what the controller tells by itself.
type listener struct{ a *Association }

// run takes asynchronous events, one at a time: a controller tells no more than we ask
// for.
func (l listener) run() {
	a := l.a
	defer a.wg.Done()
	if a.cfg.Carried != nil && a.asked == nil {
		l.catchUp()
	}
	for a.WaitLive(a.ctx) == nil {
		losses := a.losses.Load()
		e, err := l.next()
		if err != nil {
			if !errors.Is(err, errLost) && a.ctx.Err() == nil {
				a.event(Event{Kind: EventAsync, Err: err, Detail: "no events will be heard of"})
				l.awaitLoss(losses) // this controller does not support events, or goes: do not ask it again
			}
			l.pause(tick)
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
		// The controller sends no further event of this kind before its log page is read. The
		// pause bounds what a controller with many events can make us do.
		l.acknowledge(ev.Log())
		l.pause(tick)
	}
}

// awaitLoss waits until the association has been lost since there were so many losses, or the end.
func (l listener) awaitLoss(losses uint32) {
	a := l.a
	for {
		a.mu.Lock()
		same, ch := a.losses.Load() == losses, a.changed
		a.mu.Unlock()
		if !same {
			return
		}
		select {
		case <-ch:
		case <-a.ctx.Done():
			return
		}
	}
}

// next waits for an event. The process before this one may have asked to be told of it.
func (l listener) next() (nvme.CQE, error) {
	a, name := l.a, "Asynchronous Event Request"
	if w := a.asked; w != nil {
		a.asked = nil
		e, err := w.wait(a.ctx)
		return succeeded(e, err, name)
	}
	return a.admin.do(a.ctx, func(s *nvme.SQE) { s.Init(nvme.AdminAsyncEvent, 0) }, nil, name)
}

// catchUp reads the log pages of events that the process before this one was told of, and may
// not have read: until then the controller tells of no other. What they say is looked for anyway.
func (l listener) catchUp() {
	told := l.a.controller().ident.OAES
	if told&nvme.NoticeNamespace != 0 {
		l.acknowledge(nvme.LogChangedNamespaces)
	}
	if told&nvme.NoticeANA != 0 {
		l.acknowledge(nvme.LogANA)
	}
}

// pause waits for a moment, or for the end.
func (l listener) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.a.ctx.Done():
	}
}

// acknowledge reads the log page of an event, which allows the next one of its kind. The
// discovery log is read by whoever wants it.
func (l listener) acknowledge(id nvme.LogID) {
	a := l.a
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
	_, err := a.admin.do(ctx, func(s *nvme.SQE) { s.NewGetLogPage(id, nvme.NSIDAll, 0, uint32(n)) }, make([]byte, n), "Get Log Page")
	if err != nil && !errors.Is(err, errLost) && a.ctx.Err() == nil {
		a.event(Event{Kind: EventAsync, Err: err})
	}
}
