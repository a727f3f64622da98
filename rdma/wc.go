package rdma

import "softiser/rdma/internal/verbs"

// WCStatus is the outcome of a work request.
type WCStatus = verbs.Status

// Outcomes.
const (
	StatusSuccess         WCStatus = verbs.StatusSuccess
	StatusFlushed         WCStatus = verbs.StatusFlushed         // the queue pair ended before the request could run or finish
	StatusLocalLength     WCStatus = verbs.StatusLocalLength     // the message does not fit the buffer or the limits
	StatusLocalProtection WCStatus = verbs.StatusLocalProtection // an SGE lies outside the region that its key names
	StatusLocalFault      WCStatus = verbs.StatusLocalFault      // local memory could not be touched (truncated or failing mapping)
	StatusRemoteAccess    WCStatus = verbs.StatusRemoteAccess    // the peer refused: STag, bounds or rights
	StatusRemoteInvalid   WCStatus = verbs.StatusRemoteInvalid   // the peer refused the request as malformed or too long
	StatusRemoteOp        WCStatus = verbs.StatusRemoteOp        // the peer failed
	StatusInvalidated     WCStatus = verbs.StatusInvalidated     // bind or invalidation refused
	StatusDiscarded       WCStatus = verbs.StatusDiscarded       // a Read that DiscardRead took the memory from has ended
	StatusFatal           WCStatus = verbs.StatusFatal           // the connection failed while the request was running
	StatusUnsupported     WCStatus = verbs.StatusUnsupported     // the peer does not know the operation (RFC 7306)

	StatusRetryExceeded    WCStatus = verbs.StatusRetryExceeded    // RoCE: the peer did not answer, asked as often as agreed
	StatusRNRRetryExceeded WCStatus = verbs.StatusRNRRetryExceeded // RoCE: the peer had no receive buffer, asked as often as agreed
)

// WCOpcode says which kind of work request has completed.
type WCOpcode = verbs.WCOpcode

// Kinds of completion.
const (
	WCSend     WCOpcode = verbs.WCSend
	WCWrite    WCOpcode = verbs.WCWrite
	WCRead     WCOpcode = verbs.WCRead
	WCFetchAdd WCOpcode = verbs.WCFetchAdd
	WCCmpSwap  WCOpcode = verbs.WCCmpSwap
	WCImm      WCOpcode = verbs.WCImm
	WCLocalInv WCOpcode = verbs.WCLocalInv
	WCRegMR    WCOpcode = verbs.WCRegMR
	WCBindMW   WCOpcode = verbs.WCBindMW
	WCRecv     WCOpcode = verbs.WCRecv
	WCRecvImm  WCOpcode = verbs.WCRecvImm // Immediate Data has consumed a receive buffer
)

// WCFlags tell more about a receive completion.
type WCFlags = verbs.WCFlags

// Flags.
const (
	WCWithInv   WCFlags = verbs.WCWithInv   // InvSTag has been invalidated by the message
	WCSolicited WCFlags = verbs.WCSolicited // the peer asked for a solicited event
	WCWithImm   WCFlags = verbs.WCWithImm   // Imm is valid
	WCWithGRH   WCFlags = verbs.WCWithGRH   // the buffer begins with GRHLen bytes for ParseGRH: a datagram
)

// WC is a work completion. When Status is not success, only ID, QP, Status and
// Opcode are meaningful.
type WC struct {
	ID      uint64 // of the SendWR or RecvWR
	QP      *QP
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received (the GRH included), read or sent
	InvSTag uint32 // with WCWithInv: what the peer has invalidated here
	Imm     uint64 // with WCWithImm
	SrcQPN  uint32 // with WCWithGRH: number of the queue pair that has sent it
}
