package rdma

import "fmt"

// WCStatus is the outcome of a work request.
type WCStatus uint8

// Outcomes.
const (
	StatusSuccess         WCStatus = iota
	StatusFlushed                  // the queue pair ended before the request could run or finish
	StatusLocalLength              // the message does not fit the buffer or the limits
	StatusLocalProtection          // an SGE lies outside the region that its key names
	StatusLocalFault               // local memory could not be touched (truncated or failing mapping)
	StatusRemoteAccess             // the peer refused: STag, bounds or rights
	StatusRemoteInvalid            // the peer refused the request as malformed or too long
	StatusRemoteOp                 // the peer failed
	StatusInvalidated              // bind or invalidation refused
	StatusDiscarded                // a Read that DiscardRead took the memory from has ended
	StatusFatal                    // the connection failed while the request was running
	StatusUnsupported              // the peer does not know the operation (RFC 7306)
	statusEnd
)

var statusNames = [statusEnd]string{
	"success", "flushed", "local length error", "local protection error", "local memory fault",
	"remote access error", "remote invalid request", "remote operation error", "memory bind error",
	"discarded", "fatal error", "not supported by the peer",
}

func (s WCStatus) String() string {
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
	WCRecvImm // Immediate Data has consumed a receive buffer
)

var wcNames = [...]string{"", "Send", "Write", "Read", "FetchAdd", "CmpSwap", "Imm", "LocalInv", "RegMR", "BindMW", "Recv", "RecvImm"}

func (o WCOpcode) String() string {
	if int(o) < len(wcNames) && o > 0 {
		return wcNames[o]
	}
	return fmt.Sprintf("WCOpcode(%d)", uint8(o))
}

var wcOf = [opEnd]WCOpcode{
	OpSend: WCSend, OpSendInv: WCSend, OpWrite: WCWrite, OpWriteImm: WCWrite, OpRead: WCRead,
	OpFetchAdd: WCFetchAdd, OpCmpSwap: WCCmpSwap, OpImm: WCImm, OpLocalInv: WCLocalInv,
	OpRegMR: WCRegMR, OpBindMW: WCBindMW,
}

// WCFlags tell more about a receive completion.
type WCFlags uint8

// Flags.
const (
	WCWithInv   WCFlags = 1 << iota // InvSTag has been invalidated by the message
	WCSolicited                     // the peer asked for a solicited event
	WCWithImm                       // Imm is valid
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
