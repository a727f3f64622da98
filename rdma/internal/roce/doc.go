// Package roce is the engine of RDMA over UDP: RoCE v2 (IBA vol. 1 with annex A17) behind
// the seam of package verbs. A [QP] is a reliable connection, an [Unreliable] a connection
// or an end for datagrams without acknowledgements. What ties their parts together:
//
//	host      UDP port 4791 of an address, which all devices of the process share
//	start     connection manager: who asks whom, for what, and what was agreed on
//	base      number, goroutine, statistics: what all of them have
//	pump      packets in, packets out: the machines of rc between port and queues
//	unreliable, connection, datagram   the same for those of uc and ud; lookups and groups
//	teardown  the goroutine of a connection: handlers, events, and the end
//	local     requests that do not go to the wire
//
// # Who runs what
//
//	port's receiver   take, once per packet; batchEnd: answers, new requests, completions
//	poster            Push: what was queued leaves on the caller's goroutine
//	timer             tick: what was not answered in time
//	loop, one per QP  CQ handlers, events, the handshake of the end, the flush
//
// Packets of all queue pairs of an address come by one goroutine, which must not wait for
// the handlers of one: so these run on the queue pair's own. Everything else happens under
// QP.Mu, sending too, as it does not wait for the peer: the window bounds it. The
// connection manager has a lock of its own and calls back without it; nothing here calls
// it with QP.Mu held.
//
// A queue pair number stays taken until the connection manager has forgotten its last
// connection, lest a packet that comes late is taken for one of the next.
package roce
