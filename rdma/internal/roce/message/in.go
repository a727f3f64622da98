package message

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// In executes the SENDs and WRITEs that a peer sends, packet by packet, each of which is
// the one that follows the one before. It is not for concurrent use. It takes receive
// buffers by TakeRecv, and looks at nothing else of the queue pair that changes.
type In struct {
	qp  *verbs.QP
	mtu int

	kind packet.Traits // of the message whose last packet has not come: packet.Send, packet.Write; 0: none

	taken bool // a receive buffer: of a SEND, or of a WRITE with immediate data
	buf   verbs.RecvBuf
	cur   mem.Cursor // where the next byte of a SEND goes
	got   uint64     // bytes so far

	reth packet.RETH // of a WRITE

	wcs    []verbs.WC
	faults uint64
}

// Init prepares m for a queue pair, whose Mem, PD, Dev and queues are set.
func (m *In) Init(qp *verbs.QP, mtu packet.MTU) { m.qp, m.mtu = qp, mtu.Bytes() }

// Faults is the number of packets of WRITEs for memory that cannot be touched.
func (m *In) Faults() uint64 { return m.faults }

// Open says whether a message has begun and not ended.
func (m *In) Open() bool { return m.kind != 0 }

// TakeWCs moves the receive completions since the last call behind wcs.
func (m *In) TakeWCs(wcs []verbs.WC) []verbs.WC {
	wcs = append(wcs, m.wcs...)
	m.wcs = m.wcs[:0]
	return wcs
}

// Misfit looks at an opcode's place in its message, and at the length that it has there
// (§9.7.4.1.3, §9.7.4.1.6). The result says what is wrong; "" that nothing is.
func (m *In) Misfit(p *packet.Packet, t packet.Traits) string {
	first, last := t&packet.First != 0, t&packet.Last != 0
	switch n := len(p.Payload); {
	case first && m.kind != 0:
		return "the message before has not ended"
	case !first && m.kind != t&(packet.Send|packet.Write):
		return "no such message has begun"
	case !last && n != m.mtu:
		return fmt.Sprintf("%d bytes in a packet that is not the last, with a path MTU of %d", n, m.mtu)
	case n > m.mtu:
		return fmt.Sprintf("%d bytes with a path MTU of %d", n, m.mtu)
	case last && !first && n == 0:
		return "nothing in the last packet of a message"
	}
	return ""
}

// Execute executes a packet that fits: nil, NoBuffer, or what is wrong with it. After
// that the caller calls Fail or Drop.
func (m *In) Execute(p *packet.Packet, t packet.Traits) *Fault {
	if t&packet.Write != 0 {
		return m.write(p, t)
	}
	return m.send(p, t)
}

// Drop forgets the message that was coming. The receive buffer that it has taken is the
// next one's (§9.9.3, class D).
func (m *In) Drop() { m.kind = 0 }

// Fail is Drop that completes the receive buffer, if one was taken.
func (m *In) Fail(s verbs.Status) {
	if m.kind = 0; m.taken {
		m.complete(verbs.WC{Opcode: verbs.WCRecv, Status: s})
	}
}

// complete completes the receive buffer that has been taken.
func (m *In) complete(wc verbs.WC) {
	wc.ID, wc.QP = m.buf.ID, m.qp
	clear(m.buf.Segs)
	m.taken = false
	m.wcs = append(m.wcs, wc)
}

// takeRecv takes a receive buffer, unless there is one that a message before has left. A buffer
// whose completion there is no room for counts as none.
func (m *In) takeRecv() *Fault {
	if !m.taken && (!m.qp.RecvCQ.Takes(len(m.wcs)) || !m.qp.TakeRecv(&m.buf)) {
		return NoBuffer
	}
	m.taken = true
	if !LocalKeys(m.qp, m.buf.LKeys, m.buf.Segs, true) {
		return &Fault{packet.NAKRemoteOperational, verbs.StatusLocalProtection, "the receive buffer lies outside the memory region of its key"}
	}
	return nil
}

// send places a packet of a SEND.
func (m *In) send(p *packet.Packet, t packet.Traits) *Fault {
	if t&packet.First != 0 {
		if f := m.takeRecv(); f != nil {
			return f
		}
		m.kind, m.got = packet.Send, 0
		m.cur.Set(m.buf.Segs)
	}
	n := uint64(len(p.Payload))
	if n > m.buf.Size-m.got {
		return &Fault{packet.NAKInvalidRequest, verbs.StatusLocalLength, fmt.Sprintf("more than the %d bytes of the receive buffer", m.buf.Size)}
	}
	if !mem.CopyTo(&m.cur, p.Payload) {
		return &Fault{packet.NAKRemoteOperational, verbs.StatusLocalFault, "the receive buffer cannot be touched"}
	}
	if m.got += n; t&packet.Last != 0 {
		return m.sendDone(p, t)
	}
	return nil
}

