package initiator

// Op is what a Request asks a LUN to do.
type Op uint8

// Operations of a Request.
const (
	OpRead Op = iota
	OpWrite
	OpFlush       // SYNCHRONIZE CACHE
	OpDiscard     // UNMAP
	OpWriteZeroes // WRITE SAME(16) of zeroes
	OpVerify      // VERIFY, BYTCHK 0
	OpCompareAndWrite
	OpCDB // a raw CDB: Request.CDB, with Buf as Data-In or Data-Out
)

// Request is one asynchronous operation on a LUN. The caller owns the struct
// and reuses it: nothing is allocated per operation. From Submit until Done is
// called, the Request and the memory in Buf and Segs belong to the session.
type Request struct {
	Op   Op
	Off  int64    // bytes; a multiple of the block size
	Len  int64    // bytes, for operations without data
	Buf  []byte   // data; the target reads or writes it directly over iSER
	Segs [][]byte // instead of Buf: scattered data
	FUA  bool     // writes, zeroes and discards: durable before Done
	// MayUnmap lets OpWriteZeroes deallocate where the target then reads zeroes.
	MayUnmap bool
	// NoData has OpWriteZeroes fail with blockdev.ErrNotSupported where it would
	// have to send the zeroes.
	NoData bool

	CDB     []byte // OpCDB, 6 to 260 bytes; sense and unit attentions go to the caller
	DataIn  bool   // OpCDB: Buf is filled by the target
	User    any    // the caller's
	UserTag uint64 // the caller's

	Flusher *Flusher // OpFlush: who asks, where the LUN has several users

	// Done is called exactly once, on the connection's receive goroutine (or on
	// the goroutine that found the session dead); it must not block, and may
	// call Submit.
	Done func(*Request)

	// Results, valid in Done.
	Err      error // nil, *SenseError, ErrOutcomeUnknown, ErrSessionLost, …
	Residual int64 // bytes not transferred
	Status   byte  // SCSI status

	// The session's.
	lun    *LUN
	geo    *geometry
	sess   *Session
	next   *Request // queue link
	state  reqState
	total  int64 // bytes to cover, by data or by address range
	issued int64 // of these: handed to commands
	parts  int32 // commands under way
	flush  flushState
	redone uint8  // times that the data was sent again because of a reset before its flush
	resets uint32 // the session's, when the data was queued
	joined uint32 // the look at the LUN during which it came; 0: during none
	told   uint32 // OpFlush: the losses that its user knew of at Submit
	covers uint64 // OpFlush, flushNow: the LUN's written, when it was queued
	cancel error  // why no further command is started, and what Err becomes
	ctl    bool   // runs ahead of the queue, in the session's reserved slots
	once   bool   // no retry of any kind: the sense goes to the caller
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
var nextRequest = after([][]reqState{
	reqIdle:    {reqQueued},
	reqQueued:  {reqRunning, reqIdle},
	reqRunning: {reqQueued, reqIdle},
}...)

// setState is the only place where the state of a request changes after Submit; false says
// that nothing has, because the table does not have it. The caller holds s.mu.
func (r *Request) setState(s *Session, to reqState) bool {
	if !nextRequest.legal(r.state, to) {
		s.illegal("request", r.state, to)
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
