// Package pdustream moves PDUs over a byte stream without copying their data: what a
// storage protocol over TCP needs, whatever its headers say. iSCSI (internal/iscsitcp) and
// NVMe/TCP (internal/nvmetcp) stand on it.
//
//	Receiver   the stream from the peer, PDU by PDU: read-ahead, data straight to its
//	           place, data digests
//	Guess      of who asks for data: whose data comes next, so that one call takes many
//
// A protocol keeps what its PDUs mean: it reads headers, says where data goes (Parser), and
// which data it expects (Guesser). It is called a few times for a PDU, never for a byte.
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
package pdustream
