package iscsi

import "fmt"

// NopOut is the view of a NOP-Out (RFC 7143 §11.18). ITT is ReservedTag when no
// answer is wanted; TTT and LUN are those of the NOP-In it answers, or TTT is
// ReservedTag.
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|I| 0x00      |1| Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag or 0xffffffff                              |
//	20| Target Transfer Tag or 0xffffffff                             |
//	24| CmdSN                                                         |
//	28| ExpStatSN                                                     |
//	  +---------------+---------------+---------------+---------------+
type NopOut struct{ *BHS }

// NopOut views b as a NOP-Out.
func (b *BHS) NopOut() NopOut { return NopOut{b} }

// NewNopOut clears b and makes it an immediate NOP-Out with both tags reserved.
func (b *BHS) NewNopOut() NopOut {
	b.init(OpNopOut, 0x80)
	b.SetImmediate(true)
	b.SetITT(ReservedTag)
	b.SetTTT(ReservedTag)
	return NopOut{b}
}

// NopIn is the view of a NOP-In (RFC 7143 §11.19). ITT is that of the NOP-Out it
// answers, or ReservedTag with a valid TTT and LUN for a ping that wants one.
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x20      |1| Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag or 0xffffffff                              |
//	20| Target Transfer Tag or 0xffffffff                             |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	  +---------------+---------------+---------------+---------------+
type NopIn struct{ *BHS }

// NopIn views b as a NOP-In.
func (b *BHS) NopIn() NopIn { return NopIn{b} }

// NewNopIn clears b and makes it a NOP-In with both tags reserved.
func (b *BHS) NewNopIn() NopIn {
	b.init(OpNopIn, 0x80)
	b.SetITT(ReservedTag)
	b.SetTTT(ReservedTag)
	return NopIn{b}
}

// Text is the view of a Text Request or Text Response (RFC 7143 §11.10, §11.11).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|I| 0x04/0x24 |F|C| Reserved                                  |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| Initiator Task Tag                                            |
//	20| Target Transfer Tag or 0xffffffff                             |
//	24| CmdSN / StatSN                                                |
//	28| ExpStatSN / ExpCmdSN                                          |
//	32| Reserved / MaxCmdSN                                           |
//	  +---------------+---------------+---------------+---------------+
type Text struct{ *BHS }

// Text views b as a Text Request or Text Response.
func (b *BHS) Text() Text { return Text{b} }

// NewTextRequest clears b and makes it a Text Request with F and a reserved TTT.
func (b *BHS) NewTextRequest() Text {
	b.init(OpTextRequest, 0x80)
	b.SetTTT(ReservedTag)
	return Text{b}
}

// NewTextResponse clears b and makes it a Text Response with F and a reserved TTT.
func (b *BHS) NewTextResponse() Text {
	b.init(OpTextResponse, 0x80)
	b.SetTTT(ReservedTag)
	return Text{b}
}

// Continue reports the C bit: the text goes on in the next PDU.
func (t Text) Continue() bool { return t.flag(0x40) }

// SetContinue sets the C bit; F must then be clear.
func (t Text) SetContinue(on bool) { t.setFlag(1, 0x40, on) }

// LogoutReason says what a Logout Request closes (RFC 7143 §11.14.1).
type LogoutReason uint8

// Logout reasons.
const (
	LogoutSession    LogoutReason = 0
	LogoutConnection LogoutReason = 1
	LogoutRecovery   LogoutReason = 2 // remove the connection, its tasks will be reassigned
)

// String names the reason.
func (r LogoutReason) String() string {
	switch r {
	case LogoutSession:
		return "close the session"
	case LogoutConnection:
		return "close the connection"
	case LogoutRecovery:
		return "remove the connection for recovery"
	}
	return fmt.Sprintf("logout reason %d", uint8(r))
}

// Logout responses (RFC 7143 §11.15.1).
const (
	LogoutClosed        = 0
	LogoutCIDNotFound   = 1
	LogoutNoRecovery    = 2
	LogoutCleanupFailed = 3
)

// LogoutRequest is the view of a Logout Request (RFC 7143 §11.14).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|I| 0x06      |1| Reason Code | Reserved                      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Reserved                                                      |
//	16| Initiator Task Tag                                            |
//	20| CID or Reserved               | Reserved                      |
//	24| CmdSN                                                         |
//	28| ExpStatSN                                                     |
//	  +---------------+---------------+---------------+---------------+
type LogoutRequest struct{ *BHS }

