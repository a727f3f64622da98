package verbs

import (
	"fmt"
	"math"
	"net/netip"

	"softiser/rdma/internal/mem"
)

// Opcode says what a work request does. Package rdma documents the operations.
type Opcode uint8

// Operations of the send queue.
const (
	OpSend Opcode = iota + 1
	OpSendInv
	OpWrite
	OpWriteImm
	OpRead
	OpFetchAdd
	OpCmpSwap
	OpImm
	OpLocalInv
	OpRegMR
	OpBindMW
	OpSendImm // of RoCE
	opEnd
)

var opNames = [opEnd]string{
	OpSend: "Send", OpSendInv: "SendInv", OpWrite: "Write", OpWriteImm: "WriteImm", OpRead: "Read",
	OpFetchAdd: "FetchAdd", OpCmpSwap: "CmpSwap", OpImm: "Imm", OpLocalInv: "LocalInv", OpRegMR: "RegMR", OpBindMW: "BindMW",
	OpSendImm: "SendImm",
}

// String names the operation.
func (o Opcode) String() string {
	if o.Valid() {
		return opNames[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// Valid reports whether there is such an operation.
func (o Opcode) Valid() bool { return o > 0 && o < opEnd }

// Local: done by this end alone, nothing goes to the wire.
func (o Opcode) Local() bool { return o == OpLocalInv || o == OpRegMR || o == OpBindMW }

// Answered: complete only when the peer's response has arrived.
func (o Opcode) Answered() bool { return o == OpRead || o == OpFetchAdd || o == OpCmpSwap }

// SendFlags modify a work request of the send queue.
type SendFlags uint8

// Flags of users, which package rdma documents, and of the queue itself.
const (
	FlagSignaled SendFlags = 1 << iota
	FlagSolicited
	FlagFence
	FlagInline

	FlagDiscard // DiscardRead was called
	FlagHidden  // made by the engine itself: no completion

	UserFlags = FlagSignaled | FlagSolicited | FlagFence | FlagInline
)

// RemoteAddr is memory of the peer.
type RemoteAddr struct {
	TO   uint64
	STag uint32
}

// AddressHandle is where datagrams go: a port, or a multicast group. It does not change.
type AddressHandle struct{ Addr netip.Addr }

// Destination is whom a datagram is for.
type Destination struct {
	AH  *AddressHandle
	QPN uint32
	// QKey is compared with the receiver's. Its highest bit says that the sender's own
	// is to be sent instead (IBA vol. 1 §10.2.5): such keys are privileged.
	QKey uint32
}

// Atomic are the operands of an atomic operation, as RFC 7306 §5.1 has them.
type Atomic struct{ Data, Mask, Compare, CompareMask uint64 }

// WQE is a work request in a send queue. Its slices keep their backing arrays, so
// that a warm ring allocates nothing.
type WQE struct {
	// What every request uses comes first, in two lines of the cache.
	ID     uint64
	Op     Opcode
	Flags  SendFlags
	Status Status
	Done   bool // answered or local operation: has ended
	Length uint32
	End    uint64 // position behind the last byte, in the engine's count of what it sends; valid before SQ.Next
	Segs   [][]byte
	Remote RemoteAddr
	LKeys  []uint32

	// What Segs and LKeys begin with in a ring: most requests have one piece, and it lies beside
	// the rest of the entry.
	seg [1][]byte
	key [1]uint32

	Inv uint32
	Imm uint64

	Dest   Destination // of a datagram
	Atom   Atomic
	MR     *mem.Memory // of OpRegMR
	Window *mem.Region // of OpBindMW
	Access mem.Access
	Key    uint8

	inl []byte // copy of inline data
}

// Add appends a piece of memory.
func (e *WQE) Add(p []byte, lkey uint32) {
	if len(p) > 0 {
		e.Segs = append(e.Segs, p)
		e.LKeys = append(e.LKeys, lkey)
	}
}

// Inline makes room for n bytes that travel with the request; the caller fills it.
func (e *WQE) Inline(n, limit int) []byte {
	if cap(e.inl) < n { // the entry may have been that of a queue with a lower limit
		e.inl = make([]byte, 0, limit)
	}
	e.inl = e.inl[:n]
	e.Segs = append(e.Segs, e.inl)
	e.LKeys = append(e.LKeys, mem.LocalKey)
	return e.inl
}

// release drops references to user memory.
func (e *WQE) release() {
	e.Segs = mem.Drop(e.Segs)
	if e.Op.Local() {
		e.MR, e.Window = nil, nil
	}
}

// AllBits is the mask 0, which means all bits, spelt out.
func AllBits(mask uint64) uint64 {
	if mask == 0 {
		return math.MaxUint64
	}
	return mask
}
