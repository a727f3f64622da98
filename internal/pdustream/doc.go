// Package pdustream moves PDUs over a byte stream without copying their data: what a
// storage protocol over TCP needs, whatever its headers say. iSCSI (internal/iscsitcp) and
// NVMe/TCP (internal/nvmetcp) stand on it.
//
//	Receiver     the stream from the peer, PDU by PDU: read-ahead, data straight to its
//	             place, data digests
//	Guess        for the side that asks for data: whose data comes next, so that one call takes many
//	Transmitter  the queue to the peer, and who sends from it: vectored, data by reference
//	Fin          the end of a connection in good order
//
// A protocol keeps what its PDUs mean: it reads headers, says where data goes (Parser), and
// which data it expects (Guesser); it completes what is about to leave, and is told what has
// (Sender). It is called a few times for a PDU, never for a byte.
//
// # Receiving
//
//	socket ──▶ read-ahead buffer ──▶ header: whose data is it?
//	              │                        │ Aim
//	              │                        ▼
//	              └── one recvmsg: [rest of the data][what is behind it, as far as it may be copied]
//
// The parser can stop and go on at every byte. Memory that the protocol has lent out may
// be taken away by others between two calls, and may fault; see Parser.Claim.
//
// # Transmitting
//
// A protocol queues PDUs under its lock. Whoever calls Turn becomes the transmitter, unless
// there is one: it sends all that is queued, also meanwhile, with vectored non-blocking
// calls, up to a budget. When the socket is full or the budget spent, the transmit goroutine
// goes on. A PDU that has not begun may be changed or taken out; of one that has begun
// everything is sent.
//
// # What is common to PDUs over TCP is one package; what they mean stays with the protocol (ADR 154)
//
// Context. iSCSI over TCP and NVMe/TCP do the same with a byte stream: read ahead, find out from a
// header whose the data is, receive it straight into that memory, compare a digest, aim one call at
// the data of many reads (ADR 126, 140). They send alike, too: a queue, one vectored call for all of
// it, data by reference, whoever pushes transmits (ADR 13). Both had it written out, 2,700 lines that
// differed by header lengths, and by mistakes: each had one that the other did not have.
//
// Decision. internal/pdustream has the mechanism, as internal/rdmamsg has it for RDMA. Receiver owns
// the read-ahead, the place in the PDU, the vectored call, faults of memory, the digest, lone PDUs and
// the end of the stream; Guess the list of what is expected, its verification, and moving what came by
// mistake; Transmitter the queue (its links are in the PDUs, as in internal/list), the call and what
// is left of it, budgets, and the transmit goroutine. A protocol is three small interfaces that it
// implements, Parser (what the first bytes, the header and the end of a PDU mean; keeping memory while
// it is touched), Guesser (what comes next, is this it) and Sender (is this still to be sent, its
// digests, it has gone). They are called a few times for each PDU and system call, never for a byte,
// with nothing allocated.
//
// Where the two were different, the stricter one is the common one:
//
//	was                                                                             is
//	guesses                                                                         NVMe parsed header by header, with the call's memory still in use                all headers of a call are compared, what is not in its place is moved, the memory is let go of, then all are parsed (iSCSI's)
//	data in more pieces than a call takes, or more to be dropped than a call drops  iSCSI had the read-ahead follow, and took what came there for data in its place  nothing follows before the data is complete (NVMe's)
//	pieces of the PDU under way and guesses in one call                             NVMe could name more than the kernel takes                                       guesses only where they fit (iSCSI's)
//	memory that queued PDUs refer to                                                NVMe could not tell whether a call was using it                                  that is said, and its end is told (iSCSI's)
//	the answer that follows a read's data                                           NVMe learned it from any answer                                                  from headers that were right, and it is not guessed past (iSCSI's)
//
// What stays apart. Headers, lengths, limits, digests' presence and order of PDUs; whose memory it is
// and who may take it away (a task of iSCSI may end at any time, a command of NVMe's host only with
// its answer); what a PDU that is taken out of the queue has to answer for; how a breach is answered
// (a Reject or the end; a TermReq, and what comes behind it is thrown away); iSCSI's pause for a peer
// that does not read, its recovery of damaged headers, and its change to RDMA within the stream. The
// engine of iWARP keeps its own receiver: it aims at windows behind STags and checks a CRC for each
// FPDU, which reaches into every step.
//
// Other ways. Type parameters instead of interfaces: no fewer calls (the compiler does not inline
// through them), and every type of the engine carries them. A library of helpers without control of
// the loop: the loop is what was hard to get right.
//
// Consequences. A transport over TCP is its headers and its tables. pdustream's tests cut a toy
// protocol at every byte; the protocols' own tests are what they were.
//
// # A read-ahead that a call has filled becomes four times as long (ADR 155)
//
// Context. NVMe/TCP beside iSER without CRC, 4 KiB, both programs of this repository at both ends:
// random reads at depth 32 took 0.68 of iSER's CPU per operation (both ends), at depth 128 0.64, and
// 1.4 to 1.5 times its IOPS; there half of the target's time is the kernel's copy into the socket, and
// no function of ours has one per cent of it. Random writes took 1.04 of iSER's CPU and reached 0.95
// of its IOPS. Their data comes in the command's capsule (iSCSI: immediate data) by way of the
// read-ahead, and that had 16 KiB: three or four commands a call, where reads' commands come 32 and
// more at once.
//
// Decision. A read-ahead that a call has filled to its end is replaced by one of 64 KiB when it is
// next empty (internal/pdustream). It is kept then: a connection that has brought so much at once does
// it again. One that is idle, or sends little, keeps 16 KiB.
//
// With it go locks that every command took: the state of a connection when a header is looked at (only
// the receive goroutine changes what is asked there), one for each answered command's slot (now one
// for each batch), the list of a subsystem's namespaces, which all queues of all hosts shared, and
// whether a queue is closing.
//
// Measured on two virtual cores of an Intel Xeon (AVX-512, AMX) at a load of 12 to 22, so that single
// figures are good to 10 %, both pairs of programs at once, stopped and continued in turns of 60 ms,
// medians of three or four rounds of 4 s, CPU per operation of both ends, new over old:
//
//	NVMe/TCP                                                          iSCSI
//	4 KiB random write, depth 32 (iSCSI: with 64 KiB from the start)  0.71 to 0.76                0.81
//	4 KiB random write, depth 128                                     0.73
//	4 KiB random read, depth 32 and 128                               0.94 to 0.99, 0.95 to 0.96
//
// NVMe/TCP over iSER without CRC then: random write at depth 32 0.77 of the CPU and 1.28 times the
// IOPS; random reads 0.60 at depth 128, and over four queues (before the locks went) 1.2 to 1.3 times
// the IOPS. System calls for each 4 KiB read at depth 32 are 0.09 at the target and 0.10 at the host
// (iSER: 0.15 and 0.2). Over nbdkit's memory plugin with fio's nbd engine, one after the other, before
// the read-ahead grew: 4 KiB random reads at depth 32 3.9 to 6.6 times the IOPS at 0.30 of the CPU, at
// depth 128 4.2 times in one run and 1.3 in the next, 1 MiB reads 1.5 to 1.6 times at 0.57, 1 MiB
// writes 1.8 to 3.9 times at 0.56.
//
// Other ways. 64 KiB from the start: 48 KiB more for each idle connection, and for whoever has not
// logged in. In-capsule data straight into the volume: the command has to be looked at, and its memory
// lent, before its data is read, a call for each command; copying 4 KiB costs less.
//
// Consequences. A busy connection has 48 KiB more.
package pdustream
