package uc

import (
	"errors"
	"fmt"

	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Sender cuts the send queue into packets. It is not for concurrent use; QP.Mu is held
// around all its methods.
type Sender struct {
	sending message.Sending
	qpn     uint32
	err     error
}

// SenderParams is what a Sender has to know of its connection.
type SenderParams struct {
	RemoteQPN uint32
	MTU       packet.MTU
	PSN       packet.PSN                    // of the first packet
	Local     func(*verbs.WQE) verbs.Status // executes a request that does not go to the wire
}

// NewSender makes the machine for a queue pair with an empty send queue.
func NewSender(qp *verbs.QP, cfg SenderParams) *Sender {
	s := &Sender{qpn: cfg.RemoteQPN}
	s.sending.Init(qp, cfg.MTU, cfg.PSN, cfg.Local)
	return s
}

// Err is why the connection is over: a request could not be sent, and nothing behind it
// will be, as the peer would take it for all there was.
func (s *Sender) Err() error { return s.err }

// Next makes o the next packet to send; false when there is none. The caller sends it,
// calls Release, and Sent when the kernel has it.
func (s *Sender) Next(o *message.Outgoing) bool {
	if s.err != nil {
		return false
	}
	e := s.sending.Begin()
	if e == nil {
		return false
	}
	if st := s.sending.Check(e, supported(e.Op)); st != verbs.StatusSuccess {
		if s.err = message.ErrLKey; st == verbs.StatusUnsupported {
			s.err = fmt.Errorf("rdma: there is no %v over an unreliable connection", e.Op)
		}
		return false
	}
	o.Packet = packet.Packet{BTH: packet.BTH{Op: packet.UC, QPN: s.qpn}}
	s.sending.Build(o, e)
	return true
}

// supported says whether there is such a request, or what it has failed with.
func supported(op verbs.Opcode) verbs.Status {
	switch op {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpImm:
		return verbs.StatusSuccess
	}
	return verbs.StatusUnsupported
}

// Unreadable says that the payload of the packet that Next has made last cannot be read:
// its request fails, and the connection is over.
func (s *Sender) Unreadable() {
	s.sending.Unreadable()
	s.err = errors.New("rdma: the memory of a request cannot be read")
}

// Sent completes the requests all of whose packets have left, or are lost.
func (s *Sender) Sent() { s.sending.Sent() }
