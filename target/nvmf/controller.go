package nvmf

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/internal/loglimit"
	"softiser/target/volume"
)

// controller is the association of one host with one subsystem.
//
//	created ──CC.EN──▶ ready ──CC.EN off──▶ created
//	   │                 │ CC.SHN
//	   │                 ▼
//	   │           shutting down ──flushed──▶ shut down
//	   └──────────┬──────┴────────────────────────┴────▶ ended: admin queue lost, breach, keep alive, removal
type controller struct {
	fe        *Frontend
	sub       *subsystem
	seat      *seat
	id        uint16
	host      string
	hostID    nvme.HostID
	from      string // address of the admin queue
	group     uint16 // of the portal that it came by
	since     time.Time
	transport string
	// connection is what the admin queue's has agreed on, tlsKey the kind of its TLS key's
	// name; "": it is plain.
	connection, tlsKey string
	client             volume.Client
	zlog               *zap.Logger
	events             events
	log                errorLog

	still  atomic.Pointer[standstill] // nil: it goes
	proofs proofs

	mu     sync.Mutex
	config nvme.Config       // guarded by mu
	status nvme.CtrlStatus   // guarded by mu
	queues map[uint16]*queue // guarded by mu
	limit  int               // guarded by mu: I/O queues, as Set Features has left it
	alive  keepAlive         // guarded by mu
	over   bool              // guarded by mu
	past   Traffic           // guarded by mu: of I/O queues that have ended
	// unflushed is what a shutdown waits for.
	unflushed []*volume.Flushing // guarded by mu

	features features
}

var (
	errKeepAlive = errors.New("the host has been silent for longer than its keep alive timeout")
	errReset     = errors.New("the host has reset the controller")
)

// newController makes the controller of an admin queue.
func newController(q *queue, s *subsystem, d *nvme.ConnectData, timeout time.Duration) (*controller, error) {
	c := &controller{
		fe: q.fe, sub: s, host: d.Host, hostID: d.HostID, from: q.conn.Remote.String(), group: q.conn.Portal.Config().Group,
		since: time.Now(), transport: q.conn.Hello.String(), queues: map[uint16]*queue{0: q}, limit: q.fe.cfg.Limits.Queues,
		client: volume.Client{ID: registrant(s.cfg.NQN, d.Host, d.HostID), Holder: q.account(d.Host)},
	}
	c.alive.c = c
	c.connection = q.t.Describe()
	if q.identity != nil {
		c.tlsKey = q.identity.kind
	}
	c.events.init()
	var err error
	if c.seat, err = q.memory.sit(q.fe.cfg.Limits.Controllers, q.auth != nil && q.identity == nil); err != nil {
		return nil, err
	}
	c.zlog = q.log.With(zap.String("subsystem", s.cfg.NQN), loglimit.PeerText("host", d.Host))
	if err := s.enter(c); err != nil { // from then on others may end it
		c.seat.leave()
		return nil, err
	}
	c.mu.Lock()
	c.alive.setLocked(timeout)
	c.mu.Unlock()
	return c, nil
}

// named is the controller's identifier, for the log.
func (c *controller) named() zap.Field { return zap.Uint16("controller", c.id) }

// proofs are what the host has proved on the queues of a controller, by DH-HMAC-CHAP.
type proofs struct {
	succeeded, failed atomic.Uint64
	last              atomic.Pointer[string] // how; nil: nothing has been proved
}

// hasProved notes that the host has proved who it is, and how.
func (c *controller) hasProved(how string) {
	c.proofs.succeeded.Add(1)
	c.proofs.last.Store(&how)
}

// join adds an I/O queue.
func (c *controller) join(q *queue, id uint16) nvme.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mayJoinLocked(id)
	if s == nvme.Success {
		c.queues[id] = q
	}
	return s
}

// mayJoin says whether join would succeed now.
func (c *controller) mayJoin(_ *queue, id uint16) nvme.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mayJoinLocked(id)
}

func (c *controller) mayJoinLocked(id uint16) nvme.Status {
	switch {
	case c.over || !c.status.Ready():
		return nvme.CommandSequenceError | nvme.DoNotRetry
	case c.queues[id] != nil:
		return nvme.CommandSequenceError | nvme.DoNotRetry
	}
	return nvme.Success
}

func (c *controller) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status.Ready()
}

// ioQueues counts the I/O queues.
func (c *controller) ioQueues() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queues) - 1
}

// lost removes a queue whose connection has ended with err. The controller ends with its admin
// queue, and with an I/O queue whose host has broken the protocol. It does not end when the
// host closes an I/O queue: Linux closes those before it shuts the controller down, and then
// waits for the answer on the admin queue.
func (c *controller) lost(q *queue, err error) {
	c.mu.Lock()
	mine := c.queues[q.id] == q // otherwise a reset has taken it away, or it has never joined
	if mine {
		c.past.add(&q.counters)
		delete(c.queues, q.id)
	}
	c.mu.Unlock()
	if !mine {
		return
	}
	switch {
	case q.id == 0 && err == nil:
		c.end(errGone)
	case q.id == 0 || errors.Is(err, nvme.ErrBreach):
		c.end(err)
	default:
		c.abort(func(r *request) bool { return r.q == q })
	}
}

var errGone = errors.New("the host has closed the connection")

