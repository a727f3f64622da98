// Package iwarp is the engine of RDMA over TCP: MPA (RFC 5044, 6581), DDP (RFC 5041)
// and RDMAP (RFC 5040, 7306) behind the seam of package verbs.
//
//	cm, cm_passive          the start-up: Request, Reply, and what was agreed on
//	qp_tx, tx_build         rounds of FPDUs in one vectored call; whoever pushes, sends
//	tx_zerocopy             the same by reference
//	qp_rx, rx_header,       one goroutine per connection owns the stream: parse, check,
//	rx_place, rx_msg          place, act
//	rx_peek, rx_guess,      long payloads go from the socket to where they belong
//	rx_cut
//	readq                   Reads and atomics in flight, both ways
//	ext, empty              RFC 7306 in band; empty Writes
//	poll, autopoll          a short look before sleeping
//	gate, lend              the way to memory, and what the peer may be about to fill
//	qp_end                  Terminate, flush, close
//
// Its own are what RFC 5040 and MPA have and other providers do not: sinks of Reads are
// regions that the peer writes to, a missing buffer ends the connection, faults of
// memory are Terminate causes (gate.go has the one table), and the order of everything
// is that of one stream of bytes.
//
// Package mpa frames and negotiates, package wire is the codec; neither does more with
// a socket than to be handed one.
package iwarp
