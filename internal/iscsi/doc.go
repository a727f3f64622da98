// Package iscsi is the iSCSI protocol (RFC 7143, 7144, 7145) without any I/O:
// the PDU codec, the text keys and their negotiation, CHAP, the login state
// machines of both roles, and the seam (RFC 5047) between iSCSI and whatever
// moves its PDUs.
//
// # PDUs
//
// A PDU begins with a 48-byte Basic Header Segment, [BHS]. It is an array, not
// a struct with forty fields: each opcode has a view, a pointer to the same 48
// bytes with named getters and setters, so that parsing costs nothing and
// nothing is allocated:
//
//	c := pdu.BHS.SCSICommand()      // view a received header
//	if c.Read() && c.EDTL() > 0 …
//
//	r := pdu.BHS.NewSCSIResponse()  // clear, set the opcode and the fixed bits
//	r.SetITT(itt)
//	r.SetStatus(0)
//
// # Login
//
// [LoginTarget] and [LoginInitiator] are pure machines: a PDU goes in, the PDU
// to send comes out. They know nothing about sockets or RDMA; the transport's
// peculiarities reach them as a [KeyProfile].
//
//	initiator                                target
//	LoginInitiator.Start  ── Login Request ──▶ LoginTarget.Handle
//	LoginInitiator.Next  ◀── Login Response ──
//	       …                                      …
//	Result() Params                          Result() Params
//
// # Negotiation
//
// Every key has one row in a table: type, default, range, when it may be sent,
// by whom, and whether it makes sense in a discovery session. [Negotiation]
// applies the table for one login; its outcome is a [Params].
package iscsi