// LogoutRequest views b as a Logout Request.
func (b *BHS) LogoutRequest() LogoutRequest { return LogoutRequest{b} }

// NewLogoutRequest clears b and makes it an immediate Logout Request.
func (b *BHS) NewLogoutRequest(r LogoutReason) LogoutRequest {
	b.init(OpLogoutReq, 0x80|byte(r)&0x7f)
	b.SetImmediate(true)
	return LogoutRequest{b}
}

// Reason returns what is to be closed.
func (l LogoutRequest) Reason() LogoutReason { return LogoutReason(l.BHS[1] & 0x7f) }

// CID returns the connection that is meant.
func (l LogoutRequest) CID() uint16 { return l.u16(20) }

// SetCID sets the connection ID.
func (l LogoutRequest) SetCID(v uint16) { l.put16(20, v) }

// LogoutResponse is the view of a Logout Response (RFC 7143 §11.15).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x26      |1| Reserved    | Response      | Reserved      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Reserved                                                      |
//	16| Initiator Task Tag                                            |
//	20| Reserved                                                      |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| Reserved                                                      |
//	40| Time2Wait                     | Time2Retain                   |
//	44| Reserved                                                      |
//	  +---------------+---------------+---------------+---------------+
type LogoutResponse struct{ *BHS }

// LogoutResponse views b as a Logout Response.
func (b *BHS) LogoutResponse() LogoutResponse { return LogoutResponse{b} }

// NewLogoutResponse clears b and makes it a Logout Response.
func (b *BHS) NewLogoutResponse(response uint8) LogoutResponse {
	b.init(OpLogoutResp, 0x80)
	b[2] = response
	return LogoutResponse{b}
}

// Response returns the outcome.
func (l LogoutResponse) Response() uint8 { return l.BHS[2] }

// Time2Wait returns how long to wait before a new login, seconds.
func (l LogoutResponse) Time2Wait() uint16 { return l.u16(40) }

// Time2Retain returns for how long tasks are kept after Time2Wait, seconds.
func (l LogoutResponse) Time2Retain() uint16 { return l.u16(42) }

// SetTimes sets Time2Wait and Time2Retain, seconds.
func (l LogoutResponse) SetTimes(wait, retain uint16) {
	l.put16(40, wait)
	l.put16(42, retain)
}

// AsyncEvent is the kind of an Asynchronous Message (RFC 7143 §11.9.1).
type AsyncEvent uint8

// Asynchronous events.
const (
	AsyncSCSI            AsyncEvent = 0 // sense data follows
	AsyncLogout          AsyncEvent = 1 // the target asks for a logout within Param3 seconds
	AsyncConnectionDrop  AsyncEvent = 2 // Param1 CID, Param2 Time2Wait, Param3 Time2Retain
	AsyncSessionDrop     AsyncEvent = 3 // Param2 Time2Wait, Param3 Time2Retain
	AsyncNegotiation     AsyncEvent = 4 // the target asks for parameter negotiation within Param3 seconds
	AsyncTasksTerminated AsyncEvent = 5 // FastAbort: all tasks of the LUN are gone
	AsyncVendor          AsyncEvent = 255
)

// String says what the event tells.
func (e AsyncEvent) String() string {
	switch e {
	case AsyncSCSI:
		return "SCSI asynchronous event"
	case AsyncLogout:
		return "the target asks for a logout"
	case AsyncConnectionDrop:
		return "the target drops a connection"
	case AsyncSessionDrop:
		return "the target drops the session"
	case AsyncNegotiation:
		return "the target asks for a negotiation"
	case AsyncTasksTerminated:
		return "tasks were terminated"
	}
	return fmt.Sprintf("asynchronous event %d", uint8(e))
}

// Async is the view of an Asynchronous Message (RFC 7143 §11.9).
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x32      |1| Reserved                                    |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| LUN or Reserved                                               |
//	16| 0xffffffff                                                    |
//	20| Reserved                                                      |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| AsyncEvent    | AsyncVCode    | Parameter1 or Reserved        |
//	40| Parameter2 or Reserved        | Parameter3 or Reserved        |
//	44| Reserved                                                      |
//	  +---------------+---------------+---------------+---------------+
type Async struct{ *BHS }

