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
	for a.WaitLive(a.ctx) == nil {
		e, err := a.admin.do(a.ctx, func(s *nvme.SQE) { s.Init(nvme.AdminAsyncEvent, 0) }, nil, "Asynchronous Event Request")
		if err != nil {
			if !errors.Is(err, errLost) && a.ctx.Err() == nil {
				a.event(Event{Kind: EventAsync, Err: err, Detail: "no events will be heard of"})
				<-a.ctx.Done() // the controller does not support events: do not ask again
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