// sendDone completes a SEND's receive buffer, after the invalidation that it carries
// (§9.4.1.1.3). A key that cannot be invalidated ends the connection, and the packet is
// acknowledged all the same: the fault is the requester's application's (§9.9.6.3, class J).
func (m *In) sendDone(p *packet.Packet, t packet.Traits) (f *Fault) {
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(m.got), Flags: Flags(p, t), Imm: uint64(p.Imm)}
	m.kind = 0
	if t&packet.HasIETH != 0 {
		reg := m.qp.Dev.Table.Lookup(p.InvRKey)
		if reg == nil || !reg.Remote || !reg.RevokeNamed(m.qp.PD, &m.qp.Mem, p.InvRKey) {
			wc.Status = verbs.StatusRemoteInvalid
			f = &Fault{Syndrome: packet.ACK, Reason: fmt.Sprintf("key %#08x is nothing that this peer may invalidate", p.InvRKey)}
		} else {
			wc.Flags |= verbs.WCWithInv
			wc.InvSTag = p.InvRKey
		}
	}
	m.complete(wc)
	return f
}

// Flags are the receive completion's, as the last packet of a message has them. Imm
// says nothing without them.
func Flags(p *packet.Packet, t packet.Traits) (f verbs.WCFlags) {
	if p.Solicited {
		f |= verbs.WCSolicited
	}
	if t&packet.HasImm != 0 {
		f |= verbs.WCWithImm
	}
	return f
}

// write places a packet of an RDMA WRITE.
func (m *In) write(p *packet.Packet, t packet.Traits) *Fault {
	if t&packet.First != 0 {
		if f := m.writeBegins(p); f != nil {
			return f
		}
	}
	n, left := uint64(len(p.Payload)), uint64(m.reth.Len)-m.got
	if last := t&packet.Last != 0; last && n != left || !last && n >= left {
		return &Fault{Syndrome: packet.NAKInvalidRequest, Reason: fmt.Sprintf("%d bytes where %d of %d are left", n, left, m.reth.Len)}
	}
	// Taken before anything is placed: without one the packet comes again.
	if t&packet.HasImm != 0 {
		if f := m.takeRecv(); f != nil {
			return f
		}
	}
	if f := m.place(p); f != nil {
		return f
	}
	m.kind, m.got = packet.Write, m.got+n
	if t&packet.Last != 0 {
		m.kind = 0
		if t&packet.HasImm != 0 {
			m.complete(verbs.WC{Opcode: verbs.WCRecvImm, ByteLen: m.reth.Len, Flags: Flags(p, t), Imm: uint64(p.Imm)})
		}
	}
	return nil
}

// writeBegins looks at what the first packet of a WRITE announces.
func (m *In) writeBegins(p *packet.Packet) *Fault {
	h := &p.RETH
	if h.Len > packet.MaxMessage {
		return &Fault{Syndrome: packet.NAKInvalidRequest, Reason: fmt.Sprintf("a message of %d bytes", h.Len)}
	}
	if f := Allowed(m.qp, h, mem.RemoteWrite); f != mem.None {
		return &Fault{Syndrome: MemoryFault, Reason: fmt.Sprintf("%d bytes at %#x of key %#08x: %v", h.Len, h.VA, h.RKey, f)}
	}
	m.reth, m.got = *h, 0
	return nil
}

// place copies a packet of a WRITE to where it belongs.
func (m *In) place(p *packet.Packet) *Fault {
	if len(p.Payload) == 0 {
		return nil
	}
	reg, off, f := Find(m.qp, m.reth.RKey, m.reth.VA+m.got, uint64(len(p.Payload)), mem.RemoteWrite)
	if f != mem.None {
		return &Fault{MemoryFault, verbs.StatusFlushed, fmt.Sprintf("key %#08x was revoked while the peer wrote: %v", m.reth.RKey, f)}
	}
	var cur mem.Cursor
	cur.Set(reg.Pieces())
	cur.Skip(int(off))
	gen := reg.Gen()
	ok := reg.Discarding() || mem.CopyTo(&cur, p.Payload)
	reg.Release()
	if !ok {
		m.faults++
		if _, shared := reg.Faulted(gen); shared {
			return &Fault{packet.NAKRemoteOperational, verbs.StatusFlushed, "the memory cannot be touched"}
		}
	}
	return nil // who owns a window looks at what it counts
}
