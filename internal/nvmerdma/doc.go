// Package nvmerdma is the NVMe/RDMA transport (NVMe over RDMA Transport Specification):
// the capsules and the data of one queue over one queue pair of internal/rdmamsg, seen from
// its controller ([Controller]) and from its host ([Host]).
//
// A capsule is a Send: the submission queue entry and, behind it, in-capsule data. A
// response is a Send of the 16 bytes of a completion queue entry. Data goes by RDMA, which
// the controller alone starts, to and from the memory that a keyed SGL descriptor names:
//
//	host                                              controller
//	  Send [SQE, keyed SGL] (a read) ────────────────▶
//	        ◀──────────────────────── RDMA Write… of the data
//	        ◀──────────────────────── Send [CQE]
//	  Send [SQE, offset SGL, data] (a short write) ──▶
//	        ◀──────────────────────── Send [CQE]
//	  Send [SQE, keyed SGL] (a write) ───────────────▶
//	        ◀──────────────────────── RDMA Read Request…
//	  RDMA Read Response… ───────────────────────────▶
//	        ◀──────────────────────── Send [CQE]
//
// The response is a Send with Invalidate of the command's key where its descriptor says so
// (subtype Fh), and of no other key: what the host had registered for the command is closed
// before the host learns that it is over.
//
// A connection begins with private data in its request and its reply, or in its refusal:
// [Request], [RejectError].
//
// A host opens one window over exactly the memory of a command, under a fresh key, and
// closes it before the command is told to be over, whether or not the controller has. What
// fits goes in the capsule, copied, except on the admin queue.
//
// # What a host may have
//
// A host knows how many commands its queue has room for, so there are no credits: it is
// a breach to have more outstanding, and ends the connection. Receive buffers are shared
// by all connections; a connection that holds more than its share while they are scarce
// has its in-capsule data dropped, and the command fails with a status that asks for
// another try.
//
// # Aborted transfers
//
// Cancel takes the memory of a Read away at once, and its answer is dropped when it comes.
// The response waits for that answer: a host that has seen the response may invalidate the
// memory, and a Read of it that is still under way would end the connection.
//
// # Locks
//
// conn.mu guards the slots or commands, the windows and the pump of a connection; it is
// held across Enqueue, never across Push or an up-call.
package nvmerdma
