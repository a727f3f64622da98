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
	FUA  bool     // writes: durable before Done

	CDB     []byte // OpCDB
	DataIn  bool   // OpCDB: Buf is filled by the target
	User    any    // the caller's
	UserTag uint64 // the caller's

	// Done is called exactly once, on the connection's receive goroutine (or on
	// the goroutine that found the session dead); it must not block, and may
	// call Submit.
	Done func(*Request)

	// Results, valid in Done.
	Err      error // nil, *scsi.SenseError, ErrOutcomeUnknown, ErrSessionLost, …
	Residual int64 // bytes not transferred
	Status   byte  // SCSI status

	slot int
	next *Request
}
