// Package portal listens, finds out what a connection speaks, and gives it to the front
// end for that.
//
//	connection ──▶ Portal: place among those before login ──▶ first bytes: Hello
//	                                                                │ protocol
//	               "MPA ID Req Frame" over TCP: iSER ──┐            ▼
//	               0x43 Login Request: iSCSI ──────────┴──▶ Frontend.Accept
//
// What concerns every wire is here: the listening sockets and their options, the look at
// the first bytes, which stay in the socket, the bound on connections that have not
// logged in, and the life of a server with its drain. What a peer says after its first
// bytes is the front end's. iSCSI is the only one, over two transports. NVMe over Fabrics
// will add a Protocol, its ICReq to what sniff knows, a look behind the header of an MPA
// request at the private data, which alone tells NVMe/RDMA from iSER, and a call of
// Server.Handle.
//
// Locks: Server.mu guards the state, pendingSet.mu the places. Neither is held while the
// other is taken or a front end is called.
package portal
