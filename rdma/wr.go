package rdma

import "fmt"

// Opcode says what a work request does.
type Opcode uint8

// Operations of the send queue.
const (
	OpSend     Opcode = iota + 1
	OpSendInv         // Send that also invalidates InvSTag at the peer
	OpWrite           // RDMA Write of SGL to Remote
	OpWriteImm        // OpWrite, then Imm to the peer's receive queue (RFC 7306; see Extensions)
	OpRead            // RDMA Read of Remote into SGL
	OpFetchAdd        // 8 bytes at Remote += Add; the old value goes to SGL (RFC 7306)
	OpCmpSwap         // 8 bytes at Remote become Swap if they are Compare; old value to SGL
	OpImm             // 8 bytes of immediate data to the peer's receive queue (RFC 7306)
	OpLocalInv        // invalidate InvSTag of this end
	OpRegMR           // aim MR at SGL with Access under the key Key
	OpBindMW          // bind Window over SGL with Access for this queue pair
	opEnd
)

var opNames = [opEnd]string{
	OpSend: "Send", OpSendInv: "SendInv", OpWrite: "Write", OpWriteImm: "WriteImm", OpRead: "Read",
	OpFetchAdd: "FetchAdd", OpCmpSwap: "CmpSwap", OpImm: "Imm", OpLocalInv: "LocalInv", OpRegMR: "RegMR", OpBindMW: "BindMW",
}

func (o Opcode) String() string {
	if o > 0 && o < opEnd {
		return opNames[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// local: done by this end alone, nothing goes to the wire.
func (o Opcode) local() bool { return o == OpLocalInv || o == OpRegMR || o == OpBindMW }

// answered: complete only when the peer's response has arrived.
func (o Opcode) answered() bool { return o == OpRead || o == OpFetchAdd || o == OpCmpSwap }

// extension: an opcode of RFC 7306, which not every peer knows.
func (o Opcode) extension() bool {
	return o == OpWriteImm || o == OpImm || o == OpFetchAdd || o == OpCmpSwap
}

// SendFlags modify a work request of the send queue.
type SendFlags uint8

// Flags.
const (
	// FlagSignaled asks for a completion. Without it, and without
	// QPConfig.SignalAll, only failure is reported.
	FlagSignaled SendFlags = 1 << iota
	// FlagSolicited asks the peer for an event (Send, SendInv, Imm, WriteImm).
	FlagSolicited
	// FlagFence starts the request only when all earlier Reads and atomics of the
	// queue pair have completed.
	FlagFence
	// FlagInline copies the data when the request is queued: the memory may be
	// reused at once and needs no key. Up to QPConfig.MaxInline bytes.
	FlagInline

	flagDiscard // DiscardRead was called
	flagHidden  // made by the engine itself: no completion
)

// SGE is a piece of local memory.
type SGE struct {
	Mem  []byte
	LKey uint32 // of the MR that Mem lies in, or PD.LocalDMAKey
}

// RemoteAddr is memory of the peer.
type RemoteAddr struct {
	TO   uint64
	STag uint32
}

// SendWR is a work request of the send queue. It and its SGL may be reused as
// soon as it is queued; the memory that the SGL names belongs to the queue pair
// until the completion (which an unsignalled request shares with the next
// signalled one).
type SendWR struct {
	ID     uint64
	Op     Opcode
	Flags  SendFlags
	SGL    []SGE
	Remote RemoteAddr // Write, Read, atomics

	InvSTag uint32 // SendInv, LocalInv
	Imm     uint64 // Imm, WriteImm

	// Atomics (RFC 7306 §5.1). Masks are zero for plain 64-bit operations.
	Add         uint64 // FetchAdd
	AddMask     uint64 // FetchAdd: top bits of independent fields
	Compare     uint64
	CompareMask uint64 // 0 means all bits
	Swap        uint64
	SwapMask    uint64 // 0 means all bits

	// RegMR, BindMW.
	MR     *MR
	Window *Window
	Access Access
	Key    uint8
}

// RecvWR is a buffer for one Send, or for Immediate Data.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}
