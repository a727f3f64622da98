package nvme

import (
	"context"
	"errors"
)

// The seam between a host's queue and what carries its capsules, the counterpart of
// QueueTransport. A transport is one connection: a TCP connection or a queue pair.
//
//	          initiator/nvmf                           (host)
//	   Submit Push Terminate        Completed BatchEnd Ended
//	        |                                   ^
//	        v                                   |
//	          internal/nvmetcp                         (transport)
//
// Threads. Each connection has one receive goroutine, owned by the transport, and
// up-calls come from it; a command that was answered before its data had gone is
// completed by whatever goroutine transmits. No up-call is made from inside another
// down-call than Push: the upper layer may hold its locks across Submit, but not across
// Push. Submit only queues; it
// neither waits for the peer nor does system calls. After a batch of completions the
// transport pushes by itself, so that commands submitted from Completed or BatchEnd
// leave in one vectored write; what another goroutine submits must be followed by
// Push.

// HostCommand is a command of a host on one queue. The upper layer owns it, and has
// as many as the queue has entries, so that nothing is allocated for one. From Submit
// until Completed, or until Ended, it belongs to the transport, and so does the memory
// that Data names.
type HostCommand struct {
	// SQE is the command. The transport sets its identifier and its data pointer.
	SQE SQE
	// Data is the memory that the command's data is read from or written to, by the
	// direction of its opcode; empty for a command without. The transport moves the
	// bytes straight between it and the peer. The slice of slices is in use as long as
	// the memory is.
	Data [][]byte
	// Slot numbers the command among those of its queue, from 0 to the slots less
	// one, so that the transport finds its own part of it.
	Slot int

	// Results, valid in Completed.

	// CQE is the answer, when Err is nil.
	CQE CQE
	// Received is how many bytes of data have come for a command that returns some, as
	// far as the transport knows; over RDMA it is all of them when CQE says success.
	Received uint32
	// Err is what kept the data of this command alone from being believed, whatever CQE
	// says: ErrDataDigest or ErrMemoryFault.
	Err error
}

// ToHost reports whether the command returns data.
func (c *HostCommand) ToHost() bool { return len(c.Data) > 0 && c.SQE.ToHost() }

// FromHost reports whether the command carries data of the host.
func (c *HostCommand) FromHost() bool { return len(c.Data) > 0 && c.SQE.FromHost() }

// HostUpper receives the up-calls of one queue.
type HostUpper interface {
	// Completed ends a command: its memory is no longer used. It is the upper layer's
	// again, which may submit it anew.
	Completed(c *HostCommand)
	// BatchEnd follows the Completed of one batch, before the transport pushes.
	BatchEnd()
	// Ended tells that the connection has ended. No memory of any command is in use any
	// more; those that have not been completed are the upper layer's to end, for
	// whether they were carried out is not known. Nothing follows it.
	Ended(err error)
}

// HostTransport moves the capsules and data of one queue of a host.
type HostTransport interface {
	// Start begins delivering to u. It is called once, before the first Submit.
	Start(u HostUpper)
	// Submit queues a command; the upper layer has no more outstanding than the queue
	// has entries. After the connection's end it does nothing: Ended has told, or is
	// about to tell, and the command is the upper layer's then.
	Submit(c *HostCommand)
	// Push transmits what is queued.
	Push()
	// Terminate ends the connection: with nil when what is queued has gone out. Ended
	// follows.
	Terminate(reason error)
	// MaxTransfer is the most data that one command can have, bytes.
	MaxTransfer() int
	// Describe says what the connection has agreed on, for logs and status.
	Describe() string
	// Stats returns the counters.
	Stats() HostStats
}

// HostStats are counters of a host's connection.
type HostStats struct {
	PDUsIn, PDUsOut         uint64 // PDUs, or messages
	PayloadCopied           uint64 // bytes of data copied in user space
	ReceiveCalls, SendCalls uint64 // system calls that moved data
}

// Add adds what another connection did.
func (s *HostStats) Add(o *HostStats) {
	s.PDUsIn += o.PDUsIn
	s.PDUsOut += o.PDUsOut
	s.PayloadCopied += o.PayloadCopied
	s.ReceiveCalls += o.ReceiveCalls
	s.SendCalls += o.SendCalls
}

// HostQueue says which queue a connection is to be made for.
type HostQueue struct {
	ID     uint16 // 0: the admin queue
	CntlID uint16 // of the association; of no meaning for the admin queue
	// Entries is how many commands the host has outstanding at most, 1 to
	// MaxHostEntries.
	Entries int
	// Slots is how many slots these commands have, where that is more than Entries: a host
	// may have made them for a controller that allowed more.
	Slots int
	// InCapsule is the most in-capsule data that the controller takes on an I/O queue,
	// bytes, as Identify says (IOCCSZ). Of the admin queue the transport knows.
	InCapsule int
}

// HostDialer makes the connections of a host to one portal of a controller.
type HostDialer interface {
	// Dial connects for q. What the transport has to agree on is agreed on when it
	// returns; the Connect command is the caller's affair. ctx bounds Dial only.
	Dial(ctx context.Context, q HostQueue) (HostTransport, error)
}

// MaxHostEntries is how many commands a host has outstanding on one queue at most.
const MaxHostEntries = 1 << hostSlotBits

// hostSlotBits of a command's identifier are its slot; the others count its uses, so
// that an answer to a command that has been answered is not taken for that of its
// successor.
const hostSlotBits = 10

// HostTable finds the commands of a queue that are at the controller by their
// identifiers. It has no lock.
type HostTable struct {
	cmds []*HostCommand // index: the slot; nil: not outstanding
	uses []uint8
	n    int
}

// NewHostTable makes a table for the commands of a queue with that many entries.
func NewHostTable(entries int) HostTable {
	return HostTable{cmds: make([]*HostCommand, entries), uses: make([]uint8, entries)}
}

// ErrHostSlot is a command whose slot the queue does not have, or that is in use: a
// mistake of the upper layer.
var ErrHostSlot = errors.New("nvme: the slot of a command is not free")

// Add enters a command and gives it its identifier.
func (t *HostTable) Add(c *HostCommand) error {
	if c.Slot < 0 || c.Slot >= len(t.cmds) || t.cmds[c.Slot] != nil {
		return ErrHostSlot
	}
	t.cmds[c.Slot] = c
	t.uses[c.Slot]++
	t.n++
	c.SQE.SetCID(uint16(t.uses[c.Slot])<<hostSlotBits | uint16(c.Slot))
	return nil
}

// Restore enters a command that another process has added: it has its identifier, which names
// its slot.
func (t *HostTable) Restore(c *HostCommand) error {
	id := c.SQE.CID()
	if c.Slot != int(id&(MaxHostEntries-1)) || c.Slot >= len(t.cmds) || t.cmds[c.Slot] != nil {
		return ErrHostSlot
	}
	t.cmds[c.Slot] = c
	t.uses[c.Slot] = uint8(id >> hostSlotBits)
	t.n++
	return nil
}

// Find returns the command with an identifier that the peer has sent; nil when none
// is outstanding.
func (t *HostTable) Find(cid uint16) *HostCommand {
	if i := int(cid & (MaxHostEntries - 1)); i < len(t.cmds) {
		if c := t.cmds[i]; c != nil && c.SQE.CID() == cid {
			return c
		}
	}
	return nil
}

// Remove takes out a command that Find has returned.
func (t *HostTable) Remove(c *HostCommand) {
	t.cmds[c.Slot] = nil
	t.n--
}

// Len returns how many commands are outstanding.
func (t *HostTable) Len() int { return t.n }
