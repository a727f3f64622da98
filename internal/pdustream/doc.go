// Package pdustream moves PDUs over a byte stream without copying their data: what a
// storage protocol over TCP needs, whatever its headers say. iSCSI (internal/iscsitcp) and
// NVMe/TCP (internal/nvmetcp) stand on it.
//
//	Receiver     the stream from the peer, PDU by PDU: read-ahead, data straight to its
//	             place, data digests
//	Guess        of who asks for data: whose data comes next, so that one call takes many
//	Transmitter  the queue to the peer, and who sends from it: vectored, data by reference
//
// A protocol keeps what its PDUs mean: it reads headers, says where data goes (Parser), and
// which data it expects (Guesser); it completes what is about to leave, and is told what has
// (Sender). It is called a few times for a PDU, never for a byte.
//
// # Receiving
//
//	socket ──▶ read-ahead buffer ──▶ header: whose data is it?
//	              │                        │ Aim
//	              │                        ▼
//	              └── one recvmsg: [rest of the data][what is behind it, as far as it may be copied]
//
// The parser can stop and go on at every byte. Memory that the protocol has lent out may
// be taken away by others between two calls, and may fault; see Parser.Claim.
//
// # Transmitting
//
// A protocol queues PDUs under its lock. Whoever calls Turn becomes the transmitter, unless
// there is one: it sends all that is queued, also meanwhile, with vectored non-blocking
// calls, up to a budget. When the socket is full or the budget spent, the transmit goroutine
// goes on. A PDU that has not begun may be changed or taken out; of one that has begun
// everything is sent.
package pdustream
