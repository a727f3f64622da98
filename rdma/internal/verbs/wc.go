package verbs

import "fmt"

// Status is the outcome of a work request. Package rdma documents the outcomes.
type Status uint8

// Outcomes.
const (
	StatusSuccess Status = iota
	StatusFlushed
	StatusLocalLength
	StatusLocalProtection
	StatusLocalFault
	StatusRemoteAccess
	StatusRemoteInvalid
	StatusRemoteOp
	StatusInvalidated
	StatusDiscarded
	StatusFatal
	StatusUnsupported
	StatusRetryExceeded
	StatusRNRRetryExceeded
	statusEnd
)

var statusNames = [statusEnd]string{
	"success", "flushed", "local length error", "local protection error", "local memory fault",
	"remote access error", "remote invalid request", "remote operation error", "memory bind error",
	"discarded", "fatal error", "not supported by the peer", "no answer from the peer", "no receive buffer at the peer",
}

// String says it in words.
func (s Status) String() string {
	if s < statusEnd {
		return statusNames[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint8(s))
}

// WCOpcode says which kind of work request has completed.
type WCOpcode uint8

// Kinds of completion.
const (
	WCSend WCOpcode = iota + 1
	WCWrite
	WCRead
	WCFetchAdd
	WCCmpSwap
	WCImm
	WCLocalInv
	WCRegMR
	WCBindMW
	WCRecv
	WCRecvImm
)

var wcNames = [...]string{"", "Send", "Write", "Read", "FetchAdd", "CmpSwap", "Imm", "LocalInv", "RegMR", "BindMW", "Recv", "RecvImm"}

// String names the kind.
func (o WCOpcode) String() string {
	if int(o) < len(wcNames) && o > 0 {
		return wcNames[o]
	}
	return fmt.Sprintf("WCOpcode(%d)", uint8(o))
}

var wcOf = [opEnd]WCOpcode{
	OpSend: WCSend, OpSendInv: WCSend, OpWrite: WCWrite, OpWriteImm: WCWrite, OpRead: WCRead,
	OpSendImm:  WCSend,
	OpFetchAdd: WCFetchAdd, OpCmpSwap: WCCmpSwap, OpImm: WCImm, OpLocalInv: WCLocalInv,
	OpRegMR: WCRegMR, OpBindMW: WCBindMW,
}

// WCFlags tell more about a receive completion.
type WCFlags uint8

// Flags.
const (
	WCWithInv WCFlags = 1 << iota
	WCSolicited
	WCWithImm
	WCWithGRH // the receive buffer begins with where the datagram came from
)

// WC is a work completion. When Status is not success, only ID, QP, Status and
// Opcode are meaningful.
type WC struct {
	ID      uint64
	QP      *QP
	Status  Status
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32
	InvSTag uint32
	SrcQPN  uint32 // of a datagram
	Imm     uint64
}
