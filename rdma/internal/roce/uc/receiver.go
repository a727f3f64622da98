package uc

import (
	"fmt"

	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Receiver executes what the peer sends. It is not for concurrent use. It takes receive
// buffers by TakeRecv, and looks at nothing else of the queue pair that changes.
type Receiver struct {
	qp       *verbs.QP
	in       message.In
	expect   packet.PSN
	dropping bool // until a message begins
	err      error
	stats    Stats
}

// Stats count packets, but for Messages.
type Stats struct {
	Messages uint64 // executed to their ends
	OutOfSeq uint64 // out_of_seq_request: another PSN than the expected one
	NoBuffer uint64 // that met no receive buffer, or no room for its completion
	Refused  uint64 // that may not do what they ask for, or do not fit their place
	Dropped  uint64 // without a message that they belong to, since a part of it was lost
}

// NewReceiver makes the machine for a queue pair, whose Mem, PD, Dev and queues are set.
// psn is that of the peer's first packet.
func NewReceiver(qp *verbs.QP, mtu packet.MTU, psn packet.PSN) *Receiver {
	r := &Receiver{qp: qp, expect: psn}
	r.in.Init(qp, mtu)
	return r
}

// Err is why the queue pair is over: a receive buffer that it was given is no good.
func (r *Receiver) Err() error { return r.err }

// Stats returns the counters.
func (r *Receiver) Stats() Stats { return r.stats }

// TakeWCs moves the receive completions since the last call behind wcs.
func (r *Receiver) TakeWCs(wcs []verbs.WC) []verbs.WC { return r.in.TakeWCs(wcs) }

// Flush completes the receive buffer of a message that will not go on: the connection is
// over.
func (r *Receiver) Flush() { r.in.Fail(verbs.StatusFlushed) }

// Receive executes one packet. Its ICRC, addresses and queue pair number have been
// checked. Nothing of it is kept.
func (r *Receiver) Receive(p *packet.Packet) {
	t := p.Op.Traits()
	switch {
	case r.err != nil:
		return
	case p.Op.Service() != packet.UC || t == 0:
		r.stats.Refused++
		return
	}
	// §9.8.2.2.1: what begins a message is taken under any PSN, anything else under the
	// expected one alone.
	if p.PSN != r.expect {
		r.stats.OutOfSeq++
		r.drop()
	}
	r.expect = p.PSN.Add(1)
	if t&packet.First != 0 {
		r.drop() // the one before, which has lost its end
		r.dropping = false
	} else if r.dropping {
		r.stats.Dropped++
		return
	}
	if r.in.Misfit(p, t) != "" {
		r.stats.Refused++
		r.drop()
		return
	}
	switch f := r.in.Execute(p, t); {
	case f == nil:
		if t&packet.Last != 0 {
			r.stats.Messages++
		}
	case f == message.NoBuffer:
		r.stats.NoBuffer++
		r.drop()
	case f.Status == verbs.StatusLocalProtection, f.Status == verbs.StatusLocalFault: // class A
		r.in.Fail(f.Status)
		r.err = fmt.Errorf("rdma: %v: %s", p.Op, f.Reason)
	default:
		r.stats.Refused++
		r.drop()
	}
}

// drop forgets the message that is coming, and what else comes of it. Its receive buffer
// is kept for the next one, or completes if other queue pairs wait for such buffers
// (§9.9.3, classes D and E).
func (r *Receiver) drop() {
	r.dropping = true
	if r.qp.SRQ != nil {
		r.in.Fail(verbs.StatusRemoteInvalid)
		return
	}
	r.in.Drop()
}
