// Package portal listens, finds out what a connection speaks, and gives it to the front
// end for that.
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
// What concerns every wire is here: the listening sockets and their options, the look at
// the first bytes, which stay in the socket, the bound on connections that have not
// logged in, and the life of a server with its drain. What a peer says after its first
// bytes is the front end's. Another protocol is a row in sniff, a folder and a call of
// Server.Handle. What RDMA is asked for is in the private data of the MPA request alone.
//
// Locks: Server.mu guards the state, pendingSet.mu the places. Neither is held while the
// other is taken or a front end is called.
package portal
