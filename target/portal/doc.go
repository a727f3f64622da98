// Package portal listens, recognises the protocol of each connection by its first bytes, and
// hands the connection to the front end of that protocol.
//
//	connection ──▶ Portal: place among those before login ──▶ first bytes: Hello
//	                                                                │ protocol
//	               "MPA ID Req Frame" over TCP:        │            ▼
//	                 iSER, NVMe/RDMA by private data ──┤
//	               0x43 Login Request: iSCSI ──────────┼──▶ Frontend.Accept
//	               ICReq: NVMe/TCP ────────────────────┤
//	               ClientHello: NVMe/TCP with a key,   │
//	                 or iSCSI with certificates ───────┘
//
// This package has what every protocol needs: the listening sockets and their options, the
// look at the first bytes (which stay in the socket), the bound on connections that have not
// logged in, and the life cycle of the server, including its drain. Everything that a peer
// sends is read by the front end. To add a protocol, add a row in sniff, a front end in a
// folder of its own, and a call of Server.Handle. Whether an MPA Request asks for iSER or
// for NVMe/RDMA is told by its private data alone.
//
// Locks: Server.mu guards the state, pendingSet.mu the places. Neither is held while the
// other is taken or a front end is called.
package portal
