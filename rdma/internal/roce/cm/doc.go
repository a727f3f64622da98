// Package cm makes and ends connections of RoCE: the communication manager of the
// InfiniBand architecture (IBA vol. 1 chapter 12), as Linux's ib_cm and rdma_cm speak
// it, over a function that sends management datagrams and one that takes them.
//
//	active                                     passive
//	Connect ── REQ ──────────────────────────► Listener.Accept
//	        ◄───────────────────────── REP ──  Incoming.Accept     or REJ: Reject
//	Establish ── RTU ────────────────────────► Established         or its first packet: Heard
//	           …  packets of the queue pair  …
//	Disconnect ── DREQ ──────────────────────► Ended
//	        ◄──────────────────────── DREP ──
//
// Datagrams are lost, repeated, reordered and forged. So whoever waits for an answer
// repeats its message, whoever gets a message again repeats its answer, and an answer
// counts only with the communication ID that was chosen at random for it. What nobody
// has proved to have asked for is held in few places for a short time; see Limits.
//
// A Manager serves one local address. It knows queue pairs by their numbers alone: who
// uses it makes the queue pair ready to receive before Incoming.Accept and before
// Conn.Establish, and gives its number to somebody else only after Conn's Gone.
//
// What differs from Linux on purpose, and why, is in docs/adr/0161-cm-over-datagrams.md.
package cm
