package nvmf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/inorder"
	"softiser/initiator/internal/redial"
	"softiser/internal/nvme"
)

// Association is what a host has with one controller: an admin queue and I/O queues. It
// survives the loss of its connections by making a new one with another controller of the
// same subsystem.
type Association struct {
	cfg     Config
	dialer  nvme.HostDialer
	release func() error // gives back what dialer has

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	pulse  pulse
	losses atomic.Uint32 // of the association
	turn   atomic.Uint32 // the queue for the next new request

	admin  adminQueue
	spoken bool         // the port has shown that it speaks the transport; written before the first association is there
	io     []*queue     // all that Config asks for, made by the first connect
	open   atomic.Int32 // how many of them the controller has granted, those at the front

	mute mute

	events *inorder.Teller[Event]

	asked *call // for an event, of the process before this one; nil: none. See listener.next

	mu      sync.Mutex // guards the rest; taken before a queue's
	state   State
	resting bool          // nothing is sent; see rest.go
	changed chan struct{} // closed when state changes
	err     error         // why it has failed or is down
	since   time.Time     // of the last loss
	ctrl    *controller   // of the last connect
	spaces  []*Namespace
	logins  uint64
	failed  uint64 // attempts to connect again
	pings   uint64
	aborts  uint64
	look    chan struct{} // the controller says that something has changed

	announcing bool    // it is live, and that is not told yet; see announce
	behind     []Event // to be told then
}

// controller is what one has said when the association was made.
type controller struct {
	id      uint16
	cap     nvme.Cap
	version nvme.Version
	ident   *nvme.Controller
	limits  nvme.CommandSetLimits
	kato    time.Duration // keep alive timeout; 0: none
	holds   time.Duration // how long the controller may keep us without a keep alive: kato as it rounds it up
}

// Connect makes an association with cfg.Subsystem at cfg.Address.
func Connect(ctx context.Context, cfg Config) (*Association, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(DefaultPort); err != nil {
		return nil, err
	}
	return connect(ctx, cfg)
}

// connect makes the first association. cfg has its defaults.
func connect(ctx context.Context, cfg Config) (*Association, error) {
	cfg.pace = &redial.Pace{}
	dialer, release, err := cfg.dialer()
	if err != nil {
		return nil, err
	}
	a := &Association{cfg: cfg, dialer: dialer, release: release, events: inorder.New(cfg.OnEvent), pulse: pulse{start: time.Now()}, changed: make(chan struct{}), look: make(chan struct{}, 1)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.admin = adminQueue{newQueue(a, 0, adminDepth)}
	a.mute.a = a
	begin := a.establish
	if cfg.Carried != nil {
		begin = a.takeUp
	}
	err = begin(ctx)
	if err == nil && !a.live() {
		err = errLost
	}
	if err != nil {
		a.hangUp(err)
		a.cancel()
		err = fmt.Errorf("nvmf: %s at %s: %w", cfg.Subsystem, cfg.Address, err)
		return nil, errors.Join(err, a.release())
	}
	for _, q := range a.granted() {
		q.flow()
	}
	a.announce(Event{Kind: EventConnected, Detail: a.Describe()})
	a.wg.Add(3)
	go (&keeper{a: a}).run()
	go listener{a}.run()
	go a.watch()
	return a, nil
}

// controller is that of the last connect; nil before the first.
func (a *Association) controller() *controller {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ctrl
}

// queues are all of them, the admin queue first.
func (a *Association) queues() []*queue { return append([]*queue{a.admin.queue}, a.io...) }

// granted are the I/O queues that the controller has granted.
func (a *Association) granted() []*queue { return a.io[:a.open.Load()] }

// connected are the queues that have a connection, the admin queue first.
func (a *Association) connected() []*queue { return append([]*queue{a.admin.queue}, a.granted()...) }

// breakOff ends the connections of an association that does not work; it is made again.
func (a *Association) breakOff(reason error) {
	for _, q := range a.queues() {
		if tr, _ := q.connection(); tr != nil {
			tr.Terminate(reason)
		}
	}
}

// hangUp closes every connection, and returns when no memory of commands is in use.
func (a *Association) hangUp(reason error) {
	a.breakOff(reason)
	for _, q := range a.queues() {
		q.terminate(reason)
	}
}

// toLocked is the only writer of state.
func (a *Association) toLocked(s State) bool {
	if !nextStates.Has(a.state, s) {
		return false
	}
	a.state = s
	close(a.changed)
	a.changed = make(chan struct{})
	return true
}

// live lets commands flow after establish; false: a connection has been lost meanwhile. With true
// announce is due.
func (a *Association) live() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.connected() {
		if tr, _ := q.connection(); tr == nil {
			return false
		}
	}
	a.logins++
	a.mute.began()
	a.err = nil
	if !a.toLocked(StateLive) {
		return false
	}
	a.announcing = true
	// Under the lock, so that a live association has queues that take requests.
	for _, q := range a.io {
		q.mu.Lock()
		q.down = nil
		q.mu.Unlock()
	}
	return true
}

