// Package iser is the datamover (RFC 5047) for iSCSI over RDMA: iSER, RFC 7145,
// in the form that the Linux implementations speak. PDUs travel in Sends, each
// behind a 28-byte header; data goes by RDMA without any PDU:
//
//	READ                                     WRITE
//	I ──Send [hdr RSV, Read STag] cmd──▶ T   I ──Send [hdr WSV, Write STag] cmd, immediate data──▶ T
//	I ◀──────── RDMA Write ───────────── T   I ◀──── RDMA Read Request ────────────────────────── T
//	I ◀── SendInv(Read STag) response ── T   I ───── RDMA Read Response ────────────────────────▶ T
//	                                         I ◀── SendInv(Write STag) response ───────────────── T
//
// A [Device] is the RDMA side of a process (internal/rdmamsg): protection domain,
// receive buffers shared by all connections, and the volumes that are registered. A
// [Conn] is one connection in either role:
//
//   - Dial and Client (initiator), Serve (target): MPA first, then login PDUs in
//     Sends, from the first byte. This is what Linux does. Over RoCE DialRoCE and Accept
//     do the same behind a request of its connection manager.
//   - Upgrade: RFC 7145's own start-up. The login runs over the TCP stream; after
//     RDMAExtensions=Yes the same connection goes on with MPA.
//
// # Where Linux differs from the RFC
//
// The Write STag's base points behind the unsolicited data, not at the start of
// the buffer. Initiators post receive buffers for 128 data bytes in the full
// feature phase, whatever was negotiated; Limits says so. There is no Hello
// exchange unless iSERHelloRequired was negotiated. Remote invalidation is agreed
// on in the private data of the MPA frames.
//
// # Memory
//
// An initiator opens one window per direction over exactly the bytes of
// one command and closes it before the response goes up. A target opens nothing:
// its RDMA Reads have sinks that live for one Read, made by package rdma.
//
// # Locks
//
// Conn.mu guards the tables of a connection, its windows and its pump; it is held
// across Enqueue, never across Push or an up-call.
package iser
