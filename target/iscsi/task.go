package iscsi

import (
	"sync/atomic"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// taskState is where a command slot is in its life:
//
//	          command            unsolicited data
//	free ───────────────▶ collecting ───────────▶ running ──Respond──▶ ended ─┐
//	 ▲  └──────no unsolicited Data-Out follows──────▲ │                 ▲     │
//	 │                        │                       │ abort           │     │
//	 │                        └────────abort──────────┴─▶ aborting ─────┘     │
//	 │                                                    Respond (not sent)  │
//	 └──────────────── transfers have ended and nobody pins it ───────────────┘
type taskState uint8

const (
	taskFree       taskState = iota
	taskCollecting           // waits for unsolicited Data-Out PDUs; the device server has not seen it
	taskRunning              // with the device server
	taskAborting             // with the device server, which has been asked to end it
	taskEnded                // answered; the transport may still use its memory
)

// nextTask is the drawing as a table.
var nextTask = fsm.Of([][]taskState{
	taskFree:       {taskCollecting, taskRunning},
	taskCollecting: {taskRunning, taskAborting},
	taskRunning:    {taskAborting, taskEnded},
	taskAborting:   {taskEnded},
	taskEnded:      {taskFree},
})

func (s taskState) String() string {
	return [...]string{"free", "collecting", "running", "aborting", "ended"}[s]
}

// task is one command slot of a session. Slots are made when they are first
// needed and used again and again (see slots): nothing is allocated per command.
type task struct {
	scsi scsi.Task
	// via is the connection that the task is allegiant to (RFC 7143 §4.2.5.1). It is
	// written under sess.mu, and read without it by late calls for the command, see slots.
	via atomic.Pointer[conn]

	// Set when the command is accepted, then constant.
	itt     uint32
	cmdSN   uint32
	flags   taskFlags
	ref     iscsi.Ref
	cdb     [16]byte
	started time.Duration // since Frontend.epoch
	pdu     *iscsi.PDU    // the command, as long as its data or AHS is in use

	// The rest is guarded by sess.mu.
	state    taskState
	executed bool     // the device server has it, or had it until Release
	pins     int      // fences and copies that still look at the slot
	fences   []*fence // to be told when the aborted task has ended
	moving   int      // transfers in the hands of the datamover
	next     *task    // free list, or chain of the tag table

	unsol unsolicited // Data-Out PDUs that nobody asked for
	in    putState    // DataIn
	out   getState    // DataOut
	reply bool        // Respond came while DataIn calls were still queued
}

// taskFlags are facts about a command.
type taskFlags uint8

const (
	flagImmediate taskFlags = 1 << iota // the I bit: outside the window
	flagRead
	flagWrite
	flagStall    // the CmdSN order waits for this task's unsolicited data
	flagSNACK    // a SNACK for its data could not be served
	flagEntering // on its way to the device server beside the order, and pinned; see abortEnteringLocked
	flagDoomed   // is aborted as soon as it is there
)

// conn is the connection that the task is allegiant to.
func (k *task) conn() *conn { return k.via.Load() }

// session is whose command it is.
func (k *task) session() *session { return k.conn().sess }

func (k *task) has(f taskFlags) bool { return k.flags&f != 0 }

// setStateLocked is the only place where a slot changes state. The caller holds
// sess.mu.
func (k *task) setStateLocked(to taskState) {
	if !nextTask.Has(k.state, to) {
		k.session().impossible("a task", k.state, to)
		return
	}
	k.state = to
}

// taskAttr translates the ATTR field (RFC 7143 §11.3.1); untagged commands are
// simple ones.
func taskAttr(a uint8) scsi.TaskAttr {
	switch a {
	case 2:
		return scsi.AttrOrdered
	case 3:
		return scsi.AttrHeadOfQueue
	case 4:
		return scsi.AttrACA
	}
	return scsi.AttrSimple
}

// tagTable finds the tasks of a session by initiator task tag. Chains run
// through the tasks themselves, so that nothing is allocated per command.
type tagTable struct {
	chain []*task // length is a power of two
}

func newTagTable(slots int) tagTable {
	n := 16
	for n < slots {
		n *= 2
	}
	return tagTable{chain: make([]*task, n)}
}

// at returns the chain of a tag: that of its low bits. Initiators count their tags
// up, or keep the number of a slot there (Linux and ours); the latter leave most
// of the table, and of the cache, alone.
func (t *tagTable) at(itt uint32) **task {
	return &t.chain[itt&uint32(len(t.chain)-1)]
}

func (t *tagTable) find(itt uint32) *task {
	for k := *t.at(itt); k != nil; k = k.next {
		if k.itt == itt {
			return k
		}
	}
	return nil
}

func (t *tagTable) insert(k *task) {
	p := t.at(k.itt)
	k.next = *p
	*p = k
}

func (t *tagTable) remove(k *task) {
	for p := t.at(k.itt); *p != nil; p = &(*p).next {
		if *p == k {
			*p = k.next
			k.next = nil
			return
		}
	}
}

// each calls f for every task in the table.
func (t *tagTable) each(f func(*task)) {
	for _, k := range t.chain {
		for k != nil {
			next := k.next
			f(k)
			k = next
		}
	}
}

// fence waits for aborted tasks to end: a task management response may only be
// sent when nothing of them can reach the initiator any more, neither a
// response nor an RDMA operation on their STags (RFC 7143 §4.2.3.3, RFC 7145
// §7.3.3). Its tasks may belong to several sessions.
type fence struct {
	left atomic.Int32 // tasks still to end, plus one while the fence is set up
	then func()       // called once, without locks held
}

func newFence(then func()) *fence {
	f := &fence{then: then}
	f.left.Store(1)
	return f
}

// release takes one off; the last one runs what has waited.
func (f *fence) release() {
	if f.left.Add(-1) == 0 {
		f.then()
	}
}
