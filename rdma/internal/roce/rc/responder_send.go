package rc

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
)

// Outgoing is a packet to be sent.
type Outgoing = message.Outgoing

// Unreadable says that the payload of the packet that Next has made last cannot be read:
// the connection is over.
func (r *Responder) Unreadable(o *Outgoing) {
	r.broken(packet.NAKRemoteOperational, o.Packet.PSN, "the memory that the peer reads cannot be touched")
}

// broken ends the connection for a READ whose answer does not go on at a PSN. At its first one the
// peer is told by a NAK. Behind that Linux's rxe takes a NAK for the end of the answer, and
// completes the READ with success (check_ack and COMPST_ERROR in rxe_comp.c): there the end of the
// connection has to do.
func (r *Responder) broken(s packet.Syndrome, psn packet.PSN, reason string) {
	r.answers.n = 0 // what follows it is not answered any more
	why := &Refused{Syndrome: s, PSN: psn, Op: packet.ReadRequest, Reason: reason}
	if was := r.resources.find(psn); was != nil && was.psn == psn {
		r.end(why, s, psn)
		return
	}
	r.err = why
	r.Flush()
}

// Light says whether all that there is to send is one acknowledgement: the peer learns of
// nothing else by it than that messages have come.
func (r *Responder) Light() bool {
	if r.answers.n != 1 || r.eager > 0 {
		return false
	}
	a := r.answers.first()
	return a.op == packet.Acknowledge && a.verd == packet.ACK
}

// Next makes o the next packet of an answer; false when there is none to send. The
// caller sends it and calls Release, before anything else of the Responder.
func (r *Responder) Next(o *Outgoing) bool {
	for r.answers.n > 0 {
		a := r.answers.first()
		o.Packet = packet.Packet{BTH: packet.BTH{Op: a.op, PKey: packet.DefaultPKey, QPN: r.cfg.RemoteQPN, PSN: a.psn}}
		if a.op == packet.ReadResponseOnly {
			if r.segment(o, a) {
				return true
			}
			continue // segment has dropped it, or put a NAK in its place
		}
		o.Packet.AETH = packet.AETH{Syndrome: a.verd, MSN: a.msn}
		o.Packet.Original = a.orig
		r.answers.pop()
		return true
	}
	return false
}

// segment makes the next packet of a READ's answer (§9.7.5.1.9).
func (r *Responder) segment(o *Outgoing, a *answer) bool {
	n := min(int(a.reth.Len), r.mtu)
	if n > 0 {
		reg, off, f := r.find(a.reth.RKey, a.reth.VA, uint64(n), mem.RemoteRead)
		if f != mem.None && a.dup {
			// The peer had sent the READ again when its first answer was on the way. That has
			// arrived since: the peer is done with the memory, and its key may be revoked. If it
			// has not, the peer asks once more, and is told (see duplicate).
			r.answers.pop()
			return false
		}
		if f != mem.None {
			r.broken(message.MemoryFault, a.psn, fmt.Sprintf("key %#08x was revoked while the peer read: %v", a.reth.RKey, f))
			return false
		}
		o.Take(reg.Pieces(), off, n)
		o.Hold(reg)
	}
	last := int(a.reth.Len) == n
	switch {
	case last && !a.sent:
		o.Packet.Op = packet.ReadResponseOnly
	case last:
		o.Packet.Op = packet.ReadResponseLast
	case a.sent:
		o.Packet.Op = packet.ReadResponseMid
	default:
		o.Packet.Op = packet.ReadResponseFirst
	}
	o.Packet.AETH = packet.AETH{Syndrome: packet.ACK, MSN: a.msn}
	if last {
		r.answers.pop()
		return true
	}
	a.sent, a.psn = true, a.psn.Add(1)
	a.reth.VA, a.reth.Len = a.reth.VA+uint64(n), a.reth.Len-uint32(n)
	return true
}
