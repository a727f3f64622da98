package nvmf

import (
	"context"
	"errors"
	"sync"
	"time"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// A process that another one replaces brings its controllers to a standstill, and hands them
// over (carry.go): no command begins any more, those that have begun end and are answered,
// but for Asynchronous Event Requests, which go on waiting.
//
//	going ──Rest──▶ coming to rest ──▶ still ──▶ carried, or Resume: going
//	                      └── time is over, or it cannot be had: it goes on, and is not carried

// standstill is a controller that stands still, or why it does not.
type standstill struct {
	why    error    // it is not carried; nil: it stands still, or may yet
	queues []*queue // all of its own, the admin queue first
}

// Why a controller is not carried.
var (
	errStaysDiscovery = errors.New("it is a discovery controller")
	errStaysRoCE      = errors.New("it is over RoCE")
	errStaysTLS       = errors.New("it is over TLS")
	errStaysProof     = errors.New("its host is proving who it is")
	errStaysEnding    = errors.New("it is ending")
	errStaysQueue     = errors.New("a queue is in no state to be carried")
	errStaysBusy      = errors.New("its commands have not ended in time")
)

// Rest brings controllers to a standstill until Resume. Those that do not come to it before
// ctx is done, or cannot, go on.
func (h Handover) Rest(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range h.f.controllers() {
		wg.Go(func() { c.rest(ctx) })
	}
	wg.Wait()
}

// Resume lets controllers go on as if nothing had happened.
func (h Handover) Resume() {
	for _, c := range h.f.controllers() {
		c.resume(nil)
	}
}

// controllers are all that there are, those of the discovery service first.
func (f *Frontend) controllers() (all []*controller) {
	all = f.discovery.all()
	for _, s := range f.list() {
		all = append(all, s.all()...)
	}
	return all
}

// restStep is how often a controller is looked at that comes to rest.
const restStep = 500 * time.Microsecond

// rest brings the controller to a standstill, or says in c.still why there is none.
func (c *controller) rest(ctx context.Context) {
	r := &standstill{}
	c.mu.Lock()
	if q := c.queues[0]; q != nil {
		r.queues = append(r.queues, q)
	}
	for id, q := range c.queues {
		if id != 0 {
			r.queues = append(r.queues, q)
		}
	}
	over := c.over
	c.mu.Unlock()
	r.why = c.staysFor(r.queues, over)
	c.still.Store(r)
	if r.why != nil {
		return
	}
	c.events.hush(true)
	for _, q := range r.queues {
		if !q.parkable().Park(func() bool { return q.half == nil }) {
			c.resume(errStaysQueue)
			return
		}
	}
	for !r.stands() {
		select {
		case <-time.After(restStep):
		case <-ctx.Done():
			c.resume(errStaysBusy)
			return
		}
	}
}

// staysFor says why the controller cannot be carried, whatever it does.
func (c *controller) staysFor(queues []*queue, over bool) error {
	switch {
	case c.sub.kind == nvme.TypeDiscovery:
		return errStaysDiscovery
	case over || len(queues) == 0 || queues[0].id != 0:
		return errStaysEnding
	}
	for _, q := range queues {
		switch {
		case q.conn.Transport == portal.TLS:
			return errStaysTLS
		case q.parkable() == nil:
			return errStaysRoCE
		case !q.proved.Load() || q.auth != nil && q.auth.underWay():
			return errStaysProof
		case q.finishes.Load() || q.isOver():
			return errStaysEnding
		}
	}
	return nil
}

// parkable is a transport that can stand still, and go on in another process.
type parkable interface {
	Park(may func() bool) bool
	Stands() bool
	Still() bool
	Unpark()
	Outstanding(e *nvme.SQE) *nvme.Command
}

// parkable is the transport of a queue as one; nil: it is none.
func (q *queue) parkable() parkable {
	if q.conn.Transport == portal.RoCE {
		return nil
	}
	p, _ := q.t.(parkable)
	return p
}

// underWay reports whether the host has begun to prove itself.
func (a *authentication) underWay() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.m != nil || a.busy
}

// stands reports whether nothing of the queues is under way. They are silent then.
func (r *standstill) stands() bool {
	for _, q := range r.queues {
		// In this order: what stands begins nothing.
		if !q.parkable().Stands() || q.open.Load() != int64(q.waitingEvents()) {
			return false
		}
	}
	for _, q := range r.queues {
		if !q.parkable().Still() {
			return false
		}
	}
	return true
}

// resume lets the controller go on; why says, until the process goes on as a whole, that it
// is not carried.
func (c *controller) resume(why error) {
	var next *standstill
	if why != nil {
		next = &standstill{why: why}
	}
	r := c.still.Swap(next)
	if r == nil || r.why != nil {
		return
	}
	for _, q := range r.queues {
		q.parkable().Unpark()
	}
	c.events.hush(false)
}

// resting reports whether the controller stands still, or is about to: nobody asks whether
// its host is there.
func (c *controller) resting() bool {
	r := c.still.Load()
	return r != nil && r.why == nil
}
