// Package iscsi is the iSCSI front end of a target (RFC 7143), over TCP and, as iSER (RFC
// 7145), over RDMA.
//
//	portal.Conn ──▶ Accept: internal/iser, internal/iscsitcp
//	                          │ datamover
//	                          ▼
//	Admit, Bind ◀── login machine ◀── conn (one per connection)
//	(policy: targets, ACL, CHAP)        │
//	                                    ▼
//	       CmdSN order, task slots: session (one per I_T nexus)
//	                                    │ scsi.Task, scsi.Port
//	                                    ▼
//	                     scsi.Device: commands on volumes
//
// A [Frontend] has targets ([Target]) with logical units ([LUN]). The PDUs and the rules of
// negotiation are in softiser/internal/iscsi, which has no I/O; what is said of iscsi.X in
// this package is that one.
//
// # The life of a command
//
// The datamover's receive goroutine delivers a SCSI Command (ControlNotify). Its
// CmdSN is checked against the window, it takes a preallocated slot, and the
// device server executes it right there when its data is at hand; what may wait
// for storage goes to workers. Data goes back through the slot's scsi.Port:
// DataIn becomes PutData (an RDMA Write, or Data-In PDUs), DataOut becomes
// GetData (an RDMA Read, or R2T and Data-Out). Respond queues the SCSI Response
// behind the data, and all of it leaves in one vectored write. The slot is free
// again when the transport has let go of its memory. Nothing is allocated per
// command, and payload is not touched, except for what came unsolicited.
//
// # What bounds an unfriendly peer
//
// A connection that sends nothing sensible is closed after Timeouts.FirstBytes,
// one that does not finish login after Timeouts.Login; of those there are at
// most so many, shared by where they come from (package portal), and the
// session table is shared likewise (shares.go). A session has at most
// twice its command window of slots, so an initiator that does not read its
// responses stops itself. Every length of a PDU has been checked by the codec
// and the datamover before it arrives here. Log lines about misbehaviour are
// limited to one per second and kind; everything is counted (see [Status]).
//
// # Sessions with several connections
//
// On TCP a session may have several connections (MaxConnections). Commands are
// numbered for the session and delivered in that order, by one goroutine at a
// time; data and status of a command travel on the connection that it came on,
// to which it is allegiant. Task slots are lent to connections, see slots.
//
// # Error recovery
//
// At error recovery level 0 (RFC 7143 §7.1), the default, a lost connection ends
// its session, its tasks are aborted, and the initiator logs in again, which
// reinstates the session. At level 1 the TCP datamover also sends lost PDUs again,
// and asks again for lost data. At level 2 the tasks of a lost connection are kept, and go
// on over another connection that reassigns them (TASK REASSIGN, RFC 7143 §7.2.2); see
// cleanupState. A new login of the same initiator port (name and ISID) ends the old session
// first, and waits until its tasks have ended.
package iscsi
