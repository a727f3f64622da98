package blockio

// Op is what a Request asks a volume to do.
type Op uint8

// Operations of a Request. What a volume does not have ends with
// blockdev.ErrNotSupported.
const (
	OpRead  Op = iota
	OpWrite    // durable once a flush has succeeded, or by itself with FUA
	OpFlush
	OpDiscard
	OpWriteZeroes
	OpVerify // the target reads the medium; no data travel
	OpCompareAndWrite
	OpCDB // a raw SCSI command: Request.CDB, with Buf as Data-In or Data-Out; SCSI only
	OpSQE // a raw NVMe command: Request.SQE, with Buf as the data that its opcode moves; NVMe only
)

// Request is one asynchronous operation on a volume. The caller owns the struct
// and reuses it: nothing is allocated per operation. From Submit until Done is
// called, the Request and the memory in Buf and Segs belong to the volume.
type Request struct {
	// What every operation uses comes first, in three lines of the cache.
	Op  Op
	FUA bool // writes, zeroes and discards: durable before Done
	// MayUnmap lets OpWriteZeroes deallocate where the target then reads zeroes.
	MayUnmap bool
	// NoData has OpWriteZeroes fail with blockdev.ErrNotSupported where it would
	// have to send the zeroes.
	NoData bool
	DataIn bool // OpCDB: Buf is filled by the target

	Status byte // result, valid in Done as those below: SCSI status
	Sent   bool // result: something of it was given to the wire: the target may have carried it out

	Off  int64    // bytes; a multiple of the block size
	Len  int64    // bytes, for operations without data
	Buf  []byte   // data; where the wire is RDMA, the target reads or writes it directly
	Segs [][]byte // instead of Buf: scattered data
	User any      // the caller's

	// Done is called exactly once, on a goroutine of the volume's or within Submit; it
	// must not block, and may call Submit.
	Done func(*Request)

	// Results, valid in Done.
	Err      error // nil, ErrOutcomeUnknown, ErrSessionLost, an error of the wire's, …
	Residual int64 // bytes not transferred

	// Driver is what the volume keeps of the request, so that the next use of it
	// allocates nothing. Set keeps it; its owner checks that it is this Request's.
	Driver any

	CDB     []byte   // OpCDB, 6 to 260 bytes; sense and unit attentions go to the caller
	SQE     []byte   // OpSQE, 64 bytes: the submission queue entry, whose identifiers and data pointer are the volume's
	UserTag uint64   // the caller's
	Flusher *Flusher // who asks, where the volume has several users
}

// Set makes r the operation that to describes, and keeps what makes the next use of r
// free of allocations.
func (r *Request) Set(to Request) {
	to.Driver = r.Driver
	*r = to
}

// DataLen returns how many bytes Buf or Segs have.
func (r *Request) DataLen() int64 {
	if r.Segs == nil {
		return int64(len(r.Buf))
	}
	n := int64(0)
	for _, s := range r.Segs {
		n += int64(len(s))
	}
	return n
}

// Part appends to dst the slices that hold the n bytes of the data from off.
func (r *Request) Part(dst [][]byte, off, n int64) [][]byte {
	if r.Segs == nil {
		return append(dst, r.Buf[off:off+n])
	}
	for _, s := range r.Segs {
		if off >= int64(len(s)) {
			off -= int64(len(s))
			continue
		}
		s = s[off:]
		off = 0
		s = s[:min(int64(len(s)), n)]
		dst = append(dst, s)
		if n -= int64(len(s)); n == 0 {
			break
		}
	}
	return dst
}
