// Package iwarp is the engine of RDMA over TCP: MPA (RFC 5044, 6581), DDP (RFC 5041)
// and RDMAP (RFC 5040, 7306) behind the seam of package verbs. A [QP] is put together
// from parts that each have one concern:
//
//	transmitter  transmitter, tx_next,   rounds of FPDUs in one vectored call; whoever pushes, sends:
//	             tx_msg, tx_build,         which message is next, its segments, their FPDUs,
//	             tx_refer, tx_round        and the round that they are in
//	zerocopy     tx_zerocopy             the same by reference
//	receiver     receiver, rx_fpdu,      the machine over the FPDUs of the stream: parse, check,
//	             rx_header, rx_place,      place, act; one table row per message type
//	             rx_msg, rdmap
//	intake       intake, rx_cut,         how the receiver's bytes come in: ahead into a buffer, or
//	             rx_peek, rx_guess         straight to where they belong, one or many in a call
//	reads, irq   reads                   Reads and atomics in flight, ours and the peer's; sinks
//	opening      opening, ext, empty     who speaks first, RFC 7306 in band, a peer that sleeps
//	lendList     lend                    memory that the peer may be about to fill
//	halt         halt, park              a receiver that stops between messages, so that the
//	                                       connection can go to another process
//	rooms        rooms                   what receivers read into and rounds are built in, lent in turn
//
// What is left to QP itself is the beginning (startup, request: what is asked for and
// agreed on), the way to memory (gate) and the end (terminate, teardown: flush, close).
// Parts reach each other through QP; what each may touch is said beside its fields:
// the transmitter's and the receiver's state belong to one goroutine at a time, the
// rest is guarded by QP.Mu.
//
// Its own are what RFC 5040 and MPA have and other providers do not: sinks of Reads are
// regions that the peer writes to, a missing buffer ends the connection, faults of
// memory are Terminate causes (gate.go has the one table), and the order of everything
// is that of one stream of bytes.
//
// Package mpa frames and negotiates, package wire is the codec; neither does more with
// a socket than to be handed one.
package iwarp
