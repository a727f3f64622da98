// Package verbs is what package rdma and the engine of a provider share: the queues
// of a queue pair, its state, its completions, and the seam between the two.
//
//	rdma            the verbs as users see them; checks, and fills the queues
//	   |  Push, Disconnect, Close          ^  StateChanged, Cause, Ended, Event
//	   v  (Engine)                         |  (Owner)
//	verbs.QP        send queue, receive queue, CQs, state, first cause of the end
//	   ^  PostLocked                       ^  SweepLocked, TakeRecv, CQ.AddAll, FailLocked
//	   |                                   |
//	rdma                                  engine: rdma/internal/iwarp
//
// Everything that happens per message goes by direct calls on the types of this
// package, from both sides. There is one call through an interface on the hot path,
// Engine.Push, for all the requests that were queued before it. An engine exists from
// the creation of its queue pair on, so that nobody has to look whether it is there.
//
// # What an engine does
//
// It takes requests in order from SQ.Next, which passes an entry whose last byte has been
// built, reaches memory through package mem alone, and marks each entry: End, in any count
// that grows with what it sends, for requests that are over when they have left; Done and
// Status for those that the peer answers. SweepLocked then completes them in the order in which they were posted. It
// takes a buffer by TakeRecv for each message that needs one, and collects receive
// completions for CQ.AddAll. What ends the connection goes to FailLocked, from wherever
// it is found; the first cause counts. The engine's last acts are FlushSendsLocked,
// FlushRecvsLocked, the final state, and Done.
//
// # What another provider brings along
//
// Nothing here knows a stream, a Terminate or an STag of a sink. RDMA over UDP (RoCE)
// fits like this:
//
//   - End counts packet sequence numbers, unwrapped to 64 bits, and acked is the PSN
//     that the peer has acknowledged: SweepLocked is called on each ACK. Retransmission
//     starts again from the entry whose range holds the oldest PSN in flight, which
//     is found between SQ.Head and SQ.Next; it needs no list of its own.
//   - A message without a receive buffer is no end there: TakeRecv says false, the
//     engine answers RNR NAK, and the peer tries again. Engine gets a method that is
//     called when buffers have been posted then, to cut that wait short.
//   - Faults of package mem become NAK codes in a table of that engine, as they become
//     Terminate causes in iwarp's; statuses for retries that were used up join Status.
//   - Reads place into the entry's own Segs by PSN: no region is opened for a sink.
//   - An unconnected (UD) queue pair is one whose entries carry an address handle; it
//     goes to StateRTS without a peer, and FailLocked concerns single requests.
//   - One socket serves many queue pairs: its goroutine finds the QP by number and
//     calls Dispatch on the queues it has added to once per batch; Wait and Done count
//     references instead of goroutines.
//   - Disconnect is a handshake of management datagrams: Drain sends the request once
//     the send queue is empty. Connection parameters and what was agreed on are a part
//     of rdma.ConnParams and rdma.ConnInfo of that provider, beside iWARP's.
package verbs
