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
//
// # NVMe/RDMA beside iSER (ADR 130)
//
// Context. NVMe/RDMA is the path of iSER with a thinner protocol: messages in Sends, data by RDMA that
// the target starts. internal/rdmamsg was made for that. Both protocols open a connection with an MPA
// request, and both ask for the same port.
//
// Decision. internal/nvmerdma puts NVMe's seam (nvme.QueueTransport) on rdmamsg: a response is a
// message whose tag names its command, PutData a Put before it, GetData a Get.
//
//   - A portal looks at the private data, which stays in the socket as all first bytes do: NVMe where
//     the record format is 0 and the host's receive queue has entries, iSER where there is Linux'
//     header or nothing, and the rest is refused by MPA's reject. Private data long enough for NVMe
//     goes to NVMe whatever it says, because only there is a status for what is wrong with it.
//   - A slot lives until its response has been reaped, and a queue pair reaps in order: a Send behind
//     an RDMA Read completes with the Read. Hosts have filled their queue again long before, so slots
//     are made as they are needed, and what bounds a host is the number of its commands whose
//     responses it cannot have seen.
//   - The response to a command that was aborted while its data was being read waits for the host's
//     answers. A host may invalidate its memory when it sees the response; siw ends the connection if
//     a Read of it is under way then. The memory of the volume is free at once, as for iSER (ADR 24).
//   - In-capsule data is 4096 bytes: Linux 5.4 to 5.12 lose data when there is more. Receive buffers
//     are shared by all connections, and scarce ones are shared out as iSER's are (ADR 25); the status
//     is Command Interrupted, which hosts try again.
//   - Each front end has a device of its own: its receive buffers have another length.
//
// Other ways. Ports by protocol, as Linux' target has them: a target would need two addresses more,
// and initiators would have to be told. One device for iSER and NVMe/RDMA: receive buffers of 8 KiB
// for messages of 64 bytes, or a queue pair told its queue before the private data has been read.
// Queues sized by credits: NVMe has none.
//
// Consequences. rdmamsg knows how many messages the peer cannot have read yet, and a message's cost
// has become a tag. A slot of NVMe carries what the upper layer keeps with it, because slots are no
// longer as many as the queue's entries; over TCP there are twice as many, since the same is true for
// all responses of one system call.
package nvmerdma