// end ends the controller, once: its queues are closed and its commands aborted.
func (c *controller) end(why error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over = true
	orderly := c.statusLocked().ShutdownDone()
	c.alive.stopLocked()
	l := c.takeQueuesLocked()
	c.mu.Unlock()
	if orderly {
		c.fe.lines.hosts.Info(c.zlog, "NVMe controller has ended", c.named())
	} else {
		c.fe.lines.hosts.Info(c.zlog, "NVMe controller has ended", c.named(), zap.Error(why))
	}
	cut(l, fmt.Errorf("controller %d has ended: %w", c.id, why))
	c.abortAll()
	c.events.close()
	c.sub.leave(c)
	c.seat.leave()
}

// cut closes queues; the caller then aborts their commands. Commands that the transports have
// read but not delivered yet are refused from here on.
func cut(l []*queue, why error) {
	for _, q := range l {
		q.cut.Store(true)
		q.t.Terminate(why)
	}
}

func (c *controller) takeQueuesLocked() []*queue {
	l := make([]*queue, 0, len(c.queues))
	for _, q := range c.queues {
		l = append(l, q)
	}
	return l
}

// abort aborts commands of the controller on every volume, so that none of them takes
// effect when their queue is gone and another host has taken over.
func (c *controller) abort(match func(*request) bool) {
	for _, n := range c.sub.held() {
		n.vol.AbortWhere(func(o *volume.Op) volume.AbortReason {
			if r, ok := o.Request().(*request); ok && o.Client == &c.client && match(r) {
				return volume.AbortedByOwner
			}
			return volume.NotAborted
		}, nil)
	}
}

func (c *controller) abortAll() { c.abort(func(*request) bool { return true }) }

// setConfig is a write of the property CC.
func (c *controller) setConfig(v nvme.Config) {
	c.mu.Lock()
	old := c.config
	c.config = v
	var io []*queue
	// A write may do both: disable the controller and shut it down.
	reset := !v.Enabled() && old.Enabled()
	if reset {
		c.status, c.unflushed = 0, nil
		for id, q := range c.queues {
			if id != 0 {
				io = append(io, q)
				c.past.add(&q.counters)
				delete(c.queues, id)
			}
		}
	}
	switch {
	case v.Shutdown() != nvme.ShutdownNone && old.Shutdown() == nvme.ShutdownNone:
		c.shutDownLocked()
	case v.Enabled() && !old.Enabled():
		c.status, c.unflushed = nvme.StatusReady, nil
		if !v.Valid() {
			c.status = nvme.StatusFatal
		}
		c.alive.setLocked(c.alive.timeout)
	}
	c.mu.Unlock()
	if reset {
		cut(io, errReset)
		c.abortAll() // those of the admin queue, too
		c.events.reset()
		c.features.mu.Lock()
		clear(c.features.values) // they are not saved (NVM Express 1.4 §5.21.1)
		c.features.mu.Unlock()
	}
}

// shutDownLocked begins to make what the host has written durable. The host asks for the status
// until that is over: the answer to its Property Set does not wait.
func (c *controller) shutDownLocked() {
	c.alive.stopLocked()
	c.status, c.unflushed = c.status&nvme.StatusFatal|nvme.StatusShutdownComplete, nil
	for _, n := range c.sub.list() {
		if n.place.Writable() {
			c.status = c.status&nvme.StatusFatal | nvme.StatusShuttingDown
			c.unflushed = append(c.unflushed, n.vol.FlushBehind())
		}
	}
}

// statusLocked returns CSTS. A host may take the power away once that says that its shutdown is
// complete (NVM Express 1.4 §7.6.2), so it does not before everything is flushed, and not at all,
// until a reset, when that has failed: the shutdown goes on for ever, and the status is fatal.
func (c *controller) statusLocked() nvme.CtrlStatus {
	for len(c.unflushed) > 0 {
		over, err := c.unflushed[0].Over()
		if !over {
			break
		}
		if err != nil && !errors.Is(err, blockdev.ErrInactive) { // flushed when it was given up
			c.status, c.unflushed = c.status|nvme.StatusFatal, nil
			c.fe.lines.hosts.Warn(c.zlog, "NVMe: a shutdown is not complete, as a flush has failed", c.named(), zap.Error(err))
			break
		}
		if c.unflushed = c.unflushed[1:]; len(c.unflushed) == 0 {
			c.status = c.status&^nvme.StatusShuttingDown | nvme.StatusShutdownComplete
		}
	}
	return c.status
}

// propertyGet answers Property Get. Properties that do not exist are refused without DNR: nvme-cli
// asks for every possible one, and recognises the status only without that bit.
func (r adminRequest) propertyGet() {
	p := r.sqe().Property()
	c := r.q.ctrl
	if p.Size() != p.Offset().Size() {
		r.end(nvme.InvalidField)
		return
	}
	c.mu.Lock()
	switch p.Offset() {
	case nvme.PropCAP:
		r.result = uint64(nvme.NewCap(c.fe.cfg.Limits.Entries, readyTimeout, nvme.CapCQR|nvme.CapNVM|nvme.CapIOCS|nvme.CapCRWMS))
	case nvme.PropVS:
		r.result = uint64(nvme.Version14)
	case nvme.PropCC:
		r.result = uint64(c.config)
	case nvme.PropCSTS:
		r.result = uint64(c.statusLocked())
	case nvme.PropCRTO:
		r.result = readyTimeout
	default:
		c.mu.Unlock()
		r.end(nvme.InvalidField)
		return
	}
	c.mu.Unlock()
	r.end(nvme.Success)
}

// readyTimeout is how long a controller may take to be ready, in units of 500 ms.
const readyTimeout = 30

func (r adminRequest) propertySet() {
	p := r.sqe().Property()
	if p.Offset() != nvme.PropCC || p.Size() != 4 {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.q.ctrl.setConfig(nvme.Config(p.Value()))
	r.end(nvme.Success)
}
