package port

import (
	"net/netip"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// gsi is queue pair 1, the general services interface (IBA vol. 1 §13.5.1): it takes
// and sends management datagrams.
type gsi struct {
	p    *Port
	lane *udp.Lane

	// Guarded by the connection manager's lock, under which send is called.
	psn   packet.PSN
	burst *udp.Burst
	buf   []byte
}

// gsiLane is the label of the lane whose source port is that of rxe's management
// datagrams.
const gsiLane = 0

func newGSI(p *Port) *gsi {
	return &gsi{p: p, lane: p.udp.Lane(gsiLane), psn: packet.PSN(cm.NewPSN()), burst: udp.NewBurst()}
}

// take is the Handler of queue pair 1.
func (g *gsi) take(from netip.AddrPort, pkt *packet.Packet) {
	if pkt.Op != packet.UD|packet.SendOnly || pkt.DETH.QKey != mad.GSIQKey || pkt.DETH.SrcQPN != mad.GSIQPN {
		g.p.stat.notMAD.Add(1)
		return
	}
	g.p.cm.Receive(from.Addr(), pkt.Payload)
}

// send is cm.Config.Send: what cannot be sent now is lost, and comes again.
func (g *gsi) send(to netip.Addr, b []byte) {
	peer, err := g.p.udp.Peer(to)
	if err != nil {
		g.p.stat.unsent.Add(1)
		return
	}
	flow := packet.NewFlow(netip.AddrPortFrom(g.p.udp.Addr(), g.lane.SourcePort()), netip.AddrPortFrom(to, udp.PortNumber))
	g.psn = g.psn.Add(1)
	g.buf = appendMAD(g.buf[:0], flow, g.psn, 0, b)
	g.burst.Reset()
	g.burst.Message(peer, len(g.buf))
	g.burst.Packet(g.buf)
	if err := g.lane.TrySend(g.burst); err != nil {
		g.p.stat.unsent.Add(1)
	}
}

// appendMAD appends the packet that carries a MAD; id is IPv4's identification. As
// Linux's, it asks for an acknowledgement that a datagram does not get.
func appendMAD(b []byte, flow *packet.Flow, psn packet.PSN, id uint16, m []byte) []byte {
	start := len(b)
	b = packet.Append(b, &packet.Packet{
		BTH:  packet.BTH{Op: packet.UD | packet.SendOnly, PKey: packet.DefaultPKey, QPN: mad.GSIQPN, AckReq: true, PSN: psn},
		DETH: packet.DETH{QKey: mad.GSIQKey, SrcQPN: mad.GSIQPN},
	}, len(m))
	sum := flow.Begin(b[start:], (packet.UD | packet.SendOnly).Len(len(m)), id).Add(m)
	return sum.AppendTrailer(append(b, m...), len(m))
}
