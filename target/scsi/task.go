package scsi

import (
	spc "softiser/internal/scsi"

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
	job       func(*Task)              // what it goes on with when it has waited
	cont      func(*Task)              // what runs when DataOut has completed
	work      func(*Task, []byte) bool // what a staged chunk is for, see stage.go
	io        spc.IO                   // decoded CDB of a medium access command
	off       int64                    // byte range of the medium access
	n         int64
	span      int64    // bytes that WRITE SAME fills
	done      int64    // bytes of n that are finished
	staged    int      // bytes of the chunk under way that go through WriteAt
	buf       []byte   // pooled buffer
	reserved  int      // bytes of Config.Staging that it counts for
	segs      [][]byte // scratch for DataIn and DataOut; keeps its array
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
	// called when all of it is there, or with the error; never from inside
	// DataOut. The slice of slices stays valid until then. If DataOut itself
	// returns an error, DataOutDone is not called.
	DataOut(t *Task, off uint32, segs [][]byte) error
	// Cancel ends a DataOut of t that is under way, because t has been aborted:
	// DataOutDone follows, with an error, as soon as nothing more can arrive. It
	// is a no-op for a task without one, or whose Aborted is false when checked
	// under the port's own lock (the slot holds a new command by then). It may be
	// called on any goroutine, without locks held.
	Cancel(t *Task)
	// Respond queues the SCSI Response. Afterwards the task belongs to the
	// session layer, which calls Task.Release once data and status no longer
	// need its memory. It may be called on any goroutine, without locks held.
	Respond(t *Task)
	// Push transmits what has been queued by a worker.
	Push()
}

// Release ends the task's use of its memory: the lease and the parameter
// buffer go back. The session layer calls it after Respond, when data and
// status no longer need them.
func (t *Task) Release() {
	t.Lease.Release()
	t.putBuf()
	clear(t.segs)
	t.segs = t.segs[:0]
	if t.lu != nil {
		t.lu.place.Unuse()
	}
	t.lu, t.itl, t.op, t.job, t.cont, t.work = nil, nil, nil, nil, nil, nil
	t.CDB, t.Arrived = nil, nil
	t.Op.Release()
}

// reset prepares the working state for a new command.
func (t *Task) reset(d *Device) {
	t.dev, t.lu, t.itl, t.op = d, nil, nil, nil
	t.Status, t.SenseLen, t.Sent, t.Wanted, t.Silent = spc.StatusGood, 0, 0, 0, false
	t.off, t.n, t.done, t.staged = 0, 0, 0, 0
	t.Op.Init((*request)(t))
}

// DataOutDone tells that the Data-Out asked for has arrived, or that it will
// not (err).
func (t *Task) DataOutDone(err error) {
	switch {
	case t.Aborted():
		t.end()
	case err != nil:
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
	default:
		t.cont(t)
	}
}

// fetch asks for Data-Out at offset off of the initiator's buffer into t.segs
// and continues with cont.
func (t *Task) fetch(off uint32, cont func(*Task)) {
	t.cont = cont
	port := t.Port
	if err := port.DataOut(t, off, t.segs); err != nil {
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
		return
	}
	// An abort that came before DataOut found nothing to cancel. From here on
	// the task may have ended; cancelling then is a no-op.
	if t.Aborted() {
		port.Cancel(t)
	}
}

// fetchParam brings n bytes of parameter list and continues with cont, which
// finds them in t.buf or, when all of them came with the command, in place; see
// param. A transfer shorter than the CDB says is an error (5/0E/03).
func (t *Task) fetchParam(n int, cont func(*Task)) {
	t.Wanted = uint32(n)
	t.n = int64(n)
	if uint32(n) > t.OutLen {
		t.illegal(spc.ASCInvalidFieldInIU)
		return
	}
	if len(t.Arrived) >= n {
		cont(t)
		return
	}
	if !t.stageBuf(n) {
		t.status(spc.StatusBusy)
		return
	}
	t.buf = t.buf[:n]
	t.segs = append(t.segs[:0], t.buf)
	t.fetch(0, cont)
}

// param returns the parameter list that fetchParam brought.
func (t *Task) param() []byte {
	if t.buf != nil {
		return t.buf[:t.n]
	}
	return t.Arrived[:t.n]
}

// reply ends the task with parameter data, cut to the allocation length and to
// what the initiator has room for. data is t.buf or outlives the task.
func (t *Task) reply(data []byte, alloc uint32) {
	n := min(uint32(len(data)), alloc)
	t.Wanted = n
	n = min(n, t.InLen)
	if n > 0 {
		t.segs = append(t.segs[:0], data[:n])
		if !t.send() {
			return
		}
	}
	t.good()
}

// send gives t.segs to the port as all of the Data-In.
func (t *Task) send() bool {
	n := uint32(0)
	for _, s := range t.segs {
		n += uint32(len(s))
	}
	if err := t.Port.DataIn(t, 0, t.segs); err != nil {
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
		return false
	}
	t.Sent = n
	return true
}