// State returns where the association is, and why when it has failed or is down.
func (a *Association) State() (State, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state, a.err
}

// WaitLive returns when commands flow, with the reason when they never will.
func (a *Association) WaitLive(ctx context.Context) error {
	for {
		a.mu.Lock()
		s, err, ch := a.state, a.err, a.changed
		a.mu.Unlock()
		switch s {
		case StateLive:
			return nil
		case StateClosed:
			return blockio.ErrClosed
		case StateFailed:
			return err
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closeTimeout bounds what Close waits for.
const closeTimeout = 15 * time.Second

// Close waits for what is outstanding, shuts the controller down and closes the
// connections. What has not ended in time, or waits for a lost controller, ends with
// blockio.ErrClosed. Closing twice is harmless; closing inside a Done callback would wait
// for itself.
func (a *Association) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	a.mu.Lock()
	s := a.state
	a.mu.Unlock()
	if s == StateLive {
		for !a.atRest() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	a.mu.Lock()
	s = a.state
	if !a.toLocked(StateClosed) {
		a.mu.Unlock()
		return nil
	}
	a.mu.Unlock()
	var err error
	if s == StateLive {
		err = a.admin.shutDown(ctx)
	}
	a.cancel()
	for _, q := range slices.Backward(a.queues()) {
		q.terminate(nil)
	}
	a.wg.Wait()
	a.hangUp(blockio.ErrClosed) // what an attempt to connect has made
	for _, q := range a.io {
		q.retire()
		q.fail(blockio.ErrClosed)
		q.stop()
	}
	err = errors.Join(err, a.release())
	a.event(Event{Kind: EventClosed})
	a.events.Wait()
	return err
}

// forget takes a namespace that has been closed out of the association.
func (a *Association) forget(n *Namespace) {
	a.mu.Lock()
	a.spaces = slices.DeleteFunc(a.spaces, func(x *Namespace) bool { return x == n })
	a.mu.Unlock()
	for _, q := range a.io {
		q.forget(n)
	}
}

func (a *Association) atRest() bool {
	return !slices.ContainsFunc(a.io, func(q *queue) bool { return !q.atRest() })
}

// nextQueue is the queue for a request that has none yet: they take turns.
func (a *Association) nextQueue() *queue {
	q := a.granted()
	return q[int(a.turn.Add(1)%uint32(len(q)))]
}

// Stats adds up the counters of the queues.
func (a *Association) Stats() blockio.Stats {
	var sum blockio.Stats
	for _, q := range a.queues() {
		q.mu.Lock()
		s, t := q.stats, q.past
		if q.id != 0 {
			s.Outstanding, s.Waiting = q.sent, q.waiting.n
		} else {
			s = blockio.Stats{}
		}
		if q.tr != nil {
			x := q.tr.Stats()
			t.Add(&x)
		}
		q.mu.Unlock()
		s.PDUsIn, s.PDUsOut, s.PayloadCopied, s.ReceiveCalls, s.SendCalls = t.PDUsIn, t.PDUsOut, t.PayloadCopied, t.ReceiveCalls, t.SendCalls
		sum.Add(&s)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	sum.Losses, sum.Logins, sum.LoginFailures, sum.Pings, sum.Aborts = uint64(a.losses.Load()), a.logins, a.failed, a.pings, a.aborts
	return sum
}

// Describe names the controller and how it is reached for people.
func (a *Association) Describe() string {
	c := a.controller()
	a.admin.mu.Lock()
	how := "not connected"
	if a.admin.tr != nil {
		how = a.admin.tr.Describe()
	}
	a.admin.mu.Unlock()
	s := fmt.Sprintf("%s at %s, %s, %d I/O queues", a.cfg.Subsystem, a.cfg.Address, how, a.open.Load())
	if c != nil {
		s += fmt.Sprintf(", controller %d", c.id)
	}
	return s
}
