package nvme

import "errors"

// The seam between a controller's queue and what carries its capsules. A transport
// is one connection: a TCP connection or a queue pair.
//
//	          target/nvmf                              (controller)
//	   PutData GetData Respond …        Command DataArrived …
//	        |                                   ^
//	        v                                   |
//	          internal/nvmetcp                         (transport)
//
// Threads. Each connection has one receive goroutine, owned by the transport.
// Commands come up from it, in order; data and QueueUpper.Sent come up from it or from
// whatever goroutine transmits. Before Connect has succeeded all comes up one after the
// other. No up-call is made from inside another down-call: the upper layer may hold its
// locks across PutData, GetData and Respond, but not across Push and Cancel. Down-calls other than Push only queue; they neither wait for
// the peer nor do system calls. After a batch of commands the transport pushes by
// itself, so that what is answered inline leaves in one vectored write; work that
// has ended on another goroutine must be followed by Push.

// Command is a command of a queue, from its capsule until Sent. The transport has
// more than the queue has entries: a host counts a command as answered when its response
// arrives, which may be before Sent.
type Command struct {
	SQE  SQE
	Data []byte // in-capsule data, until Sent
	// Corrupt says that the in-capsule data has not passed its digest. The
	// connection is sound.
	Corrupt bool
	// NoRoom says that the in-capsule data was dropped, because there was no memory
	// for it. The host is to try again.
	NoRoom bool
	// Slot numbers the command among those of the queue, from 0 on.
	Slot int
	// App is what the upper layer keeps with the slot for all times; its own. nil when
	// the slot is used for the first time.
	App any
	// Use tells the commands of a slot apart. It is never 0.
	Use uint64
}

// ErrBreach is among the errors that a connection ends with when its peer has broken the
// protocol.
var ErrBreach = errors.New("nvme: the peer has broken the protocol")

// Errors of data that the host was asked for, besides the error that ended the
// connection.
var (
	ErrCancelled   = errors.New("nvme: data transfer cancelled")
	ErrDataDigest  = errors.New("nvme: data digest error")
	ErrMemoryFault = errors.New("nvme: the memory of a data transfer cannot be accessed")
)

// Memory is a bound that connections share for what their hosts make them hold.
// blockdev.Pool is one.
type Memory interface {
	Reserve(n int) bool // false: there is no room for n more bytes
	Unreserve(n int)
}

// QueueUpper receives the up-calls of one queue.
type QueueUpper interface {
	// Command delivers a command. It must be answered with Respond.
	Command(c *Command)
	// DataArrived ends a GetData: its memory is no longer used, and with a nil
	// error all bytes are there.
	DataArrived(c *Command, err error)
	// Sent ends a command: its response has gone, or never will, and no memory of
	// its data is in use any more. Its slot may hold another command as soon as
	// Sent returns.
	Sent(c *Command)
	// Ended tells that the connection has ended, and with it every transfer and
	// every command that has been answered. The others are still to be answered;
	// Sent follows then, and nothing else. err is nil when the peer has closed the
	// connection between two commands.
	Ended(err error)
}

// QueueTransport moves the capsules and data of one queue of a controller.
type QueueTransport interface {
	// Start begins delivering to u. It is called once.
	Start(u QueueUpper)
	// SetEntries tells how many commands the queue has room for, once Connect has
	// said so; before, it has room for one.
	SetEntries(n int)
	// MaxInCapsule is the most in-capsule data that a command may have, bytes.
	MaxInCapsule() int
	// NamesHostMemory reports whether descriptors of a kind name the memory of the host
	// on this transport.
	NamesHostMemory(k SGLKind) bool
	// PutData queues data for the host's buffer at offset off; offsets rise without
	// gaps. last says that nothing follows but the response. The memory is in use
	// until Sent, the slice of slices during the call.
	PutData(c *Command, off uint32, segs [][]byte, last bool)
	// GetData asks for [off, off+len(segs)) of the host's buffer. DataArrived
	// follows, unless an error says that the connection has ended. The slice of
	// slices is in use until then. A command has one GetData at a time.
	GetData(c *Command, off uint32, segs [][]byte) error
	// Cancel makes the GetData that a command has under way, if it has one, let go of
	// its memory before it returns; what is still to come is dropped. DataArrived
	// comes from inside Cancel, with an error: no locks are held. The command is named
	// by its use, because its slot may hold another one by now.
	Cancel(use uint64)
	// Respond queues the response. Afterwards the command belongs to the transport
	// until Sent.
	Respond(c *Command, e *CQE)
	// Push transmits what is queued.
	Push()
	// Terminate ends the connection: with nil when what is queued has gone out.
	Terminate(reason error)
	// Backlog tells whether something waits for the peer to read, and how many bytes
	// have been taken from us so far.
	Backlog() (waiting bool, sent uint64)
	// Describe says what the connection has agreed on, for logs and status.
	Describe() string
}
