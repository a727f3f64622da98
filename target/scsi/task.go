package scsi

import (
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// Status is the SCSI status of a task.
type Status = spc.Status

// TaskAttr is the task attribute of a command (SAM-5 §8.6).
type TaskAttr uint8

// Task attributes, numbered as in the iSCSI SCSI Command PDU.
const (
	AttrUntagged    TaskAttr = 0 // as SIMPLE
	AttrSimple      TaskAttr = 1
	AttrOrdered     TaskAttr = 2
	AttrHeadOfQueue TaskAttr = 3
	AttrACA         TaskAttr = 4 // refused: there is never an ACA condition here
)

// Task is one SCSI command in execution. The session layer embeds one in each
// of its preallocated command slots, fills the first group of fields and calls
// Device.Execute; the device server fills the second group and ends every task
// with exactly one Port.Respond.
//
// Threads: Execute runs on the connection's receive goroutine and must not
// block. What may block goes to the logical unit's bounded worker pool; after a
// job has run there, the worker pushes Port.Via.
type Task struct {
	// Set by the session layer before Execute.
	CDB     []byte   // 6 to 260 bytes; borrowed until Respond
	LUN     uint64   // as on the wire
	Attr    TaskAttr // SIMPLE, ORDERED, HEAD OF QUEUE, ACA
	Nexus   *Nexus   // the I_T nexus it came through
	Port    Port     // where data and status go
	InLen   uint32   // Data-In bytes the initiator has room for (expected data transfer length)
	OutLen  uint32   // Data-Out bytes the initiator will send
	Arrived []byte   // immediate and unsolicited data that has arrived; borrowed until Respond
	// UnsolicitedLen is how many leading bytes of Data-Out came without being asked for
	// (those of Arrived); DataOut copies them from there, and fetches only the rest.
	UnsolicitedLen uint32

	// Set by the device server before Respond.
	Status   Status
	SenseLen int       // valid bytes of Sense
	Sense    [252]byte // fixed or descriptor format
	Sent     uint32    // Data-In bytes given to DataIn
	Wanted   uint32    // bytes the CDB asks to move; the port derives the residual from it and InLen/OutLen
	// Silent says that the task was aborted and its initiator knows: no SCSI
	// Response goes out. Respond is called all the same, to end the task.
	Silent bool

	// Working state of the device server.
	volume.Op // what its volume knows of it
	Lease     blockdev.Lease
	probe     blockdev.Lease // finds out whether a copy would wait; never kept
	dev       *Device
	lu        *LU  // nil: the LUN names none
	itl       *itl // its side of the nexus
	op        *command
	told      bool        // a reset that aborted it found TAS set; written with the volume's lock held
	job       func(*Task) // continuation after a wait, see request.Step
	io        spc.IO      // decoded CDB of a medium access command
	off       int64       // byte range of the medium access
	n         int64       // its length; for parameter lists and chunks, that of the Data-Out
	span      int64       // bytes that WRITE SAME fills
	chunk     chunks
	data      transfer
}

// Port is the data and status path of a task: the session layer over a
// datamover. Down-calls only queue.
type Port interface {
	// DataIn queues segs for the initiator's buffer at offset off. The memory is
	// the task's until the session layer calls Task.Release; the slice of
	// slices is valid during the call only.
	DataIn(t *Task, off uint32, segs [][]byte) error
	// DataOut fetches [off, off+len(segs)) of the initiator's buffer into segs;
	// unsolicited bytes are copied from where they arrived. Task.DataOutDone is
	// called when all of it is there, or with the error; from inside DataOut if
	// nothing has to be fetched, so t may have ended when DataOut returns. The slice
	// of slices stays valid until then. If DataOut itself returns an error,
	// DataOutDone is not called.
	DataOut(t *Task, off uint32, segs [][]byte) error
	// Cancel ends a running DataOut of t, because t has been aborted: DataOutDone
	// follows, with an error, as soon as nothing more can arrive. The call may come
	// late. via is what Via returned while t had not ended; Cancel is a no-op if the
	// slot of t does not belong to via any more, if t is not Aborted (checked under the
	// port's own lock: the slot then holds a new command), and if no DataOut runs. It
	// may be called on any goroutine, without locks held.
	Cancel(t *Task, via volume.Port)
	// Respond queues the SCSI Response. Afterwards the task belongs to the
	// session layer, which calls Task.Release once data and status no longer
	// need its memory. It may be called on any goroutine, without locks held.
	Respond(t *Task)
	// Via returns the port that transmits what is queued for the task. It is called while
	// the task has not ended; the result may be used after that.
	Via() volume.Port
	// Describe fills in the connection and the tag of the command; Task fills in the rest.
	Describe(*volume.TracedCommand)
}

// Release ends the task's use of its memory: the lease and the parameter
// buffer go back. The session layer calls it after Respond, when data and
// status no longer need them.
func (t *Task) Release() {
	t.Lease.Release()
	t.data.put()
	clear(t.data.segs)
	t.data.segs = t.data.segs[:0]
	if t.lu != nil {
		t.lu.vol.Unstage(&t.Op)
		t.lu.place.Unuse()
	}
	t.lu, t.itl, t.op, t.job, t.data.cont, t.chunk.work = nil, nil, nil, nil, nil, nil
	t.CDB, t.Arrived = nil, nil
	t.Op.Release()
}

// reset prepares the working state for a new command.
func (t *Task) reset(d *Device) {
	t.dev, t.lu, t.itl, t.op = d, nil, nil, nil
	if t.data.t == nil { // once: fetch may still read it when the slot has a new command
		t.data.t, t.chunk.t = t, t
	}
	t.Status, t.SenseLen, t.Sent, t.Wanted, t.Silent, t.told = spc.StatusGood, 0, 0, 0, false, false
	t.off, t.n, t.chunk.done, t.chunk.staged = 0, 0, 0, 0
	t.Op.Init((*request)(t))
}

// DataOutDone goes on with the task when the DataOut that it has asked for is complete, or
// has failed with err. The task may have ended when it returns.
func (t *Task) DataOutDone(err error) {
	switch {
	case t.Aborted():
		t.end()
	case err != nil:
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
	default:
		t.Op.Stamp(volume.Placed)
		t.data.cont(t)
	}
}

// reply ends the task with parameter data, cut to the allocation length and to
// what the initiator has room for. data is t.data.buf or outlives the task.
func (t *Task) reply(data []byte, alloc uint32) {
	n := min(uint32(len(data)), alloc)
	t.Wanted = n
	n = min(n, t.InLen)
	if n > 0 {
		t.data.segs = append(t.data.segs[:0], data[:n])
		if !t.data.send() {
			return
		}
	}
	t.good()
}
