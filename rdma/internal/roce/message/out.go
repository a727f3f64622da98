package message

import (
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Outgoing is a packet to be sent: its headers, and its payload as a reference into
// memory, which may be held until Release.
type Outgoing struct {
	Packet  packet.Packet
	Payload [][]byte // pieces; to be copied, or handed to the system, before Release
	N       int      // bytes in them

	region *mem.Region
}

// Release lets go of the memory. The pieces are not to be touched afterwards.
func (o *Outgoing) Release() {
	if o.region != nil {
		o.region.Release()
		o.region = nil
	}
	clear(o.Payload)
	o.Payload, o.N = o.Payload[:0], 0
}

// Take makes the n bytes at off of pieces the payload.
func (o *Outgoing) Take(pieces [][]byte, off uint64, n int) {
	var cur mem.Cursor
	cur.Set(pieces)
	cur.Skip(int(off))
	for o.N < n {
		b := cur.Next(n - o.N)
		o.Payload, o.N = append(o.Payload, b), o.N+len(b)
	}
}

// Hold keeps a region, which is held already, until Release.
func (o *Outgoing) Hold(reg *mem.Region) { o.region = reg }

// Segment makes the packet of a SEND or WRITE that begins at byte off of the message:
// its opcode, of the service that o.Packet.Op is, what goes with that, and the payload.
func Segment(o *Outgoing, e *verbs.WQE, off uint64, mtu int) {
	p, left := &o.Packet, uint64(e.Length)-off
	n := min(left, uint64(mtu))
	o.Take(e.Segs, off, int(n))
	first, last := off == 0, left == n
	p.Op |= segmentOps[e.Op][place(first, last)]
	if first && p.Op.Traits()&packet.Write != 0 {
		p.RETH = packet.RETH{VA: e.Remote.TO, RKey: e.Remote.STag, Len: e.Length}
	}
	if last {
		p.Solicited = e.Flags&verbs.FlagSolicited != 0
		p.Imm, p.InvRKey = uint32(e.Imm), e.Inv
	}
}

// place is a column of segmentOps.
func place(first, last bool) int {
	switch {
	case first && last:
		return 3
	case last:
		return 2
	case first:
		return 0
	}
	return 1
}

// segmentOps are the opcodes of a message's first, middle, last and only packet.
var segmentOps = [...][4]packet.Opcode{
	verbs.OpSend:     {packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly},
	verbs.OpSendImm:  {packet.SendFirst, packet.SendMiddle, packet.SendLastImm, packet.SendOnlyImm},
	verbs.OpSendInv:  {packet.SendFirst, packet.SendMiddle, packet.SendLastInv, packet.SendOnlyInv},
	verbs.OpWrite:    {packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteOnly},
	verbs.OpWriteImm: {packet.WriteFirst, packet.WriteMiddle, packet.WriteLastImm, packet.WriteOnlyImm},
	verbs.OpImm:      {3: packet.WriteOnlyImm}, // of no length: immediate data alone
}
