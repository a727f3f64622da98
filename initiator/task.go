package initiator

import (
	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// taskState is where a command slot is.
//
//	free --start--> sent --answer------------------------------> free
//	                 |  ^ |---BUSY…--> delayed --due--\
//	                 |  | |---unit attention…----------+-> resend
//	                 |  | \---connection lost---------/      |
//	                 |  +----------- window, login ----------+
//	                 \---time-out, cancel--> aborting --answer to it or to the abort--> free
type taskState uint8

const (
	taskFree     taskState = iota
	taskSent               // at the target
	taskAborting           // at the target; ABORT TASK or LUN RESET is outstanding
	taskDelayed            // becomes taskResend at task.due
	taskResend             // in a list of commands to be sent again
)

// String returns the state's name.
func (t taskState) String() string {
	return [...]string{"free", "sent", "aborting", "delayed", "to be sent again"}[t]
}

// nextTask is the drawing of taskState as a table. A task that stays taskResend when the
// connection is lost makes no transition: recovery.queueAgain builds the list anew.
var nextTask = fsm.Of([][]taskState{
	taskFree:     {taskSent},
	taskSent:     {taskFree, taskAborting, taskDelayed, taskResend},
	taskAborting: {taskFree},
	taskDelayed:  {taskFree, taskResend},
	taskResend:   {taskFree, taskSent},
})

// setState is the only place where a slot's state changes. It returns false, and ends the
// connection, for a transition that nextTask does not have; the state then stays.
func (t *task) setState(to taskState) bool {
	if t.state != to && !nextTask.Has(t.state, to) {
		t.sess.illegal("a command slot", t.state, to)
		return false
	}
	t.state = to
	return true
}

// taskKind says which PDU a slot stands for.
type taskKind uint8

const (
	kindCommand taskKind = iota
	kindPing             // NOP-Out
	kindTMF
	kindLogout
)

// controlSlots are kept free of data commands: pings, task management, logout
// and the session's own INQUIRYs.
const controlSlots = 16

// task is one slot of a session's table: a command or another PDU that waits
// for its answer. Slots are made once; nothing is allocated per command.
//
// Fields that a command without obstacles uses come first, in four cache lines: with many
// sessions every one of them is a cache miss.
type task struct {
	sess   *Session
	state  taskState
	kind   taskKind
	ctl    bool   // one of the reserved slots
	cdbLen uint8  // of cdb
	gen    uint16 // counts the uses of the slot; upper half of the ITT
	index  uint16 // lower half of the ITT
	next   int32  // free list or resend list; none at the end
	cmdSN  uint32
	inLen  uint32 // Data-In expected, bytes
	outLen uint32 // Data-Out offered, bytes

	// A command.
	req     *request
	lun     uint64 // as on the wire
	off, n  int64  // the part of the request that it covers, bytes from the start of that
	cdb     [16]byte
	started int64 // clock.now (ns) when first sent
	bufs    iscsi.TaskBuffers
	segs    [][]byte  // backing of bufs.In or bufs.Out
	one     [1][]byte // backing of segs for a single piece
	ahs     []byte    // the rest of a CDB longer than 16 bytes
	replays uint32    // connections lost while it was outstanding
	retries uint8     // unit attentions and aborted commands in a row
	asked   bool      // taskAborting: ABORT TASK or LUN RESET has been sent; kindTMF: it counts in taskManagement.outstanding
	taskRest
}

// taskRest has the fields that are used less often.
type taskRest struct {
	param    [24]byte // UNMAP parameter list
	due      int64    // taskDelayed: clock.now (ns) when it is sent again
	lost     int64    // clock.now (ns) at the first loss of a connection while it was outstanding
	abortErr error    // taskAborting: the error that the command ends with

	// PDUs other than commands.
	deadline int64              // clock.now (ns) when it is overdue
	ref      uint16             // kindTMF: the slot to abort
	function iscsi.TaskFunction // kindTMF
	refITT   uint32             // kindTMF: the tag of ref, which tells whether its slot is still in that use
	answer   func(p *iscsi.PDU, err error)
}

const none = -1

// itt returns the Initiator Task Tag: the number of the slot and a count of its uses, so that
// a late answer to an earlier use is not taken for an answer to this one.
func (t *task) itt() uint32 { return uint32(t.gen)<<16 | uint32(t.index) }

// opcode returns the command's operation code.
func (t *task) opcode() spc.Opcode { return spc.Opcode(t.cdb[0]) }

// table is the slots of a session. The session's mutex guards it.
type table struct {
	slots   []task
	free    int32 // data commands
	freeCtl int32
	used    int // slots of data commands in use
}

func newTable(s *Session, depth int) table {
	tb := table{slots: make([]task, depth+controlSlots), free: none, freeCtl: none}
	for i := len(tb.slots) - 1; i >= 0; i-- {
		t := &tb.slots[i]
		t.sess = s
		t.index, t.ctl = uint16(i), i >= depth
		t.segs = t.one[:0]
		tb.push(t)
	}
	return tb
}

func (tb *table) head(ctl bool) *int32 {
	if ctl {
		return &tb.freeCtl
	}
	return &tb.free
}

func (tb *table) push(t *task) {
	h := tb.head(t.ctl)
	t.next, *h = *h, int32(t.index)
}

// control takes a free slot for a PDU outside the command window, such as NOP-Out or task
// management; nil if there is none.
func (tb *table) control(k taskKind) *task { return tb.get(true, k) }

// get takes a free slot, one of those for control if ctl, or returns nil.
func (tb *table) get(ctl bool, k taskKind) *task {
	h := tb.head(ctl)
	if *h == none {
		return nil
	}
	t := &tb.slots[*h]
	*h = t.next
	t.next = none
	t.kind = k
	t.setState(taskSent)
	tb.renew(t)
	if !ctl {
		tb.used++
	}
	return t
}

// renew gives the slot a new tag. 0xffffffff is reserved; no index is 0xffff,
// so no tag can be it.
func (tb *table) renew(t *task) { t.gen++ }

// put frees a slot and drops what it referred to.
func (tb *table) put(t *task) {
	if t.state == taskFree {
		t.sess.illegal("a command slot", taskFree, taskFree) // it would be in the list twice
		return
	}
	if t.state == taskAborting || t.kind != kindCommand {
		t.abortErr, t.answer = nil, nil
	}
	t.setState(taskFree)
	if !t.ctl {
		tb.used--
	}
	if len(t.segs) == 1 {
		t.segs[0] = nil // most have one; clear would call the collector's barrier
	} else {
		clear(t.segs)
	}
	t.req, t.ahs = nil, nil
	t.segs, t.bufs.In, t.bufs.Out = t.segs[:0], nil, nil
	t.retries, t.replays, t.asked = 0, 0, false
	tb.push(t)
}

// find returns the slot that an ITT names, nil if that use of it has ended.
func (tb *table) find(itt uint32) *task {
	i := itt & 0xffff
	if int(i) >= len(tb.slots) {
		return nil
	}
	t := &tb.slots[i]
	if t.state == taskFree || t.itt() != itt {
		return nil
	}
	return t
}