// Async views b as an Asynchronous Message.
func (b *BHS) Async() Async { return Async{b} }

// NewAsync clears b and makes it an Asynchronous Message.
func (b *BHS) NewAsync(e AsyncEvent) Async {
	b.init(OpAsync, 0x80)
	b.SetITT(ReservedTag)
	b[36] = byte(e)
	return Async{b}
}

// Event returns what has happened.
func (a Async) Event() AsyncEvent { return AsyncEvent(a.BHS[36]) }

// VCode returns the vendor's code; valid for vendor events.
func (a Async) VCode() uint8 { return a.BHS[37] }

// SetVCode sets the vendor's code.
func (a Async) SetVCode(v uint8) { a.BHS[37] = v }

// Params returns the three parameters.
func (a Async) Params() (p1, p2, p3 uint16) { return a.u16(38), a.u16(40), a.u16(42) }

// SetParams sets the three parameters.
func (a Async) SetParams(p1, p2, p3 uint16) {
	a.put16(38, p1)
	a.put16(40, p2)
	a.put16(42, p3)
}

// RejectReason says why a PDU was rejected (RFC 7143 §11.17.1).
type RejectReason uint8

// Reject reasons.
const (
	RejectDataDigest     RejectReason = 0x02
	RejectSNACK          RejectReason = 0x03
	RejectProtocol       RejectReason = 0x04
	RejectUnsupported    RejectReason = 0x05
	RejectImmediate      RejectReason = 0x06 // too many immediate commands
	RejectTaskInProgress RejectReason = 0x07
	RejectDataACK        RejectReason = 0x08
	RejectInvalidField   RejectReason = 0x09
	RejectNoResources    RejectReason = 0x0a // long operation: out of resources
	RejectDeprecated     RejectReason = 0x0b
	RejectLogout         RejectReason = 0x0c // waiting for logout
)

var rejectNames = map[RejectReason]string{
	RejectDataDigest: "data digest error", RejectSNACK: "SNACK reject", RejectProtocol: "protocol error",
	RejectUnsupported: "command not supported", RejectImmediate: "too many immediate commands",
	RejectTaskInProgress: "task in progress", RejectDataACK: "invalid data ACK",
	RejectInvalidField: "invalid PDU field", RejectNoResources: "out of resources",
	RejectDeprecated: "deprecated", RejectLogout: "waiting for logout",
}

// String names the reason.
func (r RejectReason) String() string {
	if s, ok := rejectNames[r]; ok {
		return s
	}
	return fmt.Sprintf("reject reason %#02x", uint8(r))
}

// Reject is the view of a Reject (RFC 7143 §11.17); its data segment holds the
// header of the rejected PDU.
//
//	  +---------------+---------------+---------------+---------------+
//	 0|.|.| 0x3f      |1| Reserved    | Reason        | Reserved      |
//	  +---------------+---------------+---------------+---------------+
//	 4|TotalAHSLength | DataSegmentLength                             |
//	 8| Reserved                                                      |
//	16| 0xffffffff                                                    |
//	20| Reserved                                                      |
//	24| StatSN                                                        |
//	28| ExpCmdSN                                                      |
//	32| MaxCmdSN                                                      |
//	36| DataSN/R2TSN or Reserved                                      |
//	40| Reserved                                                      |
//	  +---------------+---------------+---------------+---------------+
//	48/ Header of the rejected PDU                                    /
//	  +---------------+---------------+---------------+---------------+
type Reject struct{ *BHS }

// Reject views b as a Reject.
func (b *BHS) Reject() Reject { return Reject{b} }

// NewReject clears b and makes it a Reject.
func (b *BHS) NewReject(r RejectReason) Reject {
	b.init(OpReject, 0x80)
	b.SetITT(ReservedTag)
	b[2] = byte(r)
	return Reject{b}
}

// Reason returns why.
func (r Reject) Reason() RejectReason { return RejectReason(r.BHS[2]) }

// DataSN returns the DataSN or R2TSN in question.
func (r Reject) DataSN() uint32 { return r.u32(36) }

// SetDataSN sets the DataSN or R2TSN in question.
func (r Reject) SetDataSN(v uint32) { r.put32(36, v) }
