package message

import (
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Sending takes packets from the send queue of a service without acknowledgements: a
// request is over when its last packet has left. It is not for concurrent use; QP.Mu is
// held around all its methods.
type Sending struct {
	qp   *verbs.QP
	mtu  int
	next uint64 // PSN of the next packet, unwrapped
	off  uint64 // bytes of the request at SQ.Next for which there were packets

	local func(*verbs.WQE) verbs.Status // executes a request that does not go to the wire
}

// Init prepares s for a queue pair with an empty send queue.
func (s *Sending) Init(qp *verbs.QP, mtu packet.MTU, psn packet.PSN, local func(*verbs.WQE) verbs.Status) {
	*s = Sending{qp: qp, mtu: mtu.Bytes(), next: uint64(packet.PSNMask) + 1 + uint64(psn), local: local}
}

// Begin is the request that the next packet belongs to; nil when there is none. Local
// requests are executed on the way.
func (s *Sending) Begin() *verbs.WQE {
	for q := &s.qp.SQ; q.Next != q.Tail; {
		e := q.At(q.Next)
		if !e.Op.Local() {
			return e
		}
		e.Status, e.Done = s.local(e), true
		s.end(e)
	}
	return nil
}

// Check looks at a request before its first packet: at its keys, and at what the service
// has found. One that is not in order has ended, with the status that is returned.
func (s *Sending) Check(e *verbs.WQE, found verbs.Status) verbs.Status {
	switch {
	case s.off > 0:
		return verbs.StatusSuccess // it was looked at before its first packet
	case found != verbs.StatusSuccess:
		e.Status = found
	case !LocalKeys(s.qp, e.LKeys, e.Segs, false):
		e.Status = verbs.StatusLocalProtection
	default:
		return verbs.StatusSuccess
	}
	s.end(e)
	return e.Status
}

// Build makes o the next packet of e, whose opcode's service o.Packet.Op is.
func (s *Sending) Build(o *Outgoing, e *verbs.WQE) {
	Segment(o, e, s.off, s.mtu)
	o.Packet.PKey, o.Packet.PSN = packet.DefaultPKey, packet.PSN(s.next&packet.PSNMask)
	s.next++
	s.off += uint64(o.N)
	if o.Packet.Op.Traits()&packet.Last != 0 {
		s.end(e)
	}
}

// Unreadable fails the request whose packet Build has made last: its payload cannot be read.
func (s *Sending) Unreadable() {
	i := s.qp.SQ.Next
	if s.off == 0 {
		i-- // it was the last packet
	}
	s.qp.SQ.At(i).Status = verbs.StatusLocalFault
}

// end passes the request at SQ.Next.
func (s *Sending) end(e *verbs.WQE) {
	e.End, s.off = s.next, 0
	s.qp.SQ.Next++
}

// Sent completes what has ended: all packets that were built have left, or are lost.
func (s *Sending) Sent() { s.qp.SweepLocked(s.next) }
