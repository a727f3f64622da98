package port

import (
	"net/netip"
	"testing"
	"time"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// FuzzTake: whatever comes is dropped and counted once, or handed to the queue pair
// that it names, and then its ICRC is right for some identification.
func FuzzTake(f *testing.F) {
	for _, name := range []string{"rping-v4", "rc-atomic", "udaddy-sidr", "ibv_uc_pingpong"} {
		for _, d := range pcaptest.RoCE(f, name) {
			if d.Dst().Addr() == netip.MustParseAddr("10.9.0.1") {
				f.Add(d.Payload(), d.Src().Port())
			}
		}
	}
	local, peer := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	f.Fuzz(func(t *testing.T, b []byte, srcPort uint16) {
		p := &Port{}
		r := newReceiver(p, new(udp.Receiver), local, time.Now())
		from := netip.AddrPortFrom(peer, srcPort)
		taken := 0
		for _, qpn := range []uint32{mad.GSIQPN, 0x11, 0x1c} {
			r.attach(qpn, netip.Addr{}, func(_ netip.AddrPort, pkt *packet.Packet) {
				taken++
				if _, ok := packet.NewFlow(from, netip.AddrPortFrom(local, udp.PortNumber)).Check(b, 0); !ok || pkt.QPN != qpn {
					t.Errorf("queue pair %#x took a packet for %#x, ICRC right: %v", qpn, pkt.QPN, ok)
				}
			}, nil)
		}
		r.take(from, b, 0)
		s := p.Stats()
		if got := s.Packets + s.Malformed + s.BadPKey + s.NoQP + s.NotPeer + s.BadICRC + s.StrangeID; got != 1 || uint64(taken) != s.Packets {
			t.Errorf("%+v, %d taken", s, taken)
		}
	})
}
