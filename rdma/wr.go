package rdma

import "softiser/rdma/internal/verbs"

// Opcode says what a work request does.
type Opcode = verbs.Opcode

// Operations of the send queue.
const (
	OpSend     Opcode = verbs.OpSend
	OpSendInv  Opcode = verbs.OpSendInv  // Send that also invalidates InvSTag at the peer
	OpWrite    Opcode = verbs.OpWrite    // RDMA Write of SGL to Remote
	OpWriteImm Opcode = verbs.OpWriteImm // OpWrite, then Imm to the peer's receive queue (RFC 7306; see Extensions)
	OpRead     Opcode = verbs.OpRead     // RDMA Read of Remote into SGL
	OpFetchAdd Opcode = verbs.OpFetchAdd // 8 bytes at Remote += Add; the old value goes to SGL (RFC 7306)
	OpCmpSwap  Opcode = verbs.OpCmpSwap  // 8 bytes at Remote become Swap if they are Compare; old value to SGL
	OpImm      Opcode = verbs.OpImm      // immediate data alone to the peer's receive queue (RFC 7306); over RoCE an empty WriteImm
	OpSendImm  Opcode = verbs.OpSendImm  // Send with Imm; RoCE only, see DeviceAttr.SendImm
	OpLocalInv Opcode = verbs.OpLocalInv // invalidate InvSTag of this end
	OpRegMR    Opcode = verbs.OpRegMR    // aim MR at SGL with Access under the key Key
	OpBindMW   Opcode = verbs.OpBindMW   // bind Window over SGL with Access for this queue pair
)

// SendFlags modify a work request of the send queue.
type SendFlags = verbs.SendFlags

// Flags.
const (
	// FlagSignaled asks for a completion. Without it, and without
	// QPConfig.SignalAll, only failure is reported.
	FlagSignaled SendFlags = verbs.FlagSignaled
	// FlagSolicited asks the peer for an event (Send, SendInv, Imm, WriteImm).
	FlagSolicited SendFlags = verbs.FlagSolicited
	// FlagFence starts the request only when all earlier Reads and atomics of the
	// queue pair have completed.
	FlagFence SendFlags = verbs.FlagFence
	// FlagInline copies the data when the request is queued: the memory may be
	// reused at once and needs no key. Up to QPConfig.MaxInline bytes.
	FlagInline SendFlags = verbs.FlagInline
)

// SGE is a piece of local memory.
type SGE struct {
	Mem  []byte
	LKey uint32 // of the MR that Mem lies in, or PD.LocalDMAKey
}

// RemoteAddr is memory of the peer.
type RemoteAddr struct {
	TO   uint64 // tagged offset of the first byte (RFC 5041 §4.2)
	STag uint32 // as the peer has told it
}

// SendWR is a work request of the send queue. It and its SGL may be reused as
// soon as it is queued; the memory that the SGL names belongs to the queue pair
// until the completion (which an unsignalled request shares with the next
// signalled one).
type SendWR struct {
	ID     uint64 // the caller's; WC.ID of the completion
	Op     Opcode
	Flags  SendFlags
	SGL    []SGE       // what is sent, or where what is read goes, in order
	Remote RemoteAddr  // Write, Read, atomics
	Dest   Destination // Send, SendImm of TypeUD

	InvSTag uint32 // SendInv, LocalInv
	Imm     uint64 // Imm, WriteImm, SendImm; at most DeviceAttr.MaxImm

	// Atomics (RFC 7306 §5.1). Masks are zero for plain 64-bit operations.
	Add         uint64 // FetchAdd
	AddMask     uint64 // FetchAdd: top bits of independent fields
	Compare     uint64 // CmpSwap
	CompareMask uint64 // CmpSwap: bits that must be equal; 0 means all
	Swap        uint64 // CmpSwap
	SwapMask    uint64 // CmpSwap: bits that are replaced; 0 means all

	// RegMR, BindMW.
	MR     *MR     // RegMR: what is aimed at SGL
	Window *Window // BindMW: what is bound to SGL
	Access Access
	Key    uint8 // low byte of the new STag
}

// RecvWR is a buffer for one Send, or for Immediate Data.
type RecvWR struct {
	ID  uint64 // the caller's; WC.ID of the completion
	SGL []SGE  // filled in order
}
