package scsi

import "softiser/blockdev"

// Task is one SCSI command in execution. The session layer embeds one in each
// of its preallocated command slots, fills the first group of fields and calls
// Device.Execute; the device server fills the second group and ends every task
// with exactly one Port.Respond.
//
// Threads: Execute runs on the connection's receive goroutine and must not
// block. What may block goes to the logical unit's bounded worker pool; after a
// job has run there, the worker calls Port.Push.
type Task struct {
	// Set by the session layer before Execute.
	CDB     []byte   // 6 to 260 bytes; borrowed until Respond
	LUN     uint64   // as on the wire
	Attr    TaskAttr // SIMPLE, ORDERED, HEAD OF QUEUE, ACA
	Nexus   *Nexus   // the I_T nexus it came through
	Port    Port     // where data and status go
	InLen   uint32   // Data-In bytes the initiator has room for (expected data transfer length)
	OutLen  uint32   // Data-Out bytes the initiator will send
	Arrived []byte   // immediate data that came with the command; borrowed until Respond
	// UnsolicitedLen is how many bytes of Data-Out arrive without being asked
	// for, Arrived included; the port merges them into the next DataOut.
	UnsolicitedLen uint32

	// Set by the device server before Respond.
	Status   Status
	SenseLen int       // valid bytes of Sense
	Sense    [252]byte // fixed or descriptor format
	Sent     uint32    // Data-In bytes given to PutData
	Wanted   uint32    // bytes the CDB asks to move; the port derives the residual from it and InLen/OutLen

	// Working state of the device server.
	Lease   blockdev.Lease
	lu      *LU
	op      *command
	cont    func(*Task, error) // what runs when DataOut has completed
	buf     []byte             // parameter data, pooled
	aborted bool
	state   taskState
}

// Port is the data and status path of a task: the session layer over a
// datamover. Down-calls only queue.
type Port interface {
	// DataIn queues segs for the initiator's buffer at offset off. The memory is
	// the task's until the session layer calls Task.Release.
	DataIn(t *Task, off uint32, segs [][]byte) error
	// DataOut fetches [off, off+len(segs)) of the initiator's buffer into segs;
	// unsolicited bytes are copied from where they arrived. Task.DataOutDone is
	// called when all of it is there, or with the error.
	DataOut(t *Task, off uint32, segs [][]byte) error
	// Respond queues the SCSI Response. Afterwards the task belongs to the
	// session layer, which calls Task.Release once data and status no longer
	// need its memory.
	Respond(t *Task)
	// Push transmits what has been queued by a worker.
	Push()
}
