package iscsi

import "errors"

// The seam of RFC 5047 (DA): iSCSI above, a datamover below. Two datamovers
// implement it, internal/iser (iSER over RDMA) and internal/iscsitcp; one
// conformance suite runs on both. No method tells which one it is.
//
//	          target/iscsi         initiator             (iSCSI)
//	   SendControl PutData GetData …      ControlNotify …
//	        |                                   ^
//	        v                                   |
//	          internal/iser        internal/iscsitcp      (datamover)
//
// Threads. Each connection has one receive goroutine, owned by the datamover.
// Received PDUs and data come up from that goroutine, in order. Completions of
// what was sent come up from whatever goroutine transmits: one that is inside
// Push, or the datamover's own; they may run beside the receive goroutine's
// up-calls. No up-call is made from inside another down-call: the upper layer
// may hold its locks across SendControl, PutData, GetData and ReleaseTask, but
// not across Push. Down-calls other than Push only queue; they neither wait for
// the peer nor do system calls (Enable may, while a stream turns into RDMA). After a batch of ControlNotify calls the datamover pushes
// by itself, so what is answered inline leaves in one vectored write; work
// finished on another goroutine must be followed by Push.

// Ref is the datamover's own part of one SCSI command of the target: the STags that
// were advertised with it over iSER, the sequence numbers of its data over TCP. It
// comes up with the command and is zero where there is nothing to remember yet. The
// upper layer keeps it with the command, lends it to the command's Transfers, hands
// it back with the SCSI Response, and never looks inside.
type Ref [3]uint64

// PDU is one control-type PDU on its way up or down: everything except
// solicited data, Data-In and R2T, which the datamover keeps to itself.
type PDU struct {
	BHS  BHS
	AHS  []byte
	Data []byte // data segment, without padding

	// Ref (target role) comes with a received SCSI Command and goes back, as the
	// command's Transfers have left it, with its SCSI Response.
	Ref Ref

	// Bufs (initiator role, sent SCSI Command) names the task's I/O buffers.
	// They belong to the datamover until ControlNotify of the task's SCSI
	// Response or ReleaseTask.
	Bufs *TaskBuffers

	// Bad is set on a received PDU that breaks the protocol without harming the
	// stream: a data digest error, a Data-Out that nothing asked for. The upper
	// layer answers with a Reject of that reason; Data may be missing.
	Bad *ProtocolError

	// Batch numbers the batch in which a PDU was received: the same for PDUs of a connection
	// that arrived together, different for those before and after them; 0: unknown.
	Batch uint32

	// NoRoom says that data segment and AHS of a received PDU were dropped for want of
	// memory. The upper layer answers so that the peer tries again (BUSY, or a Reject);
	// it may not use the PDU beyond ControlNotify.
	NoRoom bool

	// Recycle, when set, takes back the receive buffer that AHS and Data are in. A received
	// PDU without it has neither, and is valid only during ControlNotify.
	Recycle func(*PDU)

	// Next (received) is the PDU that arrived after this one in the same batch; nil: none did.
	Next *PDU
}

// Unlink takes a received PDU out of the list of its batch, and returns the next one.
func (p *PDU) Unlink() *PDU {
	next := p.Next
	p.Next = nil
	return next
}

// Release ends the upper layer's use of a received PDU and of its AHS and
// Data. The receive credit goes back to the peer only then.
func (p *PDU) Release() {
	if f := p.Recycle; f != nil {
		p.Recycle = nil
		f(p)
	}
}

// TaskBuffers are the initiator's memory for one SCSI task.
type TaskBuffers struct {
	In  [][]byte // filled by the target (READ); total is the space offered
	Out [][]byte // fetched by the target (WRITE)
	// Unsolicited is how many leading bytes of Out travel without R2T or RDMA
	// Read: immediate data (in the command PDU) plus unsolicited Data-Outs.
	// The datamover sends them; Immediate of them ride in the command itself.
	Immediate   uint32
	Unsolicited uint32
	InLen       uint32 // bytes placed in In when the response arrived; see Limits.CountsIn
	// Slot is the datamover's own while it has the task.
	Slot int
}

