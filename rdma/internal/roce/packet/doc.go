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
package packet
