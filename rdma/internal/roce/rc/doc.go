// Package rc is the transport service RC, the reliable connection, as two machines without
// I/O, clocks and goroutines: packets go in, packets and completions come out. Package roce
// connects them to sockets, timers and the queues of a queue pair.
//
// # Responder
//
//	request packets ──► Receive ──► memory (package mem), receive buffers, completions (TakeWCs)
//	                       │
//	                       ▼
//	                    answers ──► Next ──► response packets
//
// The Responder executes requests in the order of their PSNs, each once (IBA vol. 1 §9.7.4,
// §9.7.5):
//
//   - the expected packet is executed, and acknowledged if it asks for that;
//   - a packet ahead of it shows that others were lost: one NAK (PSN sequence error) names the
//     expected PSN. Nothing more is said until that packet comes, or until the peer has gone
//     back and the packet is missing again;
//   - a packet behind it is a duplicate: a SEND or WRITE is acknowledged again, a READ is
//     executed again, and the result of an atomic is repeated, as long as it is remembered.
//
// Responses leave in the order of the requests. The data of a READ is referred to, not copied,
// and its R_Key is checked for each packet: a key that is revoked in between ends the
// connection, and no longer gives access.
//
// # Requester
//
//	send queue ──► Next ──► request packets
//	                 ▲
//	                 │
//	response packets ──► Receive, Tick ──► completions of the send queue
//
// The Requester cuts the send queue into packets and keeps a window of them in flight. When
// one was lost, it goes back to the oldest packet without an answer and sends everything from
// there again (go-back-N). A NAK, a gap between responses (an implied NAK) or the clock tells.
//
//	requester*.go           requests out, responses in
//	responder*.go, read.go  requests in, responses out; READs and atomics
//	answer.go, resource.go  responses that wait; READs and atomics that may come again
//	window.go, path.go      what may be in flight: of a connection, between two addresses
//	rtt.go                  round-trip times, and probes for what was lost at the end
//
// # A reliable connection over RoCE: what is sent again, and when (ADR 160)
//
// Context. RC recovers from loss by going back: the requester sends everything from the oldest
// unanswered packet on. Linux's rxe as a peer sends a NAK for a gap once; answers the first NAK after
// a positive acknowledgement at once and any other one when its timer runs out, 2.1 s later; and
// notices a lost READ answer by that timer alone.
//
// Decision. rdma/internal/roce/rc is two machines without I/O and clocks, over the queues of package
// verbs.
//
//   - The responder answers as rxe does (TestAnswersAsLinux: 345 answers and acknowledgements in a row
//     of 30 captures). It differs where rxe would wait: after a gap or a duplicate it acknowledges
//     each of the next 1024 packets, and it acknowledges what it has before it asks for what is
//     missing, so that rxe's next retransmission is not left to its timer.
//   - IBA has one NAK for a gap. Here it is said again, three times at most, when the packet that it
//     was said to comes once more: the peer has gone back, and the same packet was lost again. Over
//     the network of TestLossyNetwork (six seeds) that takes the requesters' timeouts from 41 to 25
//     where 5 % is lost, from 479 to 250 where 20 % is. It is bounded because a forged packet could
//     ask for it, and each costs a requester one of its retries.
//   - Answers wait in a ring of twice the READs and atomics that were agreed on. A peer that asks and
//     does not take answers finds its packets dropped, not queued.
//   - A message too long for its receive buffer is refused as an invalid request, as IBA has it; rxe
//     6.1 says remote operational error. More READs outstanding than were agreed on are refused; rxe
//     forgets the oldest.
//   - A READ that comes again is answered by First to Last, whatever was asked for; rxe answers the
//     rest of one by Middle and Last. The requester accepts both, since a packet's place follows from
//     its PSN.
//   - A READ that comes again for a key that has been revoked gets the NAK for remote access, as
//     rxe's answer is, so that a peer without the first answer need not ask until it gives up.
//     rxe's own end is over with that, this one is not: the copy may have been late, and a peer that
//     has the answer passes over the NAK. Where the key goes while the second answer waits there is
//     silence. Answers to later requests stay queued, and are not taken for asked again.
//   - Behind the first packet of a READ's answer there is no NAK, though IBA has one: rxe completes the
//     READ with success then, whatever is missing. With the key, or the memory, gone in the middle the
//     connection ends, and a peer that goes on asking for the rest is told by that, too.
//   - The requester keeps no list of packets: send queue entries know their PSNs, unwrapped to 64
//     bits, and a packet is built anew from the entry when it is sent again. It sends what rxe sends
//     (TestRequestsAsLinux, 952 packets). A gap between answers counts as a NAK, once until there is
//     progress; what is lost twice is for the timer.
//   - Long READs go out as several requests (RequesterParams.MaxRead), because a responder sends the
//     answer to one in a single run, into the receive buffer of a socket. Where a READ is cut depends
//     on the place in it alone, not on the window: a repetition that reached beyond one request of
//     before would be none to the responder, and dropped. The model found that by standing still.
//   - Packets in flight are bounded by a window that halves with each loss and grows by one for each
//     window that was answered, because rxe has no congestion control that could tell. An answer is
//     asked for at the end of each message and twice in a window.
//
// TestLossyNetwork runs both machines against each other in a time of their own, with 0 to 20 % of the
// packets lost, doubled and overtaken: every request is executed once, in order. TestEachPacket has that
// happen to each packet of short exchanges in turn, also with one end that does what rxe's does.
//
// Other ways. Keeping copies of packets: memory for each one in flight, and payload copied. Selective
// retransmission as some adapters do: no packet says what has arrived, so only both ends of our own
// would have it.
//
// Consequences. Package roce connects these machines to sockets, timers and the verbs (ADR 170).
//
// # RoCE: connections share the way to a peer (ADR 180)
//
// Context. UDP has no congestion control, rxe none either, and a plain network tells a sender nothing
// but loss. A window for each connection (halved by a loss) bounds one of them; ten that begin at once
// send ten windows into one socket of the peer. Linux's default buffer holds 45 packets of 4 KiB. And
// half a second of time-out follows each loss at the end of what was sent.
//
// Decision. rc.Path bounds what all reliable connections between two addresses have in flight.
//
//   - The bound begins at 256 KiB, doubles with each round trip until the first loss, halves with a
//     loss (once per round trip), and grows by a packet per round trip after that; from 16 KiB to 4
//     MiB. It grows only while round trips are at most 2 ms longer than the shortest, and while it is
//     used. It stays known while the port is open, for up to 1024 peers without a connection.
//   - Fair shares: who has less in flight than an equal share may always send, others while there is
//     room. One connection alone has all of it and gives way at once; no queue of waiters is needed,
//     as whoever must wait has answers under way.
//   - Answers to READs come to this side's own socket, whose size is known: a second Path, of fixed
//     size, for all connections of the port. One READ request asks for 256 KiB at most, so that they
//     take turns.
//   - Packets count as the path MTU each: small ones take nearly as much of a socket's buffer.
//   - Round trips are timed one at a time, never of packets that were sent again. When an answer is
//     late (twice the mean and four times its variation, 10 ms at least, doubled each time), the
//     oldest packet alone is sent once more: the answer to it says what is missing. That counts for no
//     retry, and is no loss. Time-outs stay as agreed on.
//   - Congestion that routers mark (ECN) is heard: a connection whose packets have come marked sends
//     its peer a notice (CNP), every 50 µs at most, and one that gets a notice has half as much in
//     flight as it had, once per round trip. Its requests go out as such that may be marked only if its
//     peer's packets are, for rxe takes notices for nothing: so a mark never stands for a loss that
//     nobody heeds. Acknowledgements always may be marked, by which two of our kind know each other.
//     Answers to READs, UC and UD may not: nothing slows them down.
//   - A peer that has never answered a packet as large as the one that ends the connection is named
//     with the sizes: the path may drop large packets.
//   - Operators read Device.RoCEPaths (bound, in flight, round trips, rate, losses) and QP.RoCEStats.
//
// Pauses of this runtime. A collection that stops the world is not seen as loss: answers may take 537
// ms, probes begin at 10 ms and cost a packet. 400 MiB of Writes with GOGC at 5 beside a goroutine
// that makes garbage, on a machine with 20 others runnable: 40 collections, pauses up to 310 ms, 111
// probes, no time-out and nothing lost (without garbage 1 probe). TestPauseIsNoLoss has 400 ms in virtual time. The acknowledgement that waits for a
// handler does so for 0.5 ms by the clock.
//
// Other ways. Pacing by timers: Go's are no finer than what 64 packets take; the acknowledgements
// pace. DCQCN, with rates, timers and a
// recovery of its own: a second limit beside this one. Smaller time-outs: a peer takes them from the
// connection's request and ours would have to be longer than its pauses.
//
// Consequences. Peers of another kind see duplicates of single packets now and then. Between machines
// nothing was measured.
package rc
