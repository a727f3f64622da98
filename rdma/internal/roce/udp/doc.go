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
//
// # RoCE over plain UDP sockets (ADR 162)
//
// Context. The checksum of RoCE v2 covers the whole IP header, the IPv4 identification with it, which
// a UDP socket neither sets nor sees. Raw sockets would, and take CAP_NET_RAW; this project runs
// without privileges.
//
// Decision. rdma/internal/roce/udp uses plain sockets, and those settings under which everything in
// the header is known: not connected, path MTU discovery on (DF, identification 0), or messages that
// the kernel cuts into packets (GSO, identification counted up from 0 in each). The ICRC of a packet
// therefore depends on how it will be sent; who computes it asks Lane.MaxPackets before, and does it
// again after ErrNoGSO. IP_PMTUDISC_DO, not PROBE: what a router says about the path is to be
// believed, as a packet that is too long must be an error (TooLongError) and not silence.
//
//   - One socket per address receives, on port 4791; several share it by SO_REUSEPORT and a classic
//     BPF program that looks at the destination queue pair, so that a queue pair's packets stay in
//     order whatever their source port. A wildcard address is refused: the ICRC needs the address.
//   - Other sockets send (lanes), each from a source port of its own in the range that the standard
//     gives to flows, the first from rxe's port for management. They drop what comes. So routes with
//     several paths spread the flows, and senders do not meet at one socket.
//   - The UDP checksum is on with GSO, which the kernel does not do without, and off otherwise, as
//     with rxe. IPv6 sockets take packets without it (UDP_NO_CHECK6_RX), or nothing of rxe's would
//     arrive.
//   - 8 MiB of receive buffer are asked for, and what was given can be read: 25 packets of 4 KiB fit
//     the default, and rxe may have 128 on their way.
//   - Where rdma_rxe is loaded no process can have the port in the first network namespace, whatever
//     options it sets: the error says so.
//
// Other ways. MSG_ZEROCOPY: over loopback the kernel copies all the same, at twice the price, and
// memory that changes before it is sent makes a wrong ICRC. Connected sockets: their identification
// begins at random.
//
// A packet's payload is named and not copied (port.Sender), if nobody may change it before it is sent:
// that of a Send or RDMA Write belongs to the queue pair until its completion. A READ's answer comes
// from memory that its owner may write to at any time; a packet whose ICRC was made of other bytes
// than those sent would be lost, and cost rxe 2 s. Such payload is copied, in one pass with the ICRC
// where the processor has the means (crc32c.CopyIEEE).
//
// Consequences. Sending is by reference up to the kernel's copy, but for answers to READs. Receiving
// copies once more, from the batch to where a packet's payload belongs: its place is not known before
// its header is read. Over loopback, two processors under load of others, 50,000 packets in three
// turns (BenchmarkLoopback): 4 KiB payload, 0.4 to 1.1 µs per packet with GSO and GRO against 3.3 to
// 5.2 µs of a plain UDP socket with a call per packet, about 7 times (3.8 to 9.4 GB/s against 0.8 to
// 1.2); batches of single packets 2.0 to 3.2 µs. The ICRC is not in these figures; with it, made and
// checked, 1.5 µs per packet of 4 KiB (2.7 GB/s) in the best of three turns. Linux's rping over rxe
// (kernel 6.1, in a guest on a tap device) ran against a loop of these parts, connection manager, port
// and the machines of rc, in both roles: 5 rounds each of 100, 3000 and 65000 bytes as the client,
// which verifies them, and 10 of 3000 and 65000 as the server, without a repetition and without a
// packet that either side refused; as the client also over IPv6 and with a path MTU of 4096. That loop
// is TestRping, which needs no guest.
package udp
