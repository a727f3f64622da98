package ud

import (
	"encoding/binary"
	"net/netip"

	"softiser/rdma/internal/roce/packet"
)

// GRHLen is how many bytes of a receive buffer come before the payload.
const GRHLen = 40

// PutGRH writes the network header of a packet as rxe delivers it (IBA vol. 1 annex
// A17.4.5.1): what a socket is not told of it is as most senders have it. That is traffic
// class and flow label 0, identification 0, TTL or hop limit 64. Over IPv4 the checksum
// is right: rdma-core tells the two forms apart by it.
func PutGRH(b *[GRHLen]byte, from, to netip.Addr, p *packet.Packet) {
	const hops, protocolUDP, udpLen = 64, 17, 8
	*b = [GRHLen]byte{}
	n := udpLen + p.Op.Len(len(p.Payload))
	if !from.Is4() || !to.Is4() {
		b[0] = 6 << 4
		binary.BigEndian.PutUint16(b[4:], uint16(n))
		b[6], b[7] = protocolUDP, hops
		*(*[16]byte)(b[8:]), *(*[16]byte)(b[24:]) = from.As16(), to.As16()
		return
	}
	h := b[20:]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
	h[6] = 0x40 // don't fragment
	h[8], h[9] = hops, protocolUDP
	*(*[4]byte)(h[12:]), *(*[4]byte)(h[16:]) = from.As4(), to.As4()
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}
