// Package nbd makes a remote volume (blockio.Volume, over whichever wire) a local block
// device by serving it over the Network Block Device protocol (NetworkBlockDevice/nbd, doc/proto.md):
// fixed newstyle negotiation, structured replies, FUA, flush, trim, write
// zeroes, block status, several connections.
//
// Everything that speaks NBD can then use the volume: qemu, nbdcopy, fio's nbd
// engine, nbdfuse, and the kernel's /dev/nbdN.
//
//	client ──unix socket──► conn.receive ──Request──► LUN ──iSER──► target
//	       ◄──one writev─── replies.send ◄──Done────┘
//
// # Stages of a connection
//
//	negotiate   one goroutine, options until GO or EXPORT_NAME
//	receive     the same goroutine: parses requests, reads payload into the
//	            buffer that iSER will send from, submits a batch at a time
//	yield       others have the processor first while many requests are under way, see yield.go
//	gather      short reads and writes wait for the answers to many others, see gather.go
//	done        on the session's receive goroutine: queues the reply
//	send        whoever finds replies and no sender: all of them in one writev
//
// Small payloads come out of the read-ahead buffer with one copy: a system
// call for each would cost more. Large ones are read straight into place. READ
// payload goes from the buffer that the target has filled to the socket. Both
// calls are not announced to the scheduler (ADR 78): sockets do not block and
// the memory is resident.
//
// # Bounds
//
// A connection has a fixed number of request slots and a budget of buffer
// memory; when either is used up the connection stops reading, which slows
// the client down and nothing else. Lengths are checked against the advertised
// limits before anything is allocated.
//
// # Durability
//
// A flush on one connection covers the completed writes of all: it is one of the
// volume. That is what makes CAN_MULTI_CONN true.
package nbd
