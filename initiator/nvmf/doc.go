// Package nvmf is the host of NVMe over Fabrics: it connects to subsystems and makes their
// namespaces volumes.
//
//	ns, err := nvmf.Open(ctx, cfg)      // one namespace, with an association of its own
//	ns.Submit(&req)                     // a blockio.Volume
//
//	entries, err := nvmf.Discover(ctx, cfg)
//
// Queues go over TCP, or over RDMA on soft iWARP or RoCE (Config.Transport); nothing above
// the connections knows which.
//
// # An association
//
// An [Association] is what the standard calls so: an admin queue and I/O queues to one
// controller, each a connection. Requests stay with the queue that they were first submitted
// to, so that a load of many goroutines spreads over all of them.
//
//	Submit ── prepare: range, limits ──> queue: waiting ── carve ──> slot ──> transport
//	                                        ^                                    |
//	             try again, resend ─────────┴──── answered, or the queue is lost ┘
//
// Nothing is allocated per command, and data is neither staged nor copied here.
//
// # When a connection is lost
//
// The loss of any queue is that of the association. All connections are closed; when no
// memory is in use any more, a new association is made, for as long as
// Config.CtrlLossTimeout says. Commands that were outstanding are sent again if repeating
// them cannot change their result; a compare and write ends with ErrOutcomeUnknown. Before
// anything is sent again the namespaces must prove to be the same volumes, with blocks of
// the same size. Requests of queues that are not granted any more go to the others.
//
// # Threads
//
// Every method may be called from any goroutine. Done callbacks run on the receive goroutine
// of a connection and must not block; they may Submit. Each association has three goroutines:
// one keeps time, one waits for events of its controller, one looks at its namespaces when
// they may have changed. A fourth is there while it looks for its controller.
//
// # NVMe: one association, made again as a whole (ADR 127)
//
// Context. A host has an admin queue and I/O queues with a controller, each a connection. When one is
// lost, the standard offers no way to repair it: the controller belongs to its admin queue, and a new
// one is made by a new Connect. Commands that were outstanding may have been carried out or not, and
// may still be under way in the old controller.
//
// Decision. The loss of any queue is the loss of the association (initiator/nvmf). All connections are
// closed, and nothing goes on before the transport has said of each that no memory of a command is in
// use. Then a new association is attempted, at growing intervals, until CtrlLossTimeout. Commands keep
// their slots meanwhile, and are sent again in their old order when the controller is enabled and each
// namespace has proved to be the same: identifiers and block size. If not, the association fails, and
// nothing is written.
//
// Sent again is what may be repeated: Read, Write, Flush, Dataset Management, Write Zeroes, Verify. A
// fused Compare and Write ends with ErrOutcomeUnknown, a command that has timed out with ErrTimeoutUnknown.
// As Linux does, the host trusts the controller that no write of a connection that has been closed
// takes effect after its host has come back; ours keeps to it (ADR 121) as soon as it knows of the
// end. Until then, or until the keep alive timeout, the old controller carries out whatever arrives, and
// a new one beside it, so the host ends connections that it gives up by a reset: TCP would go on sending
// what waits in the socket, for minutes, and a write of it could come over a path that works again after it
// had been repeated over the new association, and followed by another one. iSCSI needs none of that, as its login
// ends the old session.
//
// Every association has as many queues, as deep, as its controller grants, up to what was asked for
// and, in depth, what the first one had. A request stays with the queue that it was first submitted
// to, so that a load keeps to its receive goroutine; new ones take the queues in turn. What waits in a
// queue that a later controller does not grant goes to the others, each request from its beginning: it
// may be repeated as a whole if its commands may.
//
// A refusal that the controller calls final (Do Not Retry: the subsystem is gone, the host is not
// allowed any more) is believed when CtrlLossTimeout is over, and is the reason that requests fail
// with; without such a time after 20 seconds of nothing else, where Linux gives up at once: a target
// that is being started may not have its subsystems yet.
//
// Keep Alive goes out at half of its time-out, as the controller has it, which may have rounded it
// (Get Features); a path is not taken for fenced before the longer one of both is over; where the
// controller counts any command (TBKAS) the answer to one that was sent since the last look stands for
// it, and each quarter is looked at: an answer alone does not say when the controller has heard of its
// command, and of the Keep Alive itself it would take the next one's place. One Asynchronous
// Event Request is outstanding, the next one follows when the log page has been read and a tenth of a
// second has passed: a controller that has much to tell is heard at our pace.
//
// The controller of an NVMe volume has no word for "my cache is gone". Ours tells the epoch of the
// cache, which SCSI's INQUIRY tells as well (ADR 79), in the vendor's part of Identify Namespace,
// bytes 384 to 403: "CEP1" and 16 bytes. With a change of it the next flush fails. Of other
// controllers a loss is not noticed, as Linux does not.
//
// Other ways. Reconnecting a single I/O queue: nothing says which of its commands were carried out,
// either, and Linux does not do it.
//
// Consequences. A write that a controller of somebody else's still has under way may overtake a later
// one, and with any controller one that the network holds up for longer than a new association takes. A load over a
// connection that is lost waits for a new association even if other queues still work.
package nvmf
