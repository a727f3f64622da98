package nvmf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
)

// An association over TCP, or over RDMA and iWARP, goes to another process while it is at rest:
// no command is outstanding but an Asynchronous Event Request, none is sent, and its connections
// have stopped in front of a PDU. Then it is a few numbers and sockets. The other process goes
// on with it by Config.Carried, and asks the controller over it what it is, as after a Connect.
//
//	live ──Rest──▶ nothing is sent, what is outstanding ends ──▶ parked ──▶ Carry, or Resume: live

// restLook is how often Rest looks.
const restLook = 200 * time.Microsecond

// parkable is a connection that can stand still, and go on in another process.
type parkable interface {
	Park(may func() bool) bool
	Nudge()
	Still() bool
	Unpark()
}

var (
	_ parkable = (*nvmetcp.Host)(nil)
	_ parkable = (*nvmerdma.Host)(nil)
)

// errNoRest is why an association cannot go to another process.
var errNoRest = errors.New("nvmf: the association is in no state to be carried")

// Rest brings the association that Open has made to rest until Resume. With an error, which is
// also how it ends for those that cannot be carried, it goes on. The caller has begun nothing
// that has not ended.
func (n *Namespace) Rest(ctx context.Context) error {
	if !n.owned {
		return fmt.Errorf("%w: it has other users", errNoRest)
	}
	return n.a.rest(ctx)
}

// Resume lets the association go on as if nothing had happened.
func (n *Namespace) Resume() { n.a.resume() }

// Carry returns the association, with descriptors that are the caller's. Preconditions: Rest.
func (n *Namespace) Carry() (*CarriedAssociation, error) { return n.a.carry() }

// rest is Namespace.Rest.
func (a *Association) rest(ctx context.Context) error {
	a.mu.Lock()
	if a.state != StateLive || a.resting || a.cfg.Secure != nil {
		a.mu.Unlock()
		return errNoRest
	}
	a.resting = true
	a.mu.Unlock()
	gate := make(chan struct{})
	ok := true
	queues := a.connected()
	for _, q := range queues {
		q.mu.Lock()
		q.gate = gate
		p, _ := q.tr.(parkable)
		q.mu.Unlock()
		ok = ok && p != nil && p.Park(q.idle)
	}
	for ok && !still(queues) {
		a.mu.Lock()
		ok = a.state == StateLive && ctx.Err() == nil
		a.mu.Unlock()
		time.Sleep(restLook)
	}
	if !ok {
		a.resume()
		return errNoRest
	}
	return nil
}

// still reports whether all connections stand, and are silent from here on.
func still(queues []*queue) bool {
	all := true
	for _, q := range queues {
		tr, _ := q.connection()
		p, ok := tr.(parkable)
		if !ok || !q.idle() || !p.Still() {
			all = false
			if ok {
				p.Nudge()
			}
		}
	}
	return all
}

// idle reports whether nothing is outstanding but an Asynchronous Event Request, and no
// authentication is under way.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := 0
	for i := range q.cmds {
		switch c := &q.cmds[i]; {
		case c.state == cmdFree:
		case c.state == cmdSent && c.awaitsEvent():
			events++
		default:
			return false
		}
	}
	return q.held == 0 && q.waiting.Empty() && events <= 1
}

// awaitsEvent reports whether the command is an Asynchronous Event Request.
func (c *command) awaitsEvent() bool {
	return c.req == nil && c.call != nil && c.SQE.Opcode() == nvme.AdminAsyncEvent && len(c.Data) == 0
}

// resume is Namespace.Resume. A connection that is parked may ask idle with its lock held, so
// that nothing is given to it with a queue's held before it goes on.
func (a *Association) resume() {
	for _, q := range a.queues() {
		tr, _ := q.connection()
		if p, ok := tr.(parkable); ok {
			p.Unpark()
		}
	}
	var gate chan struct{}
	for _, q := range a.queues() {
		q.mu.Lock()
		if q.gate != nil {
			gate, q.gate = q.gate, nil
		}
		q.mu.Unlock()
	}
	a.mu.Lock()
	a.resting = false
	a.mu.Unlock()
	a.mute.began() // nobody was listening
	if gate != nil {
		close(gate)
	}
	for _, q := range a.io {
		q.mu.Lock()
		q.pumpLocked()
		q.unlock()
		q.kick()
	}
}

// carry is Namespace.Carry.
func (a *Association) carry() (*CarriedAssociation, error) {
	a.mu.Lock()
	c, ok := a.ctrl, a.resting && a.state == StateLive
	a.mu.Unlock()
	if !ok {
		return nil, errNoRest
	}
	k := new(CarriedAssociation)
	x := carriedState{Subsystem: a.cfg.Subsystem, Host: a.cfg.HostNQN, HostID: a.cfg.HostID, Transport: a.cfg.Transport.String(), CntlID: c.id}
	err := errNoRest
	for _, q := range a.connected() {
		var fd int
		if fd, err = x.add(q); err != nil {
			break
		}
		k.FDs = append(k.FDs, fd)
	}
	if err == nil {
		k.State, err = json.Marshal(&x)
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// add adds a queue, whose connection it returns.
func (x *carriedState) add(q *queue) (fd int, err error) {
	q.mu.Lock()
	tr := q.tr
	k := carriedQueue{Limit: q.limit, Proves: q.proves}
	for i := range q.cmds {
		if c := &q.cmds[i]; c.state == cmdSent {
			k.Event = append([]byte(nil), c.SQE[:]...)
		}
	}
	q.mu.Unlock() // see resume
	switch tr := tr.(type) {
	case *nvmetcp.Host:
		k.TCP = new(nvmetcp.CarriedHost)
		*k.TCP, fd, err = tr.Carry()
	case *nvmerdma.Host:
		k.RDMA = new(nvmerdma.CarriedHost)
		*k.RDMA, fd, err = tr.Carry()
	default:
		err = errNoRest
	}
	x.Queues = append(x.Queues, k)
	return fd, err
}
