// Package verbs is what package rdma and the engine of a provider share: the queues
// of a queue pair, its state, its completions, and the seam between the two.
//
//	rdma            the verbs as users see them; checks, and fills the queues
//	   |  Push, Disconnect, Close          ^  StateChanged, Cause, Ended, Event
//	   v  (Engine)                         |  (Owner)
//	verbs.QP        send queue, receive queue, CQs, state, first cause of the end
//	   ^  PostLocked                       ^  SweepLocked, TakeRecv, CQ.AddAll, FailLocked
//	   |                                   |
//	rdma                                  engines: rdma/internal/iwarp, rdma/internal/roce
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
// # Two providers
//
// Nothing here knows a stream, a Terminate or an STag of a sink; nothing a datagram. What
// the two engines make of the same fields:
//
//	                iwarp                              roce
//	WQE.End         bytes of the stream                packet sequence numbers, unwrapped
//	acked           what the socket has taken          what the peer has acknowledged
//	TakeRecv false  ends the connection                RNR NAK, and the peer tries again
//	faults of mem   codes of Terminate                 codes of NAK
//	Reads           a region opened for the sink       placed by PSN into the entry's Segs
//	Drain           FIN                                a management datagram when all is answered
//	Wait            receive and transmit goroutine     the goroutine for handlers and the end
//
// A queue pair for datagrams (RoCE's UD) is one whose entries carry an address handle; it
// goes to StateRTS without a peer. Its requests fail alone; FailLocked is for its owner's
// faults.
package verbs
