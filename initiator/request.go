package initiator

import (
	"softiser/initiator/blockio"
	"softiser/internal/fsm"
	"softiser/internal/list"
)

// Request is one asynchronous operation on a LUN.
type Request = blockio.Request

// Op is what a Request asks a LUN to do.
type Op = blockio.Op

// Operations of a Request, and the SCSI commands that they become.
const (
	OpRead            = blockio.OpRead
	OpWrite           = blockio.OpWrite
	OpFlush           = blockio.OpFlush       // SYNCHRONIZE CACHE
	OpDiscard         = blockio.OpDiscard     // UNMAP, or WRITE SAME with UNMAP
	OpWriteZeroes     = blockio.OpWriteZeroes // WRITE SAME(16) of zeroes
	OpVerify          = blockio.OpVerify      // VERIFY, BYTCHK 0
	OpCompareAndWrite = blockio.OpCompareAndWrite
	OpCDB             = blockio.OpCDB
)

// Flusher is one of several users of a LUN who do not know of each other.
type Flusher = blockio.Flusher

// request is what a session keeps of a Request, in its Driver: made at its first use,
// and used again with it.
type request struct {
	*blockio.Request
	lun    *LUN
	geo    *geometry
	sess   *Session
	next   *request // chain of outbox
	total  int64    // bytes to cover, by data or by address range
	issued int64    // of these: handed to commands
	parts  int32    // commands under way
	state  reqState
	flush  flushState
	redone uint8              // times that the data was sent again because of a reset before its flush
	ctl    bool               // runs ahead of the queue, in the session's reserved slots
	once   bool               // no retry of any kind: the sense goes to the caller
	resets uint32             // the session's, when the data was queued
	joined uint32             // the look at the LUN during which it came; 0: during none
	cancel error              // why no further command is started, and what Err becomes
	node   list.Node[request] // in a reqQueue
	sync   blockio.Flush      // OpFlush, flushNow: what it covers
}

// stateOf returns what is kept of r. A copy of a Request that was used before gets its own.
func stateOf(r *Request) *request {
	q, ok := r.Driver.(*request)
	if !ok || q.Request != r {
		q = &request{Request: r}
		r.Driver = q
	}
	return q
}

// flushState is how a Request with FUA becomes durable where its commands have
// no FUA bit.
//
//	after --data written--> now --SYNCHRONIZE CACHE done--> end
//	  ^------------- the target may have been reset --/
type flushState uint8

const (
	flushNone  flushState = iota
	flushAfter            // when all of its commands have ended, SYNCHRONIZE CACHE
	flushNow              // which is what is sent, or to be sent, now
)

// nextRequest is the drawing of reqState. A request that cannot be started at all, or is
// given up, ends where it is.
var nextRequest = fsm.Of([][]reqState{
	reqIdle:    {reqQueued},
	reqQueued:  {reqRunning, reqIdle},
	reqRunning: {reqQueued, reqIdle},
})

// setState is the only place where the state of a request changes after Submit; false says
// that nothing has, because the table does not have it. The caller holds s.mu.
func (r *request) setState(s *Session, to reqState) bool {
	if r.state != to && !nextRequest.Has(r.state, to) {
		s.illegal("a request", r.state, to)
		return false
	}
	r.state = to
	return true
}

// reqState tells where a Request is.
//
//	idle --Submit--> queued --its last command starts--> running --last command ends--> idle
//	                   ^----- a flush follows, or the data once more ----/
type reqState uint8

const (
	reqIdle    reqState = iota // the caller's
	reqQueued                  // in the session's queue; commands may be under way already
	reqRunning                 // every command has been started
)

// String returns the state's name.
func (r reqState) String() string { return [...]string{"idle", "queued", "running"}[r] }
