package roce

import (
	"time"

	"softiser/rdma/internal/roce/packet"
)

// noticeEvery is how often a peer is told at most that its packets are marked on their way:
// that of the adapters (DCQCN's N).
const noticeEvery = 50 * time.Microsecond

// marks is what a connection knows of congestion on the way from its peer.
type marks struct {
	seen bool      // since the peer was last told
	told time.Time // when that was
}

// heedLocked takes note of what routers, and the peer, say by the IP header of a packet.
func (b *base) heedLocked(p *packet.Packet) {
	if p.ECN == 0 || !b.info.Remote.IsValid() {
		return // only the peer of a connection can be told; of who sends datagrams nothing but an address is known
	}
	b.send.HeedMarks() // a peer that lets its packets be marked tells us of marks on ours
	if p.ECN == packet.CE {
		b.port.count.marked.Add(1)
		b.marks.seen = true
	}
}

// notifyLocked adds a notice of congestion (CNP) for the peer, if one is due.
func (b *base) notifyLocked() bool {
	if !b.marks.seen {
		return false
	}
	now := time.Now()
	if now.Sub(b.marks.told) < noticeEvery {
		return false
	}
	b.marks = marks{told: now}
	b.out.Packet = packet.Packet{BTH: packet.BTH{Op: packet.CNP, PKey: packet.DefaultPKey, BECN: true, QPN: b.info.RemoteQPN}}
	b.out.Payload, b.out.N = nil, 0
	b.sendLocked(func() (bool, error) { return b.send.Add(&b.out.Packet, nil, 0, true) })
	b.port.count.notices.Add(1)
	return true
}
