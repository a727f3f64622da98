// Package iscsitcp is the datamover (RFC 5047) for iSCSI over plain TCP, for
// both roles: it frames PDUs, cuts data into Data-In and Data-Out PDUs, asks for
// data with R2Ts and keeps the optional CRC32C digests.
//
// # Receiving
//
// One goroutine per connection owns the stream (internal/pdustream). A PDU's data segment
// goes straight where it belongs:
//
//	header: whose data is it?
//	  │
//	  ├─ Data-In:  TaskBuffers.In of the ITT
//	  ├─ Data-Out: Transfer.Segs of the TTT
//	  └─ else:     a pooled buffer, for the upper layer
//
// While such data is expected, the read-ahead ends with the next header, so that
// the data behind it is not copied; otherwise it takes what is there, and many
// small PDUs cost one system call. An initiator without digests has one call aimed at the
// buffers of many short reads, in the order in which they were sent (foresight).
//
// # Transmitting
//
// Down-calls queue PDUs; Push makes the caller the transmitter (internal/pdustream). A GOOD
// SCSI Response that directly follows its last Data-In is folded into it (the S bit).
//
// # Parts
//
//	Conn         the down-calls, the life of a connection, its tasks and R2Ts
//	receiver     the stream from the peer, PDU by PDU (rx*.go)
//	foresight    of an initiator: whose data comes next (guess.go)
//	transmitter  the queue to the peer and who sends from it (tx*.go)
//	recovery     the layer of error recovery levels 1 and 2, which wraps the others;
//	             there is none at level 0 (recovery, keep, snack, lostdata)
//
// # Recovery
//
// A target at error recovery level 1 or above keeps a copy of what it has sent
// until it is acknowledged, answers SNACKs from it, and asks again for Data-Outs
// that are damaged or missing. It hands what it keeps over to another
// connection when its own has ended (iscsi.Recovery).
//
// # Locks
//
// Conn.mu guards the transmit queue, the tables of tasks and transfers, and who
// transmits. It is never held across a system call or an up-call. Three marks keep
// memory safe without it: sending (a sendmsg is using queued PDUs), placing (a
// recvmsg or copy is filling a task's memory) and a task's aimed (a recvmsg may fill
// it, and what came by mistake is not yet moved). Whoever takes memory away waits
// for them; all only last for a non-blocking call.
package iscsitcp
