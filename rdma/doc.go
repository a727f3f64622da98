// Package rdma is RDMA verbs in software: remote direct memory access over any TCP
// connection, or over UDP, without RDMA hardware, kernel modules, root or pinned memory.
// It speaks iWARP and RoCE v2 bit by bit, so the peer may be this package, the Linux
// kernel's drivers siw and rdma_rxe, or a hardware RNIC:
//
//	verbs   this package: Device, PD, MR, Window, CQ, QP, SRQ, Dial, Listen
//
//	ProviderIWARP                                    ProviderRoCE
//	RDMAP   RFC 5040, 7306 (atomics, immediate)      RC, UC, UD            IBA vol. 1 chapter 9
//	DDP     RFC 5041 (segments, placement)           connection manager    IBA vol. 1 chapter 12
//	MPA     RFC 5044, 6581 (framing, CRC32C)         RoCE v2, ICRC         IBA vol. 1 annex A17
//	TCP     a *net.TCPConn                           UDP port 4791 of a local address
//
// # Objects
//
// Open makes a Device. From it come protection domains (PD), which hold memory
// regions (MR), windows (Window) and queue pairs (QP), and completion queues (CQ).
// A queue pair is one connection: work requests go in by PostSend and PostRecv,
// completions (WC) come out of its completion queues.
//
// Three ways move data:
//
//   - Send: the peer has posted a receive buffer; its owner is told.
//   - RDMA Write: into memory that the peer has registered and whose STag and
//     offset it has told us. Nobody there is told; a Send behind it arrives after it.
//   - RDMA Read: from such memory, into ours.
//
// DeviceConfig.Provider chooses the transport. What is iWARP's alone (MPA's revision, FPDU
// sizes, ready-to-receive messages) is kept apart, in ConnParams.MPA and ConnInfo.MPA,
// RoCE's (path MTU, repetitions) in ConnParams.RoCE and ConnInfo.RoCE. Everything else
// holds for both; their engines lie behind it, in rdma/internal/iwarp and
// rdma/internal/roce, and the package comment of rdma/internal/verbs describes the seam.
//
// # What only one provider has
//
// DeviceAttr says what a device can do; what it cannot is refused where it is asked for, at
// the creation of an object or when a request is posted.
//
//	                          ProviderIWARP              ProviderRoCE
//	types of queue pairs      RC                         RC, UC, UD (QPConfig.Type)
//	datagrams, multicast      -                          AH, Resolve, ServeDatagrams, JoinMulticast
//	without a manager         Client, Server (net.Conn)  Attach
//	immediate data            8 bytes; Imm, WriteImm     4 bytes; Imm, WriteImm, SendImm
//	masks of atomics          yes                        -
//	atomics, immediate data   between two of our own     with everybody
//	private data, bytes       508 each way               56, 196, 148; lookups 180, 136
//
// A datagram (TypeUD) names its receiver by an address handle, a queue pair number and a
// Q_Key, in SendWR.Dest. Those come from a lookup of a service, from a multicast group, or
// from what was received: GRHLen bytes in front of the buffer hold the sender's address,
// WC.SrcQPN its queue pair.
//
// # Life of a request
//
// PostSend copies the request into the send queue and transmits at once, on the
// calling goroutine: headers from a ring, payload by reference from the memory
// named in the request, many requests in one system call. Only when the socket is
// full does the queue pair's own goroutine take over. (Over RoCE the window of packets in
// flight takes the place of the socket's room, and one goroutine receives for an address.) At the other end one
// goroutine per queue pair reads long payloads straight from the socket to where
// they belong; short ones pass through a read-ahead buffer. Nothing is allocated on
// the way. Counters tell what was copied: QPStats.
//
// # Who owns memory
//
// Memory named in a posted request belongs to the queue pair until the request's
// completion. Touching it earlier corrupts data, or the CRC and with it the
// connection. Memory that was registered for remote access may change at any time
// while its STag is valid. When Window.Invalidate, MR.Invalidate or MR.Dereg
// returns, nothing touches the memory on behalf of a peer any more.
//
// Memory may be a file mapping. A fault in it (the file was truncated, the disk is
// full) fails the request that touched it (StatusLocalFault), not the process.
//
// # Security
//
// A peer can reach only memory that was registered, with the rights given, by
// queue pairs of the same protection domain, and through a Window only by the one
// queue pair it is bound to. An RDMA Read exposes exactly the bytes of its sink, to
// its peer, while it runs, under a fresh STag. The CRC guards against accidents,
// not against an attacker on the path; who can forge source addresses and guess numbers
// of 24 bits can disturb a connection of RoCE, as docs/THREATS.md says.
//
// # Errors
//
// A connection ends as a whole: every request outstanding completes, those that
// did not cause the end with StatusFlushed, and QP.Err tells the first cause. A
// check that fails on this side sends the peer a Terminate message with the code
// of the RFCs; both ends see a *TerminateError. Over RoCE a request that is refused is
// answered by a NAK, and both ends see a *NAKError; a request that nobody answers is sent
// again, and ends the connection with ErrTimeout when that was done often enough.
package rdma