// Transfer is one movement of data between target memory and the initiator's
// buffer (RFC 5047 Put_Data, Get_Data). The target embeds one in each task and
// may reuse it after DataCompletionNotify. A task has at most one GetData and one
// PutData at a time.
type Transfer struct {
	ITT         uint32
	LUN         uint64   // as on the wire (BHS bytes 8-15)
	Ref         *Ref     // of the command; the same for all its Transfers, and written by the datamover
	Unsolicited uint32   // bytes of the WRITE that came without being asked for
	Offset      uint32   // first byte within the initiator's whole buffer
	Len         uint32   // bytes; the sum of Segs
	Segs        [][]byte // target memory, owned by the datamover until completion
	Final       bool     // PutData: no more data follows for this task
	Err         error    // set before DataCompletionNotify; nil: moved completely
	User        any      // the upper layer's own, to find its task again
	Own         Moving   // the datamover's own while it has the transfer
}

// Moving is how a datamover finds a Transfer, and links it with others.
type Moving struct {
	Next    *Transfer // during DataCompletionNotify: one that has ended as well
	Slot    int
	Aborted bool // by AbortTransfer
}

// Unlink takes x out of the list of those that have ended together, and returns the next one.
func (x *Transfer) Unlink() *Transfer {
	next := x.Own.Next
	x.Own.Next = nil
	return next
}

// Linked is how many there are from x on; a nil x is none.
func (x *Transfer) Linked() (n int) {
	for ; x != nil; x = x.Own.Next {
		n++
	}
	return n
}

// Errors of Transfers, besides *ProtocolError and the error that ended the
// connection.
var (
	// ErrAborted: AbortTransfer was called before everything had moved.
	ErrAborted = errors.New("iscsi: data transfer aborted")
	// ErrMemoryFault: the transfer's memory cannot be touched (a truncated or
	// failing mapping). The stream is intact.
	ErrMemoryFault = errors.New("iscsi: the memory of a data transfer cannot be accessed")
	// ErrConnectionLost: the connection ended before the transfer did; the error of
	// the connection is wrapped with it.
	ErrConnectionLost = errors.New("iscsi: the connection was lost")
	// ErrShortData: the initiator ended a solicited sequence before it had sent
	// what was asked for.
	ErrShortData = errors.New("iscsi: incorrect amount of data")
)

// Sequence is the state that every target PDU carries (RFC 7143 §4.2.2).
type Sequence struct{ StatSN, ExpCmdSN, MaxCmdSN uint32 }

// Upper receives the up-calls of one connection.
type Upper interface {
	// ControlNotify delivers a received control-type PDU, and in the full feature phase those
	// that have come together with it (PDU.Next). Each PDU and its buffers belong to the upper
	// layer until its Release.
	ControlNotify(p *PDU)
	// DataCompletionNotify ends a Transfer, and those that are linked to it by Own.Next,
	// which the upper layer takes apart (Unlink): the datamover does not use their memory
	// any more. Without an error (Transfer.Err), all bytes of a GetData have arrived and
	// passed every check, and those of a PutData have been handed to the transport.
	DataCompletionNotify(x *Transfer)
	// ConnectionTerminateNotify is the last up-call: the connection has ended,
	// every outstanding Transfer has been completed with an error. err is nil
	// after an orderly close.
	ConnectionTerminateNotify(err error)
	// Sequence returns (target role) the numbers for PDUs that the datamover makes
	// itself (Data-In, R2T). It must not take a lock that is held across down-calls.
	Sequence() Sequence
}

// Limits are what the upper layer must respect when it builds control PDUs.
type Limits struct {
	// MaxControlData is the longest data segment that the peer's receive
	// buffers are known to hold in full feature phase, bytes.
	MaxControlData int
	// QuietUntilFirstCommand: nothing unsolicited may be sent between the final
	// Login Response and the initiator's first PDU.
	QuietUntilFirstCommand bool
	// MaxCommands is how many receive credits the connection has; CmdSN windows
	// must stay below it, with room for immediate PDUs. 0: no limit.
	MaxCommands int
	// MaxTransfer is the longest single Transfer, bytes; 0: no limit.
	MaxTransfer int
	// MaxPut is the longest single PutData, likewise.
	MaxPut int
	// RecoveryLevel is the highest ErrorRecoveryLevel that may be negotiated. Where
	// one above 0 has been, Recovery returns what serves it.
	RecoveryLevel uint32
	// CountsIn: TaskBuffers.InLen tells how much of a READ has arrived.
	CountsIn bool
}

