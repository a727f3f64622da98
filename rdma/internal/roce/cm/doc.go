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
// What differs from Linux on purpose, and why, is said below.
//
// # Connections of RoCE: what we do as Linux does, and what not (ADR 161)
//
// Context. A connection of RoCE is made by datagrams (REQ, REP, RTU) that are lost, repeated and
// forged, and the other end is Linux's ib_cm. What it puts into them is known from captures; when it
// sends them is made for fabrics that lose nothing: a lost REQ or DREQ costs 6 s, and an end that
// nobody answers 100 s.
//
// Decision. rdma/internal/roce/cm sends what Linux sends: put in the place of either end of 59
// captured conversations, with the numbers which that end chose, it sends the same bytes
// (TestAsLinuxDoes; not compared are transaction IDs of what it begins). It differs in when:
//
//   - what is not answered is sent again after 200 ms, 400 ms and so on, up to the time that the peer
//     has for its answer; 16 REQs (52 s), 6 REPs (10 s), 8 DREQs (15 s). Linux answers what comes
//     twice, or asks by an MRA for patience, which it gets;
//   - an application that has not answered when a REQ comes again makes us send an MRA; after 30 s it
//     is answered for, by a REJ (timeout);
//   - exponents of time in a peer's messages are bounded (50 ms to 10 s; 70 s for MRA), or one
//     datagram would hold an entry for hours;
//   - a peer's communication ID is remembered while a connection is in TimeWait, so that a REQ that
//     comes late begins nothing;
//   - a REJ (timeout) of an end that has had none of our RTUs ends an established connection.
//
// What a stranger can do: a REQ costs one entry of about 1 KiB, at most 1024 in all and 64 of one IPv4
// address or IPv6 /64, until an RTU or a packet of the queue pair has proved the address, or for 30 s.
// Nothing is kept of a REQ that is refused, nor of a lookup (SIDR). A forged REQ makes us send one
// datagram of its own size, or, if an application accepts it, seven within 10 s (TestAmplification).
// Communication IDs, first PSNs, queue pair numbers and the GUID of the adapter are random; an answer
// needs the right ones and the right source address. Who can read them on the path can end a
// connection, as with Linux: nothing here is authenticated.
//
// Other ways. The times of Linux: simple, and 6 s for each loss. Cookies in place of entries: a REQ is
// not sent again once its REP has arrived, so what it said would have to be carried back and forth by
// a message that has no room for it.
//
// Consequences. Who uses the package makes a queue pair ready before Accept and Establish, and gives
// its number away only after Hooks.Gone. Alternate paths (LAP, APR) are dropped, as Linux does over
// RoCE.
package cm
