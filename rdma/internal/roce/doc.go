// Package roce is the engine of RDMA over UDP: RoCE v2 (IBA vol. 1 with annex A17) behind
// the seam of package verbs. A [QP] is a reliable connection, an [Unreliable] a connection
// or an end for datagrams without acknowledgements. What ties their parts together:
//
//	host        UDP port 4791 of an address, which all devices of the process share
//	connect     the active side of a connection, and connections made without the manager
//	listen      the passive side
//	start       what a connection is made of, once both sides have agreed
//	ports       the ports of rdma_cm, which name services within an address
//	base        number, goroutine, statistics: what all of them have
//	life        the goroutine of a queue pair: handlers, events, and the end
//	pump        packets in, packets out: the machines of rc between port and queues
//	unreliable, connection, datagram   the same for those of uc and ud; lookups and groups
//	teardown    how a reliable connection ends
//	paths       the ways to peers, which the connections of a port share
//	congestion  ECN marks of routers, and the CNPs that tell the peer of them
//	counters    what the queue pairs of a port have done
//
// # Who runs what
//
//	port's receiver   take, once per packet; batchEnd: answers, new requests, completions
//	poster            Push: what was queued leaves on the caller's goroutine
//	timer             tick: what was not answered in time
//	loop, one per QP  CQ handlers, events, the handshake of the end, the flush
//
// Packets of all queue pairs of an address come by one goroutine, which must not wait for
// the handlers of one: so these run on the queue pair's own. Everything else happens under
// QP.Mu, sending too, as it does not wait for the peer: the window bounds it. The
// connection manager has a lock of its own and calls back without it; nothing here calls
// it with QP.Mu held.
//
// A queue pair number stays taken until the connection manager has forgotten its last
// connection, lest a packet that comes late is taken for one of the next.
//
// # RoCE without acknowledgements: unreliable connections, datagrams, groups (ADR 172)
//
// Context. UC and UD are what iWARP has nothing for. Both are thin: what was lost is lost. What is
// left to decide is what becomes of a message of which a part is missing, of buffers that were taken
// for it, and how a process with plain UDP sockets takes part in multicast.
//
// Decision. rdma/internal/roce/uc and rdma/internal/roce/ud are machines without I/O, as rc is (ADR
// 160). What RC and UC have in common, SENDs and WRITEs cut into packets and put together, is
// rdma/internal/roce/message; a fault there is a value, which RC turns into a NAK and the others into
// silence.
//
//   - UC: what begins a message is taken under any PSN, everything else under the expected one alone.
//     A message with a gap is dropped to its end, and its receive buffer serves the next one; from a
//     shared receive queue it completes with an error instead, as other queue pairs wait for such
//     buffers. rxe swallows a message that follows a truncated one directly; here it is executed.
//   - UC: a request that cannot be sent (its memory key is no good) ends the connection. What is
//     behind it would arrive as if it had been there. Over UD it fails alone: datagrams do not depend
//     on each other.
//   - UD: a datagram longer than the MTU fails with a local length error; rxe reports success and
//     sends nothing. One that finds no buffer, or one that is too small, is dropped, and the buffer
//     stays.
//   - The 40 bytes in front of a received datagram are made up from what a socket knows: addresses,
//     lengths, the checksum over them. Traffic class, TTL and identification are not known, and stand
//     as most senders have them. rxe's own header is on the wire in the capture of udaddy, whose
//     server sends its buffer back (TestGRHAsLinux): the form is the same.
//   - Q_Key violations and other drops are counted under the names of rxe and of the port's
//     attributes. Nobody is answered, so nothing can be amplified.
//   - A multicast group is a socket of its own, bound to the group's address and a member of it on the
//     interface of the port's address; one per group and port, with its queue pairs behind it. The
//     port's socket, bound to its address, would never see such packets, and one bound to all
//     addresses would take everybody's. It is shared (SO_REUSEADDR), and IP_MULTICAST_ALL is off, so
//     that what other sockets of the host have joined does not come in.
//   - What is sent to a group comes back to members on the same host, the sender included, as with
//     rxe: who does not want it looks at the source queue pair.
//   - A port belongs to 64 groups at most.
//
// Other ways. UC and UD inside rc, with the acknowledgements switched off: half of its state has no
// meaning for them. A raw socket for the network header: privileges. Joining groups on the port's
// socket: it would have to be bound to all addresses.
//
// Consequences. TestAsLinux of both packages: the packets of ibv_uc_pingpong come out as rxe sent
// them, and those of udaddy, mckey, ibv_ud_pingpong and ib_send_bw, 37 datagrams, are received and
// come out as they were. TestDatagrams and TestMulticast run over real sockets, IPv4 and IPv6. ADR 173
// says how users reach them.
//
// # RoCE: what a packet costs (ADR 179)
//
// Context. The engine of RoCE was right before it was fast. Of a stream of 1 MiB RDMA Writes (path MTU
// 4096, both ends in one process) the ICRC took 28 % of the processor time, system calls 33, the copy
// to the region 9; a ping-pong of Sends made 4 calls of sendmmsg and 7 of recvmmsg, 3 of which found
// nothing.
//
// Decision.
//
//   - internal/crc32c folds Ethernet's polynomial with the same instructions as Castagnoli's
//     (UpdateIEEE, ADR 152); what is left of a message is reduced by multiplications, as there is no
//     instruction. The standard library has 128 bits for it, and tables below 64 bytes.
//   - The ICRC of the headers in front of the BTH is kept per length; IPv4's identification is added
//     to it from a table, as a CRC is linear. BTH, payload and pad are one run. On receipt the place
//     in the kernel's joined message (GRO) is tried as the identification first: solving is left for
//     packets that came another way.
//   - A receiver whose call came back with room has emptied its socket, and waits without looking
//     again. Packets are handed on inside the poller's callback for that; so nobody may wait for it
//     who is handed one (Receiver.Close does not).
//   - An acknowledgement alone, for which a handler will run, is left to the queue pair's goroutine:
//     it goes with what the handler posts, as the short end of the same message of the kernel's. It
//     waits for 0.5 ms at most, and once. Polled queues are acknowledged at once, and so is everything
//     after a loss, for rxe's sake.
//   - BusyPoll spins for the port, as long as the longest of its connections wants; auto looks by the
//     rule of the streams (ADR 13, 76), which its receiver shares (sockio.Waiter). Only the kernel's
//     part is missing: SO_RCVLOWAT means nothing to datagrams, so what arrives while it looks may wake
//     a thread in the poller.
//   - With BusyPollOff a receiver waits in the call, by the rule of the streams (sockio.InCall), if
//     its socket has one queue pair and the process one processor: half the time of a ping-pong.
//     With two processors the goroutine of the queue pair is taken over by the other one, and
//     nothing is won (benchmarks/LIMITS.md).
//   - A queue pair's timer is not set back; when it runs out before anything is due it is only set
//     anew. Its slab for headers and copied payload begins at 4 KiB and grows to 256 KiB.
//
// Other ways. Payload straight from the socket to the region, by pieces of memory guessed from what is
// expected: it would save the copy of 0.3 to 0.5 µs per packet, 17 % of what is left, from a buffer
// that is in the cache for the ICRC anyway. It would take three pieces per packet, and bytes would be
// placed before their ICRC is checked. Handlers on the port's goroutine: ADR 170. MSG_ZEROCOPY: ADR
// 162.
//
// Consequences. On two cores of an AMD EPYC (AVX2, no AVX-512) under the load of others (20 to 30
// runnable), binaries in turns, processor time of both ends together: 1 MiB Writes 1.13 to 0.76 ms
// each (0.74 CPU-s per GiB: at two cores that are evenly used 2.7 GB/s, computed and not measured), 4
// KiB Writes at depth 32 5.1 to 3.2 µs, Sends with an empty Send back 8.9 to 5.8, Reads 7.1 to 4.0;
// ping-pong of Sends of 8 bytes 58 to 35 µs. Nothing is allocated (TestNoAllocations). The rows
// roce-4k-qd32, roce-1m, roce-ping- and roce-iser- of make bench are for a quiet machine; on this one,
// two processes, two repetitions: RoCE 1.27 GB/s where iWARP with CRC had 0.34, 105,000 4 KiB Writes/s
// (82,500), Send ping-pong 1.44 times Go's UDP (0.60 with busy_poll). What is left of a 1 MiB stream:
// 46 % system calls, 19 % ICRC, 17 % the copy.
package roce
