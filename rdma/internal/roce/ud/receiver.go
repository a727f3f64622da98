package ud

import (
	"errors"
	"net/netip"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Params is what the machines have to know of their queue pair.
type Params struct {
	QPN   uint32
	QKey  uint32
	MTU   packet.MTU                    // of the port
	PSN   packet.PSN                    // of our first packet; nobody looks at them
	Local func(*verbs.WQE) verbs.Status // executes a request that does not go to the wire
}

// Receiver takes what others send. It is not for concurrent use. It takes receive
// buffers by TakeRecv, and looks at nothing else of the queue pair that changes.
type Receiver struct {
	qp   *verbs.QP
	qkey uint32
	mtu  int

	taken bool // a receive buffer, which the datagram before did not fit
	buf   verbs.RecvBuf
	grh   [GRHLen]byte
	wcs   []verbs.WC
	err   error
	stats Stats
}

// Stats count datagrams by what became of them. Where rxe, or the port's attributes, have
// a counter it is named.
type Stats struct {
	Messages uint64 // rdma_recvs
	BadQKey  uint64 // qkey_viol_cntr: with the key of another queue pair
	NoBuffer uint64 // that met no receive buffer, or no room for its completion
	TooLong  uint64 // for the receive buffer, or for the MTU
	Refused  uint64 // that were no datagrams
}

// NewReceiver makes the machine for a queue pair, whose Mem, PD, Dev and queues are set.
func NewReceiver(qp *verbs.QP, cfg Params) *Receiver {
	return &Receiver{qp: qp, qkey: cfg.QKey, mtu: cfg.MTU.Bytes()}
}

// Err is why the queue pair is over: a receive buffer that it was given is no good.
func (r *Receiver) Err() error { return r.err }

// Stats returns the counters.
func (r *Receiver) Stats() Stats { return r.stats }

// TakeWCs moves the receive completions since the last call behind wcs.
func (r *Receiver) TakeWCs(wcs []verbs.WC) []verbs.WC {
	wcs = append(wcs, r.wcs...)
	r.wcs = r.wcs[:0]
	return wcs
}

// Flush completes the receive buffer that was kept: the queue pair is over.
func (r *Receiver) Flush() {
	if r.taken {
		r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusFlushed})
	}
}

// Receive takes one packet. Its ICRC, P_Key and queue pair number have been checked; to
// is the address of this port, or of a group that the queue pair belongs to. Nothing of
// the packet is kept.
func (r *Receiver) Receive(from, to netip.Addr, p *packet.Packet) {
	t := p.Op.Traits()
	switch {
	case r.err != nil:
		return
	case p.Op.Service() != packet.UD || t == 0:
		r.stats.Refused++
		return
	case p.DETH.QKey != r.qkey: // §9.6.1.3
		r.stats.BadQKey++
		return
	case len(p.Payload) > r.mtu:
		r.stats.TooLong++
		return
	case !r.taken && (!r.qp.RecvCQ.Takes(len(r.wcs)) || !r.qp.TakeRecv(&r.buf)):
		r.stats.NoBuffer++
		return
	}
	r.taken = true
	if uint64(GRHLen+len(p.Payload)) > r.buf.Size {
		r.stats.TooLong++
		r.leave()
		return
	}
	if !message.LocalKeys(r.qp, r.buf.LKeys, r.buf.Segs, true) {
		r.fail(verbs.StatusLocalProtection, errors.New("rdma: a receive buffer lies outside the memory region of its key"))
		return
	}
	PutGRH(&r.grh, from, to, p)
	var cur mem.Cursor
	cur.Set(r.buf.Segs)
	if !mem.CopyTo(&cur, r.grh[:]) || !mem.CopyTo(&cur, p.Payload) {
		r.fail(verbs.StatusLocalFault, errors.New("rdma: a receive buffer cannot be touched"))
		return
	}
	r.stats.Messages++
	r.complete(verbs.WC{
		Opcode: verbs.WCRecv, ByteLen: uint32(GRHLen + len(p.Payload)), SrcQPN: p.DETH.SrcQPN,
		Flags: message.Flags(p, t) | verbs.WCWithGRH, Imm: uint64(p.Imm),
	})
}

// leave keeps a buffer that is too small for the next datagram, unless other queue pairs
// wait for such buffers (§9.9.3, classes D and E).
func (r *Receiver) leave() {
	if r.qp.SRQ != nil {
		r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusRemoteInvalid})
	}
}

// fail ends the queue pair: the fault is its owner's (§9.9.3, class A).
func (r *Receiver) fail(s verbs.Status, err error) {
	r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: s})
	r.err = err
}

// complete completes the receive buffer that has been taken.
func (r *Receiver) complete(wc verbs.WC) {
	wc.ID, wc.QP = r.buf.ID, r.qp
	clear(r.buf.Segs)
	r.taken = false
	r.wcs = append(r.wcs, wc)
}