// Datamover moves PDUs and data for one connection.
type Datamover interface {
	// Start begins delivering to u. It is called once.
	Start(u Upper)
	// Limits may change after NoticeKeyValues.
	Limits() Limits
	// KeyProfile tells the login negotiation which keys this transport adds,
	// forces or ignores.
	KeyProfile() KeyProfile
	// NoticeKeyValues tells the outcome of login (digests, lengths, …). It takes
	// effect with Enable.
	NoticeKeyValues(p *Params)
	// Enable enters the full feature phase. The target calls it just before it
	// queues the final Login Response, the initiator just after it has received
	// it; the datamover takes care that the switch falls on the right byte.
	Enable() error
	// SendControl queues a control PDU. BHS, AHS and Data are copied; Bufs are
	// used by reference. Final SCSI Responses carry the Ref of their command.
	SendControl(p *PDU) error
	// PutData queues data for the initiator; a SendControl that follows arrives
	// after it.
	PutData(x *Transfer) error
	// GetData asks for data of the initiator.
	GetData(x *Transfer) error
	// AbortTransfer makes a running GetData let go of its memory before it
	// returns: bytes still to come are dropped. A PutData stops early if it can;
	// its memory is in use until its completion. DataCompletionNotify follows in
	// either case, when nothing more can arrive or leave for it; call Push.
	AbortTransfer(x *Transfer)
	// ReleaseTask (initiator role) ends the exposure of a task's buffers.
	ReleaseTask(b *TaskBuffers)
	// Backlog tells whether the peer takes what is sent to it.
	Backlog() Backlog
	// Push transmits what is queued, up to what the socket takes; the rest goes
	// on by itself. Up-calls may happen inside.
	Push()
	// Recovery returns the layer of this connection that serves the error recovery
	// levels 1 and 2; nil at level 0, and before Enable.
	Recovery() Recovery
	// Terminate ends the connection: gracefully after what is queued has been
	// sent (reason nil) or at once. ConnectionTerminateNotify follows.
	Terminate(reason error)
	// Stats returns counters of this connection.
	Stats() DatamoverStats
	// Describe names the transport and its settings for people: "iSER, MPA rev 2, CRC on".
	Describe() string
}

// Recovery is the part of a datamover that works above error recovery level 0. It
// serves SNACKs by itself, and keeps for that what has been sent until it is
// acknowledged (RFC 7143 §7.1).
type Recovery interface {
	// Forget drops what is kept for a task that will not be answered.
	Forget(itt uint32)
	// Holds says when a task was answered, if that has not been acknowledged: a number that
	// grows from answer to answer, of all connections together; 0 otherwise.
	Holds(itt uint32) (when uint64)
	// Discard gives up everything that is kept: nobody will ask for it any more.
	Discard()
	// Adopt takes over what from, whose connection has ended, keeps for a task: its
	// data from the DataSN exp on is queued (0: all that was not acknowledged). ref is
	// that of a task that has not been answered, else nil; its R2Ts are numbered from
	// exp on, and what is kept of an earlier task with its tag is not its own. When the
	// task had been answered, Adopt reports so and makes answer its response, for the
	// caller to send. lost says that some of the data is not there any more.
	Adopt(from Recovery, itt, exp uint32, ref *Ref, answer *PDU) (answered, lost bool)
}

// Backlog is how far a connection is behind with sending. A peer that does not read
// makes Waiting stay and Sent stand still.
type Backlog struct {
	Waiting bool   // something is queued that the socket has not taken
	Sent    uint64 // bytes that it has taken so far
	Answers int    // bytes of control PDUs that are queued
}

// DatamoverStats counts what a connection did.
type DatamoverStats struct {
	PDUsIn        uint64 `json:"pdus_in_total"`
	PDUsOut       uint64 `json:"pdus_out_total"`
	PayloadIn     uint64 `json:"payload_in_bytes"` // data bytes of SCSI tasks, however they travelled
	PayloadOut    uint64 `json:"payload_out_bytes"`
	PayloadCopied uint64 `json:"payload_copied_bytes"` // of these: bytes copied in user space
	ReceiveCalls  uint64 `json:"receive_calls_total"`  // system calls that moved data
	SendCalls     uint64 `json:"send_calls_total"`

	OutstandingTransfers int64 `json:"outstanding_transfers"`
}

// Add adds what another connection did.
func (s *DatamoverStats) Add(o *DatamoverStats) {
	s.PDUsIn += o.PDUsIn
	s.PDUsOut += o.PDUsOut
	s.PayloadIn += o.PayloadIn
	s.PayloadOut += o.PayloadOut
	s.PayloadCopied += o.PayloadCopied
	s.ReceiveCalls += o.ReceiveCalls
	s.SendCalls += o.SendCalls
	s.OutstandingTransfers += o.OutstandingTransfers
}
