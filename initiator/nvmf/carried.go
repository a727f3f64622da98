package nvmf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
)

// CarriedAssociation is an association that another process has brought to rest.
type CarriedAssociation struct {
	FDs   []int `json:"-"`     // of its queues; the caller's of Carry, who opens a volume with it takes them
	Files []int `json:"files"` // indices of FDs on their way

	State json.RawMessage `json:"state"` // see Check
}

// carriedState is CarriedAssociation.State.
type carriedState struct {
	Subsystem string         `json:"subsystem"`
	Host      string         `json:"host"`
	HostID    nvme.HostID    `json:"host_id"`
	Transport string         `json:"transport"`
	CntlID    uint16         `json:"cntlid"`
	Queues    []carriedQueue `json:"queues"` // the admin queue first
}

// carriedQueue is one queue. Of its submission queue's head no account is kept: a host never has
// more commands outstanding than there is room for. Identifiers begin anew, but for that of Event.
type carriedQueue struct {
	Limit  int                   `json:"limit"`            // commands that the controller takes at once
	Proves bool                  `json:"proves,omitempty"` // the controller has asked for authentication
	Event  []byte                `json:"event,omitempty"`  // the Asynchronous Event Request that is outstanding
	TCP    *nvmetcp.CarriedHost  `json:"tcp,omitempty"`
	RDMA   *nvmerdma.CarriedHost `json:"rdma,omitempty"`
}

// Close gives the descriptors back that nobody has taken.
func (k *CarriedAssociation) Close() {
	for i, fd := range k.FDs {
		if fd >= 0 {
			syscall.Close(fd)
			k.FDs[i] = -1
		}
	}
}

// Check says what is wrong with an association that has come from another process with files
// descriptors of all kinds. Nothing is touched.
func (k *CarriedAssociation) Check(files int) error {
	x, err := k.state()
	if err != nil {
		return err
	}
	if len(k.Files) != len(x.Queues) {
		return fmt.Errorf("nvmf: %d descriptors for %d queues", len(k.Files), len(x.Queues))
	}
	for _, at := range k.Files {
		if at < 0 || at >= files {
			return errors.New("nvmf: no descriptor has come with a queue")
		}
	}
	return nil
}

// state reads State, and checks it.
func (k *CarriedAssociation) state() (*carriedState, error) {
	x := new(carriedState)
	if err := json.Unmarshal(k.State, x); err != nil {
		return nil, fmt.Errorf("nvmf: an association of another process: %w", err)
	}
	if n := len(x.Queues); n < 2 || n > maxQueues+1 {
		return nil, fmt.Errorf("nvmf: an association of %d queues; want 2 to %d", n, maxQueues+1)
	}
	for i := range x.Queues {
		if err := x.Queues[i].check(); err != nil {
			return nil, err
		}
		if i > 0 && (x.Queues[i].Event != nil || x.Queues[i].Limit != x.Queues[1].Limit) {
			return nil, fmt.Errorf("nvmf: queue %d is not like the first", i)
		}
	}
	return x, nil
}

// check says what no queue can be.
func (k *carriedQueue) check() error {
	slots, err := 0, error(nil)
	switch {
	case k.TCP != nil && k.RDMA == nil:
		slots, err = k.TCP.Slots, k.TCP.Check()
	case k.RDMA != nil && k.TCP == nil:
		slots, err = k.RDMA.Slots, k.RDMA.Check()
	default:
		err = errors.New("nvmf: a queue of another process has no connection, or two")
	}
	switch {
	case err != nil:
		return err
	case k.Limit < 1 || k.Limit >= slots:
		return fmt.Errorf("nvmf: %d commands at once in a queue of %d", k.Limit, slots)
	case k.Event == nil:
		return nil
	case len(k.Event) != nvme.SQELen:
		return fmt.Errorf("nvmf: a command of %d bytes; want %d", len(k.Event), nvme.SQELen)
	}
	e := (*nvme.SQE)(k.Event)
	if slot := int(e.CID() % nvme.MaxHostEntries); e.Opcode() != nvme.AdminAsyncEvent || slot >= min(slots, adminDepth) {
		return fmt.Errorf("nvmf: command %04xh is outstanding", e.CID())
	}
	return nil
}

// takeUp goes on with Config.Carried, which Check has accepted, instead of connecting. What it
// leaves behind after an error is hangUp's.
func (a *Association) takeUp(ctx context.Context) error {
	from := a.cfg.Carried
	defer from.Close()
	x, err := from.state()
	if err != nil {
		return err
	}
	c := &a.cfg
	if len(from.FDs) != len(x.Queues) || c.Secure != nil || x.Subsystem != c.Subsystem || x.Host != c.HostNQN || x.HostID != c.HostID || x.Transport != c.Transport.String() {
		return errNoRest
	}
	depth := x.Queues[1].slots() - 1
	for i := range max(c.Queues, len(x.Queues)-1) {
		q := newQueue(a, uint16(i+1), depth)
		q.closed, q.limit = i >= len(x.Queues)-1, x.Queues[1].Limit
		a.io = append(a.io, q)
	}
	a.open.Store(int32(len(x.Queues) - 1))
	a.spoken = true
	for i, q := range a.connected() {
		if err := q.takeUp(&x.Queues[i], from, i); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout)
	defer cancel()
	t := attempt{a: a, c: &controller{id: x.CntlID}}
	if err := t.capabilities(ctx); err != nil {
		return err
	}
	if err := t.identify(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	a.ctrl = t.c
	a.mu.Unlock()
	return nil
}

// slots is how many commands the queue has.
func (k *carriedQueue) slots() int {
	if k.TCP != nil {
		return k.TCP.Slots
	}
	return k.RDMA.Slots
}

// outstander is a connection that goes on with commands which another process has sent.
type outstander interface {
	nvme.HostTransport
	Outstanding(c *nvme.HostCommand) error
}

// takeUp makes the connection of a queue, whose descriptor is from's with number i.
func (q *queue) takeUp(k *carriedQueue, from *CarriedAssociation, i int) error {
	f := os.NewFile(uintptr(from.FDs[i]), "handed over")
	from.FDs[i] = -1
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return err
	}
	var tr outstander
	switch d := q.a.dialer.(type) {
	case *nvmetcp.HostDialer:
		if err = errNoRest; k.TCP != nil {
			tr, err = nvmetcp.RestoreHost(nc, d.Config, k.TCP)
		}
	case *nvmerdma.HostDialer:
		if err = errNoRest; k.RDMA != nil {
			tr, err = nvmerdma.RestoreHost(nc, d.Config, k.RDMA)
		}
	}
	if err != nil {
		nc.Close()
		return err
	}
	q.mu.Lock()
	q.proves = k.Proves
	var c *command
	if k.Event != nil {
		c = q.sentBeforeLocked((*nvme.SQE)(k.Event))
		q.a.asked = c.call
	}
	q.mu.Unlock()
	if c != nil {
		err = tr.Outstanding(&c.HostCommand)
	}
	q.attach(tr)
	return err
}

// sentBeforeLocked makes the command of a call that another process has sent.
func (q *queue) sentBeforeLocked(e *nvme.SQE) *command {
	c := &q.cmds[e.CID()%nvme.MaxHostEntries]
	for at := &q.free; *at != nil; at = &(*at).next {
		if *at == c {
			*at = c.next
			break
		}
	}
	c.next, c.SQE, c.call = nil, *e, &call{done: make(chan struct{})}
	q.moveCommandLocked(c, cmdSent)
	q.sent++
	return c
}
