package rdmamsg

import (
	"iter"
	"sync"
	"sync/atomic"

	"softiser/rdma"
)

// SendDepth is the depth of the send queue of a Link; more work waits in its Pump.
const SendDepth = 126

// MaxSGE is how many pieces of memory one RDMA Write or Read takes.
const MaxSGE = 64

// LinkConfig says who is told of the completions of a Link, and of its end.
type LinkConfig struct {
	Sent, Received func(*rdma.CQ)
	Disconnected   func() // on the receive goroutine: it may not wait
}

// Link is a queue pair with its completion queues, receiving into the buffers of the
// device.
type Link struct {
	QP             *rdma.QP
	SendCQ, RecvCQ *rdma.CQ

	d    *Device
	kept atomic.Int64 // receive buffers that the layers above hold
}

// NewLink makes the queue pair of a connection; it is not connected yet.
func (d *Device) NewLink(cfg LinkConfig) (*Link, error) {
	l := &Link{d: d}
	var err error
	if l.SendCQ, err = d.dev.CreateCQ(rdma.CQConfig{Depth: SendDepth + 2, Handler: cfg.Sent}); err != nil {
		return nil, err
	}
	if l.RecvCQ, err = d.dev.CreateCQ(rdma.CQConfig{Depth: 256, Handler: cfg.Received}); err == nil {
		l.QP, err = d.pd.CreateQP(rdma.QPConfig{
			SendCQ: l.SendCQ, RecvCQ: l.RecvCQ, SRQ: d.srq,
			MaxSend: SendDepth, MaxRecv: 1, MaxSGE: MaxSGE, OnEvent: func(_ *rdma.QP, e rdma.Event) {
				switch e {
				case rdma.EventSRQLimit:
					_ = d.refill() // when there may be no more, those who hold many leave them; see scarce
				case rdma.EventDisconnected:
					cfg.Disconnected()
				}
			},
		})
	}
	if err != nil {
		l.closeQueues()
		return nil, err
	}
	d.links.Add(1)
	return l, nil
}

// Windows returns an empty set of windows of the link.
func (l *Link) Windows() Windows { return Windows{link: l} }

// Close undoes NewLink, and Windows: w are those of the link.
func (l *Link) Close(w *Windows) {
	_ = l.QP.Close()
	w.free()
	l.closeQueues()
	l.d.links.Add(-1)
}

func (l *Link) closeQueues() {
	for _, cq := range []*rdma.CQ{l.SendCQ, l.RecvCQ} {
		if cq != nil {
			_ = cq.Close()
		}
	}
}

// Completions is room for what a handler takes out of a completion queue at a time. It is lent
// while the handler runs: many connections that are at work in turns use the same few, which
// stay in the processor's cache.
type Completions [64]rdma.WC

var completions = sync.Pool{New: func() any { return new(Completions) }}

// LendCompletions returns room that is the caller's until GiveBack.
func LendCompletions() *Completions { return completions.Get().(*Completions) }

// GiveBack ends the use of the room. What is in it may keep its queue pair alive until it is
// overwritten, or the next collections.
func (w *Completions) GiveBack() { completions.Put(w) }

// Batches polls cq until it is empty, into wcs again and again: a completion handler
// ranges over it. A batch that does not fill wcs has emptied the queue; for what comes
// later the handler runs once more.
func Batches(cq *rdma.CQ, wcs []rdma.WC) iter.Seq[[]rdma.WC] {
	return func(yield func([]rdma.WC) bool) {
		for n := len(wcs); n == len(wcs); {
			n = cq.Poll(wcs)
			if n == 0 || !yield(wcs[:n]) {
				return
			}
		}
	}
}
