// Package nvmf is the host of NVMe over Fabrics: it connects to subsystems and makes their
// namespaces volumes.
//
//	ns, err := nvmf.Open(ctx, cfg)      // one namespace, with an association of its own
//	ns.Submit(&req)                     // a blockio.Volume
//
//	entries, err := nvmf.Discover(ctx, cfg)
//
// Queues go over TCP, or over RDMA on soft-iWARP (Config.Transport); nothing above the
// connections knows which.
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
// the same size. Requests of queues that are not granted any more go to the others
// (docs/adr/0127-nvme-associations.md).
//
// # Threads
//
// Every method may be called from any goroutine. Done callbacks run on the receive goroutine
// of a connection and must not block; they may Submit. Each association has one goroutine
// that keeps time, and one more while it looks for its controller or at its namespaces.
package nvmf
