package ud

import (
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// GroupQPN is the queue pair number of everybody in a multicast group (IBA vol. 1 §10.5).
const GroupQPN = packet.QPNMask

// ownQKey in the Q_Key of a request stands for that of the queue pair that sends it
// (§10.2.5).
const ownQKey = 1 << 31

// Sender makes packets of the send queue. It is not for concurrent use; QP.Mu is held
// around all its methods.
type Sender struct {
	sending message.Sending
	cfg     Params
}

// NewSender makes the machine for a queue pair with an empty send queue.
func NewSender(qp *verbs.QP, cfg Params) *Sender {
	s := &Sender{cfg: cfg}
	s.sending.Init(qp, cfg.MTU, cfg.PSN, cfg.Local)
	return s
}

// Next makes o the next packet to send, for whoever is at to; false when there is none.
// The caller sends it, calls Release, and Sent when the kernel has it. Requests that
// cannot be sent fail by themselves: datagrams do not depend on each other.
func (s *Sender) Next(o *message.Outgoing) (to *verbs.AddressHandle, ok bool) {
	for e := s.sending.Begin(); e != nil; e = s.sending.Begin() {
		if s.sending.Check(e, s.fits(e)) != verbs.StatusSuccess {
			continue
		}
		d := &e.Dest
		to = d.AH
		o.Packet = packet.Packet{
			BTH:  packet.BTH{Op: packet.UD, QPN: d.QPN & packet.QPNMask},
			DETH: packet.DETH{QKey: d.QKey, SrcQPN: s.cfg.QPN},
		}
		if d.QKey&ownQKey != 0 {
			o.Packet.DETH.QKey = s.cfg.QKey
		}
		s.sending.Build(o, e)
		return to, true
	}
	return nil, false
}

// fits says whether a request is a datagram, or what it has failed with.
func (s *Sender) fits(e *verbs.WQE) verbs.Status {
	switch {
	case e.Op != verbs.OpSend && e.Op != verbs.OpSendImm, e.Dest.AH == nil:
		return verbs.StatusUnsupported
	case int64(e.Length) > int64(s.cfg.MTU.Bytes()):
		return verbs.StatusLocalLength
	}
	return verbs.StatusSuccess
}

// Unreadable fails the request of the packet that Next has made last: its payload cannot be
// read.
func (s *Sender) Unreadable() { s.sending.Unreadable() }

// Sent completes the requests whose packets have left, or are lost.
func (s *Sender) Sent() { s.sending.Sent() }
