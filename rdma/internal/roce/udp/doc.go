// Package udp is the network of RoCE v2: UDP port 4791 of one local address, by plain
// sockets and without privileges.
//
//	port       the sockets of an address, and why they could not be had
//	options    what is set on them
//	steer      several receiving sockets: by destination queue pair number
//	group      sockets that receive what is sent to a multicast group
//	receive    datagrams in batches, of several packets where the kernel has joined them (GRO)
//	lane       sending from one source port
//	burst      what one call sends: packets by reference, equal ones as one message (GSO)
//	raw        sendmmsg, recvmmsg
//
// # The IPv4 identification
//
// The checksum of a packet (ICRC) covers fields of the IP header that a UDP socket
// neither sets nor sees. All but one are known: with path MTU discovery on, and a socket
// that is not connected, Linux sends DF and no options; addresses, ports and lengths are
// the caller's. The identification is what the kernel makes it: 0 for a packet by itself, and
// 0, 1, 2 … for those of one GSO message. So whoever computes the ICRC must know how a
// packet will be sent before it is sent, which Lane.MaxPackets says, and compute it again
// when Send ends with ErrNoGSO. On receipt the identification is not known at all; see
// package packet. IPv6 has none.
package udp
