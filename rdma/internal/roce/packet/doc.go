// Package packet encodes and decodes the packets of RoCEv2: the headers of InfiniBand's
// transport layer in UDP datagrams to port 4791, and their check value, the ICRC.
//
//	Ethernet | IPv4 or IPv6 | UDP | BTH | extended headers | payload | pad | ICRC
//	                                12    by opcode, Opcode   0..MTU    0..3   4 bytes
//
// Which extended headers follow the base transport header is the opcode's matter
// alone; one table says it (opcode.go). A Packet is all that one datagram carries:
//
//	p, err := packet.Parse(datagram)   // checks every length before it is used
//	head := packet.Append(buf, &p, n)  // headers for n bytes of payload, which stay where they are
//
// Parse does not look at the ICRC: that covers the IP header too, parts of which a
// process with a plain UDP socket never sees. Flow knows what can be known of it and
// Flow.Check solves for the rest.
//
// All integers are big-endian but the ICRC. Nothing is allocated, nothing is kept: a
// Packet's Payload is a part of the datagram. Sources: IBA vol. 1 chapter 9 and annex
// A17 (RoCEv2), checked against what Linux's rdma_rxe sends.
//
// # The ICRC is checked without seeing IPv4's identification (ADR 159)
//
// Context. RoCEv2's only protection, the ICRC, covers the IP header's identification, which a UDP
// socket can neither choose nor see. A raw socket or a packet socket would show it and needs root; so
// would a kernel module.
//
// Decision. Sending: an unconnected socket with IP_PMTUDISC_DO sends 0, and UDP_SEGMENT numbers the
// packets of a call from 0; the ICRC is computed for those. Receiving: it is solved for. The
// difference between the ICRC computed for identification 0 and the one received, taken back through
// the bytes behind the identification (a multiplication by x^-8n modulo the generator, 80 to 150 ns),
// is the identification itself if the packet is whole, and has bits above the lower 16 in all but one
// of 65536 cases if it is not. packet.IDs then asks whether the peer would send that one: plain
// sockets send 0 to 127, which leaves one damaged packet in 2^25 undiscovered; Linux's own generator
// grows by small steps, which leaves one in 2^21 while packets flow. Over IPv6 there is no
// identification and nothing is lost. All 3855 packets of 45 captures agree (TestCaptures).
//
// Other ways. A reduced basis of 16 vectors for each length of packet: the same answer from tables of
// 64 bytes for each of a thousand lengths, with a pass of 16 steps. Not checking over IPv4: the UDP
// checksum is 0 from most peers, so nothing would be left but Ethernet's.
//
// Consequences. A peer that changes its kind of identification (a new kernel, another machine under
// the same address) loses one packet, which it sends again. What 21 to 25 bits do not catch reaches
// memory; who wants more uses IPv6, or digests above (NVMe has none over RDMA; iSCSI's are off over
// iSER by RFC 7145 §9).
package packet
