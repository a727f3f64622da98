package rdma

import "softiser/rdma/internal/verbs"

// WCStatus is the outcome of a work request.
type WCStatus = verbs.Status

// Outcomes.
const (
	StatusSuccess         = verbs.StatusSuccess
	StatusFlushed         = verbs.StatusFlushed         // the queue pair ended before the request could run or finish
	StatusLocalLength     = verbs.StatusLocalLength     // the message does not fit the buffer or the limits
	StatusLocalProtection = verbs.StatusLocalProtection // an SGE lies outside the region that its key names
	StatusLocalFault      = verbs.StatusLocalFault      // local memory could not be touched (truncated or failing mapping)
	StatusRemoteAccess    = verbs.StatusRemoteAccess    // the peer refused: STag, bounds or rights
	StatusRemoteInvalid   = verbs.StatusRemoteInvalid   // the peer refused the request as malformed or too long
	StatusRemoteOp        = verbs.StatusRemoteOp        // the peer failed
	StatusInvalidated     = verbs.StatusInvalidated     // bind or invalidation refused
	StatusDiscarded       = verbs.StatusDiscarded       // a Read that DiscardRead took the memory from has ended
	StatusFatal           = verbs.StatusFatal           // the connection failed while the request was running
	StatusUnsupported     = verbs.StatusUnsupported     // the peer does not know the operation (RFC 7306)
)

// WCOpcode says which kind of work request has completed.
type WCOpcode = verbs.WCOpcode

// Kinds of completion.
const (
	WCSend     = verbs.WCSend
	WCWrite    = verbs.WCWrite
	WCRead     = verbs.WCRead
	WCFetchAdd = verbs.WCFetchAdd
	WCCmpSwap  = verbs.WCCmpSwap
	WCImm      = verbs.WCImm
	WCLocalInv = verbs.WCLocalInv
	WCRegMR    = verbs.WCRegMR
	WCBindMW   = verbs.WCBindMW
	WCRecv     = verbs.WCRecv
	WCRecvImm  = verbs.WCRecvImm // Immediate Data has consumed a receive buffer
)

// WCFlags tell more about a receive completion.
type WCFlags = verbs.WCFlags

// Flags.
const (
	WCWithInv   = verbs.WCWithInv   // InvSTag has been invalidated by the message
	WCSolicited = verbs.WCSolicited // the peer asked for a solicited event
	WCWithImm   = verbs.WCWithImm   // Imm is valid
)

// WC is a work completion. When Status is not success, only ID, QP, Status and
// Opcode are meaningful.
type WC struct {
	ID      uint64
	QP      *QP
	Status  WCStatus
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received, read or sent
	InvSTag uint32
	Imm     uint64
}
