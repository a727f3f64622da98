package nvmf

import (
	"errors"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
	"softiser/target/portal"
)

// CarriedQueue is a queue of it.
type CarriedQueue struct {
	FD     int       `json:"-"`    // the caller's of Carry, and Adopt's
	File   int       `json:"file"` // index of FD on its way
	ID     uint16    `json:"id"`
	Portal string    `json:"portal"` // portal.Config.Listen
	Opened time.Time `json:"opened"`
	NoFlow bool      `json:"no_flow_control,omitempty"`
	SQHead uint32    `json:"sq_head"`             // completions so far
	Proves string    `json:"subsystem,omitempty"` // as the host calls it, which has proved itself
	Events []uint16  `json:"events,omitempty"`    // CIDs of Asynchronous Event Requests, the oldest first
	carriedStream
}

// carriedStream is the connection of a queue.
type carriedStream struct {
	Stream nvmetcp.Carried   `json:"stream"`         // of one over TCP
	RDMA   *nvmerdma.Carried `json:"rdma,omitempty"` // of one over RDMA, nil for others
}

// kind is what carries the queue.
func (k *carriedStream) kind() portal.Transport {
	if k.RDMA != nil {
		return portal.RDMA
	}
	return portal.TCP
}

// size is how many entries the queue has, and how many commands of it have not begun.
func (k *carriedStream) size() (entries, kept int) {
	if k.RDMA != nil {
		return k.RDMA.Entries, len(k.RDMA.Kept)
	}
	return k.Stream.Entries, len(k.Stream.Kept)
}

func (k *carriedStream) check() error {
	if k.RDMA != nil {
		return k.RDMA.Check()
	}
	return k.Stream.Check()
}

// take adds what the transport of a queue knows.
func (k *CarriedQueue) take(t nvme.QueueTransport) (err error) {
	switch t := t.(type) {
	case *nvmetcp.Controller:
		k.Stream, k.FD, err = t.Carry()
	case *nvmerdma.Controller:
		k.RDMA = new(nvmerdma.Carried)
		*k.RDMA, k.FD, err = t.Carry()
	default:
		k.FD, err = -1, errStaysQueue
	}
	return err
}

// checkRDMA says why this process cannot go on with a queue over RDMA.
func (h Handover) checkRDMA(k *CarriedQueue) error {
	switch {
	case k.RDMA == nil:
		return nil
	case h.f.wires.RDMA == nil:
		return errors.New("it is over RDMA, which the configuration has not")
	}
	return h.f.wires.RDMA.RDMA().CheckCarried(&k.RDMA.QP)
}

// adoptQueue makes a queue, which has not been started.
func (h Handover) adoptQueue(k *CarriedQueue, s *subsystem, host string) (*queue, error) {
	f := h.f
	n, err := portal.TakeOver(f.cfg.Portals, k.Portal, &k.FD, k.Opened)
	if err != nil {
		return nil, err
	}
	n.Hello = portal.Hello{Protocol: portal.NVMe, Transport: k.kind()}
	entries, _ := k.size()
	q := &queue{fe: f, conn: n, log: n.Log, memory: f.shares.join(n.Remote.Addr()), id: k.ID, entries: entries, noFlow: k.NoFlow}
	t, err := h.restore(n, q.memory, &k.carriedStream)
	if err != nil {
		q.memory.leave()
		n.Net.Close()
		return nil, err
	}
	q.t = t
	q.sqHead.Store(k.SQHead)
	if k.Proves != "" {
		q.auth = &authentication{sub: s, subNQN: k.Proves, host: host}
		q.memory.proved(host)
	}
	q.proved.Store(true)
	f.mu.Lock()
	drained := f.drained
	if !drained {
		f.queues[q] = struct{}{}
	}
	f.mu.Unlock()
	if drained {
		t.Terminate(errShutdown)
		q.memory.leave()
		return nil, errShutdown
	}
	return q, nil
}

// restore makes the transport of a queue, which the connection belongs to unless there is an
// error.
func (h Handover) restore(n *portal.Conn, memory *holding, k *carriedStream) (nvme.QueueTransport, error) {
	if k.RDMA == nil {
		return nvmetcp.Restore(n.Net, h.f.tcpConfig(n.Portal, memory, h.f.wires.Tally(portal.TCP)), &k.Stream)
	}
	p := n.Portal.Config()
	return h.f.wires.RDMA.Restore(n.Net, p.RDMA(), k.RDMA)
}
