package roce

import (
	"time"

	"softiser/rdma/internal/roce/packet"
)

// cnpInterval is the shortest time between two congestion notification packets to a peer, as
// adapters have it (DCQCN's N).
const cnpInterval = 50 * time.Microsecond

// notification is what a connection knows, as the notification point of the packets of its
// peer (annex A17.9.3), of congestion on their way.
type notification struct {
	marked  bool      // since the last CNP a packet has come that a router has marked
	lastCNP time.Time // when that was sent
}

// noteECNLocked takes note of the ECN bits of a packet.
func (b *base) noteECNLocked(p *packet.Packet) {
	if p.ECN == 0 || !b.info.Remote.IsValid() {
		return // a CNP needs a connection: of the sender of a datagram only the address is known
	}
	b.send.EnableECN() // a peer whose packets are ECN-capable sends CNPs for ours
	if p.ECN == packet.CE {
		b.port.count.ecnMarked.Add(1)
		b.np.marked = true
	}
}

// sendCNPLocked adds a congestion notification packet for the peer, if one is due.
func (b *base) sendCNPLocked() bool {
	if !b.np.marked {
		return false
	}
	now := time.Now()
	if now.Sub(b.np.lastCNP) < cnpInterval {
		return false
	}
	b.np = notification{lastCNP: now}
	b.out.Packet = packet.Packet{BTH: packet.BTH{Op: packet.CNP, PKey: packet.DefaultPKey, BECN: true, QPN: b.info.RemoteQPN}}
	b.out.Payload, b.out.N = nil, 0
	b.sendLocked(func() (bool, error) { return b.send.Add(&b.out.Packet, nil, 0, true) })
	b.port.count.cnpSent.Add(1)
	return true
}
