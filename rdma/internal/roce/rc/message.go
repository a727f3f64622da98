package rc

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// message is a SEND or WRITE of which the last packet has not come.
type message struct {
	kind packet.Traits // packet.Send, packet.Write; 0: none

	taken bool // a receive buffer: of a SEND, or of a WRITE with immediate data
	buf   verbs.RecvBuf
	cur   mem.Cursor // where the next byte of a SEND goes
	got   uint64     // bytes so far

	reth packet.RETH // of a WRITE
}

// complete completes the receive buffer that has been taken.
func (r *Responder) complete(wc verbs.WC) {
	m := &r.msg
	wc.ID, wc.QP = m.buf.ID, r.qp
	clear(m.buf.Segs)
	m.taken = false
	r.wcs = append(r.wcs, wc)
}

// takeRecv takes a receive buffer, or tells the peer to come again (§9.7.5.2.8).
func (r *Responder) takeRecv(p *packet.Packet) bool {
	if m := &r.msg; r.qp.TakeRecv(&m.buf) {
		m.taken = true
		if !localKeys(r.qp, m.buf.LKeys, m.buf.Segs, true) {
			r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusLocalProtection})
			r.refuse(packet.NAKRemoteOperational, p, "the receive buffer lies outside the memory region of its key")
			return false
		}
		return true
	}
	r.stats.RNRs++
	r.silent, r.told = true, p.PSN // what comes behind it until it comes again was not lost
	r.answers.refuse(packet.RNR|packet.Syndrome(r.cfg.MinRNR), p.PSN, r.msn)
	return false
}

// send places a packet of a SEND.
func (r *Responder) send(p *packet.Packet, t packet.Traits) bool {
	m := &r.msg
	if t&packet.First != 0 {
		if !r.takeRecv(p) {
			return false
		}
		m.kind, m.got = packet.Send, 0
		m.cur.Set(m.buf.Segs)
	}
	n := uint64(len(p.Payload))
	if n > m.buf.Size-m.got {
		r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusLocalLength})
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("more than the %d bytes of the receive buffer", m.buf.Size))
		return false
	}
	if !mem.CopyTo(&m.cur, p.Payload) {
		r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusLocalFault})
		r.refuse(packet.NAKRemoteOperational, p, "the receive buffer cannot be touched")
		return false
	}
	m.got += n
	if t&packet.Last != 0 {
		r.sendDone(p, t)
	}
	return true
}

// sendDone completes a SEND's receive buffer, after the invalidation that it carries
// (§9.4.1.1.3). A key that cannot be invalidated ends the connection, and the packet is
// acknowledged all the same: the fault is the requester's application's (§9.9.6.3, class J).
func (r *Responder) sendDone(p *packet.Packet, t packet.Traits) {
	m := &r.msg
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(m.got), Flags: flags(p, t), Imm: uint64(p.Imm)}
	m.kind = 0
	if t&packet.HasIETH != 0 {
		reg := r.qp.Dev.Table.Lookup(p.InvRKey)
		if reg == nil || !reg.Remote || !reg.Matches(r.qp.PD, &r.qp.Mem, p.InvRKey) {
			wc.Status = verbs.StatusRemoteInvalid
			r.err = &Refused{Syndrome: packet.ACK, PSN: p.PSN, Op: p.Op, Reason: fmt.Sprintf("key %#08x is nothing that this peer may invalidate", p.InvRKey)}
		} else {
			reg.Revoke()
			wc.Flags |= verbs.WCWithInv
			wc.InvSTag = p.InvRKey
		}
	}
	r.complete(wc)
}

// flags are the receive completion's, as the last packet of a message has them. Imm
// says nothing without them.
func flags(p *packet.Packet, t packet.Traits) (f verbs.WCFlags) {
	if p.Solicited {
		f |= verbs.WCSolicited
	}
	if t&packet.HasImm != 0 {
		f |= verbs.WCWithImm
	}
	return f
}

// write places a packet of an RDMA WRITE.
func (r *Responder) write(p *packet.Packet, t packet.Traits) bool {
	m := &r.msg
	if t&packet.First != 0 {
		if p.RETH.Len > packet.MaxMessage {
			r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("a message of %d bytes", p.RETH.Len))
			return false
		}
		if !r.allowed(p, p.RETH.RKey, p.RETH.VA, uint64(p.RETH.Len), mem.RemoteWrite) {
			return false
		}
		m.reth, m.got = p.RETH, 0
	}
	n, left := uint64(len(p.Payload)), uint64(m.reth.Len)-m.got
	if last := t&packet.Last != 0; last && n != left || !last && n >= left {
		r.refuse(packet.NAKInvalidRequest, p, fmt.Sprintf("%d bytes where %d of %d are left", n, left, m.reth.Len))
		return false
	}
	// Taken before anything is placed: without one the packet comes again.
	if t&packet.HasImm != 0 && !r.takeRecv(p) {
		return false
	}
	if !r.place(p) {
		return false
	}
	m.kind, m.got = packet.Write, m.got+n
	if t&packet.Last != 0 {
		m.kind = 0
		if t&packet.HasImm != 0 {
			r.complete(verbs.WC{Opcode: verbs.WCRecvImm, ByteLen: m.reth.Len, Flags: flags(p, t), Imm: uint64(p.Imm)})
		}
	}
	return true
}

// place copies a packet of a WRITE to where it belongs.
func (r *Responder) place(p *packet.Packet) bool {
	if len(p.Payload) == 0 {
		return true
	}
	m := &r.msg
	reg, off, f := r.find(m.reth.RKey, m.reth.VA+m.got, uint64(len(p.Payload)), mem.RemoteWrite)
	if f != mem.None {
		r.refuse(memoryFault, p, fmt.Sprintf("key %#08x was revoked while the peer wrote: %v", m.reth.RKey, f))
		return false
	}
	var cur mem.Cursor
	cur.Set(reg.Pieces())
	cur.Skip(int(off))
	gen := reg.Gen()
	ok := reg.Discarding() || mem.CopyTo(&cur, p.Payload)
	reg.Release()
	if !ok {
		reg.Faulted(gen)
		r.refuse(packet.NAKRemoteOperational, p, "the memory cannot be touched")
	}
	return ok
}
