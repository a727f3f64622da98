package pdustream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"

	"softiser/internal/crc32c"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// ReadAhead is the least size of the read-ahead buffer, bytes. The longest header, with
// what stands between it and the data, must fit.
const ReadAhead = 16 << 10

// DeepReadAhead is what it grows to when a call has filled it, bytes: with many short
// writes whose data is in their PDUs, a call takes more of them. A connection that brings
// little keeps ReadAhead.
const DeepReadAhead = 64 << 10

// Values of Parser.Ahead beside a number of bytes.
const (
	Everything = math.MaxInt32 // as much as there is room for
	Nothing    = -1            // what comes is thrown away, whatever it is
)

// Parser is what a protocol knows of the PDUs that come. The receive goroutine calls it.
type Parser interface {
	// Begin looks at the first bytes of a PDU, as many as Receiver.Init was told, and
	// returns how long all is that comes before the data. 0, for the first PDU if it was to see
	// fewer bytes of that than of others: it wants to see as many of it as well.
	Begin(b []byte) (n int, err error)
	// Header reads that. It says by Receiver.Body what follows, and by Receiver.Aim where
	// it goes; without Aim the data is dropped.
	Header(b []byte) error
	// End ends a PDU; tail is what has come behind the data.
	End(tail []byte) error
	// Claim is called before memory is touched that Aim has named with an owner, Release
	// afterwards: it stays what it is in between. false: it has been taken away, and the
	// rest of the data is dropped.
	Claim() bool
	Release()
	// Fault takes note that this memory cannot be written: the rest of the data is dropped.
	Fault()
	// Ahead returns how many bytes to read behind the data of the PDU under way, or behind
	// what has been read: NextHeader where data follows that is not to be copied. An error
	// ends the stream.
	Ahead() (int, error)
	// Batch is called when what one call has brought is parsed.
	Batch()
	// Wrong judges an error of Begin, Header or End. With nil the stream goes on at the next
	// bytes that come, as if they began a PDU; else it ends with what is returned.
	Wrong(err error) error
}

// phase is the receive goroutine's place in a PDU:
//
//	atStart ──▶ inHeader ──▶ inData ──▶ inTail ──▶ atStart
//	(its first  (the rest,   (data)     (padding,
//	 bytes)      digest, pad)            digest)
type phase uint8

const (
	atStart phase = iota
	inHeader
	inData
	inTail
)

// Receiver is the stream from the peer: how far it is read, and where the data of the PDU
// under way goes. It belongs to one goroutine, the receive goroutine.
type Receiver struct {
	p     Parser
	sk    *sockio.Conn
	wait  sockio.Waiter // how it waits
	start int           // bytes that Begin looks at

	phase phase
	buf   []byte // read-ahead: buf[r:w] has not been used yet
	r, w  int
	need  int  // bytes of what comes next, from buf[r] on; not of data
	full  bool // the last call has filled buf

	// The PDU under way, behind its header.
	left  int       // bytes of the data still to come
	tail  int       // bytes behind the data
	dst   segs.View // where the data goes; nowhere when it is empty
	owner any       // whose memory that is
	whole segs.View // all of dst, for the digest
	check bool      // dst has all of the data: the digest can be compared

	guess Guess
	bad   error // in what was guessed
	vec   []sockio.Vec
	err   error // why the stream has ended
	ahead bool  // buf may hold PDUs that have not been parsed: Run parses before it reads
	lone  sockio.Lone
	early sockio.Early // of what a read brings

	// Counters, which anybody may read.
	PDUs   atomic.Uint64 // whose header has been read
	Recvs  atomic.Uint64 // system calls that have brought bytes
	Copied atomic.Uint64 // bytes for owners that came by way of the read-ahead
}

// sink takes data that nobody wants. It is written by any number of connections
// and never read.
var sink [64 << 10]byte

// Init makes r the only reader of sk, for p. Begin is to look at start bytes, of the first
// PDU at first. ahead is the size of the read-ahead buffer, at least ReadAhead.
func (r *Receiver) Init(sk *sockio.Conn, p Parser, start, first, ahead int) {
	r.p, r.sk, r.start, r.need = p, sk, start, first
	r.buf = make([]byte, ahead)
	r.guess.r = r
	r.wait.Init(sk, r)
}

// Foresee makes r guess, with what g knows.
func (r *Receiver) Foresee(g Guesser) { r.guess.init(g) }

// Run receives until the stream ends, or the parser ends it in front of a PDU, and says why.
// After Rewind it can be called again.
func (r *Receiver) Run() error {
	if err := r.sk.ReadLoop(r.wait.Ready); err != nil {
		return err
	}
	return r.err
}

// Between implements sockio.Receiver.
func (r *Receiver) Between() bool { return r.phase == atStart && r.r == r.w }

// Within implements sockio.Receiver.
func (r *Receiver) Within() bool { return !r.Between() }

// Ready implements sockio.Receiver: it reads and parses until there is nothing to read, or
// its turn is over.
// Where PDUs come one by one and the read has said that nothing is left, no further one is
// made to see it.
func (r *Receiver) Ready() (over bool) {
	lone := r.lone.Proved()
	r.sk.Ask(lone)
	before := r.PDUs.Load()
	r.early.Waited()
	for {
		n, err := r.next()
		got := r.PDUs.Load() - before
		switch {
		case err == sockio.ErrAgain:
			r.lone.Brought(got)
			return false
		case err != nil:
			r.err = err
			return true
		case n == 0:
			r.err = r.sk.End()
			if r.err == io.EOF && !r.Between() {
				r.err = fmt.Errorf("the connection ended within a PDU: %w", io.ErrUnexpectedEOF)
			}
			return true
		}
		if err = r.bad; err == nil {
			err = r.parse()
		}
		if err != nil {
			if r.err = r.p.Wrong(err); r.err != nil {
				return true
			}
			r.phase, r.r, r.w, r.need, r.bad = atStart, 0, 0, r.start, nil
		}
		r.p.Batch()
		r.early = sockio.Early{}
		if got = r.PDUs.Load() - before; lone && got == 1 && r.sk.Drained() && r.Between() {
			r.sk.Waits()
			return false
		}
		if r.wait.Enough() {
			return false
		}
	}
}

// next brings bytes to parse: those that are there, or those of a read.
func (r *Receiver) next() (int, error) {
	if r.ahead {
		r.ahead = false
		return r.w - r.r, nil
	}
	return r.read()
}

// read makes one system call: the rest of the data into its place, and behind it what is
// guessed, or the read-ahead.
func (r *Receiver) read() (int, error) {
	r.makeRoom()
	ahead, err := r.p.Ahead()
	if err != nil {
		return 0, err
	}
	if ahead == Nothing {
		return r.sk.Read(sink[:])
	}
	placing := r.phase == inData
	if !placing && r.guess.g == nil {
		return r.readAhead(ahead)
	}
	v, whole := r.vec[:0], true
	if placing {
		r.claim()
		v, whole = r.appendDst(v)
	}
	guessing := false
	if whole {
		if v, guessing = r.guess.foresee(v); !guessing {
			v = sockio.Append(v, r.buf[r.w:min(len(r.buf), r.w+ahead)])
		}
	}
	// Guessed destinations are buffers of this program, which are taken to be resident.
	soon := !placing || r.left <= soonBytes && (r.guess.g != nil || ram(r.dst))
	n, err := r.sk.Readv(v, soon)
	clear(v)
	r.vec = v[:0]
	if placing {
		r.release()
	}
	if err != nil {
		return r.failed(guessing, err)
	}
	r.Recvs.Add(1)
	behind := n
	if placing {
		k := min(n, r.left)
		r.took(k)
		behind -= k
	}
	switch {
	case !guessing:
		r.w += behind
		r.full = r.w == len(r.buf)
	case behind == 0:
		r.guess.settle()
	default:
		r.bad = r.guess.foreseen(behind)
	}
	return n, nil
}

// makeRoom has the read-ahead begin anew where all of it is used, and where what is there could
// not become the whole of what is needed.
func (r *Receiver) makeRoom() {
	if r.r == r.w {
		r.r, r.w = 0, 0
		if r.full && len(r.buf) < DeepReadAhead {
			r.buf = make([]byte, DeepReadAhead)
		}
	} else if r.r > 0 && len(r.buf)-r.r < r.need {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
}

// readAhead is read where nothing has a place: up to ahead bytes into the read-ahead.
func (r *Receiver) readAhead(ahead int) (int, error) {
	n, err := r.sk.Read(r.buf[r.w:min(len(r.buf), r.w+ahead)])
	if err == nil {
		r.Recvs.Add(1)
		r.w += n
		r.full = r.w == len(r.buf)
	}
	return n, err
}

// failed handles an error of the call that read makes.
func (r *Receiver) failed(guessing bool, err error) (int, error) {
	if guessing {
		r.guess.settle()
	}
	switch {
	case err != sockio.ErrFault:
	case guessing:
		r.guess.suspend() // whose memory it was is found out one by one
		return r.read()
	case r.phase == inData && r.owner != nil:
		r.fault()
		return r.read()
	}
	return 0, err
}

// appendDst appends the destination of the rest of the data, and reports whether that is
// all of it.
func (r *Receiver) appendDst(v []sockio.Vec) (_ []sockio.Vec, whole bool) {
	if cap(v) == 0 {
		v = make([]sockio.Vec, 0, 64)
	}
	if r.dst.Len() == 0 { // the payload is dropped
		left := r.left
		for ; left > 0 && len(v) < 16; left -= len(sink) {
			v = sockio.Append(v, sink[:min(left, len(sink))])
		}
		return v, left <= 0
	}
	d := r.dst
	for d.Len() > 0 && len(v) < sockio.MaxVec-1 {
		s := d.Next()
		v = sockio.Append(v, s)
		d.Skip(len(s))
	}
	return v, d.Len() == 0
}

// took counts k bytes of data that are where they belong.
func (r *Receiver) took(k int) {
	r.left -= k
	if r.dst.Len() > 0 {
		r.dst.Skip(k)
	}
}

// NextHeader is a value for Parser.Ahead: nothing behind the next header, which has n bytes.
func (r *Receiver) NextHeader(n int) int {
	have := r.w - r.r
	switch r.phase {
	case inData:
		return r.tail + n
	case inTail:
		return r.need + n - have
	}
	return max(r.need, n) - have
}

// parse uses up what has been read. It returns when more is needed, or what is wrong.
func (r *Receiver) parse() error {
	begin, ended := r.r, 0
	for {
		have := r.w - r.r
		if r.phase != inData && have < r.need {
			return nil
		}
		switch r.phase {
		case atStart:
			n, err := r.p.Begin(r.buf[r.r : r.r+r.need])
			if err != nil {
				return err
			}
			if n == 0 {
				r.need = r.start
				continue
			}
			r.phase, r.need = inHeader, n
		case inHeader:
			r.left, r.tail, r.owner, r.check = 0, 0, nil, false
			r.dst, r.whole = segs.View{}, segs.View{}
			if err := r.p.Header(r.buf[r.r : r.r+r.need]); err != nil {
				return err
			}
			r.PDUs.Add(1)
			r.r += r.need
			r.phase = inData
		case inData:
			if r.left > 0 {
				n := min(r.left, have)
				if n == 0 {
					return nil
				}
				r.take(r.buf[r.r : r.r+n])
				r.r += n
				continue
			}
			r.phase, r.need = inTail, r.tail
		case inTail:
			tail := r.buf[r.r : r.r+r.need]
			r.r += r.need
			r.phase, r.need = atStart, r.start
			if err := r.p.End(tail); err != nil {
				return err
			}
			if ended++; r.early.Over(ended, r.r-begin, r.w-begin) {
				r.p.Batch()
			}
		}
	}
}

// Body says, within Parser.Header, that n bytes of data follow, and tail bytes behind them.
func (r *Receiver) Body(n, tail int) { r.left, r.tail = n, tail }

// Left returns how many bytes of the data are still to come.
func (r *Receiver) Left() int { return r.left }

// Aim says, within Parser.Header, where the data goes: all of it to v. owner, a pointer,
// tells whose memory that is; without one it is the parser's own, which nobody takes away.
func (r *Receiver) Aim(v segs.View, owner any) { r.dst, r.whole, r.owner, r.check = v, v, owner, true }

// Unread returns what has been read and not been used yet, the header of the PDU under
// way included, unless that is being read already: then it returns nil.
func (r *Receiver) Unread() []byte {
	if r.phase > inHeader {
		return nil
	}
	return r.buf[r.r:r.w]
}

// Rewind makes Run go on where it has stopped. A PDU of which only the header has been read,
// or a part of it, begins anew: all that has come of it is Unread.
func (r *Receiver) Rewind() {
	if r.phase == inHeader {
		r.phase, r.need = atStart, r.start
	}
	r.err, r.ahead = nil, r.r < r.w
	r.lone = 0 // what the last read has left in the socket is not known any more
}

// Preload makes b what has been read and not been used, before the first Run.
func (r *Receiver) Preload(b []byte) error {
	if len(b) > DeepReadAhead {
		return fmt.Errorf("%d bytes were read ahead; %d is the limit", len(b), DeepReadAhead)
	}
	if len(b) > len(r.buf) {
		r.buf = make([]byte, DeepReadAhead)
	}
	r.w = copy(r.buf, b)
	r.ahead = r.w > 0
	return nil
}

// claim keeps the memory of the data while it is touched, or drops the data.
func (r *Receiver) claim() {
	if r.owner != nil && !r.p.Claim() {
		r.drop()
	}
}

func (r *Receiver) release() {
	if r.owner != nil {
		r.p.Release()
	}
}

// drop sends the rest of the data nowhere.
func (r *Receiver) drop() { r.owner, r.dst, r.check = nil, segs.View{}, false }

func (r *Receiver) fault() {
	r.p.Fault()
	r.dst, r.check = segs.View{}, false
}

// take copies data that was read ahead to where it belongs.
func (r *Receiver) take(b []byte) {
	r.claim()
	r.left -= len(b)
	for len(b) > 0 && r.dst.Len() > 0 {
		k, ok := segs.Copy(r.dst.Next(), b)
		if !ok {
			r.fault()
			break
		}
		b = b[k:]
		r.dst.Skip(k)
		if r.owner != nil {
			r.Copied.Add(uint64(k))
		}
	}
	r.release()
}

// Intact compares, within Parser.End, the data digest, a CRC32C that covers the data and
// what comes between it and the digest. tail ends with it, least significant byte first
// (RFC 7143 §13.1; NVMe/TCP Transport Specification, DDGST). Data that was dropped counts as
// intact: nobody is told about it.
func (r *Receiver) Intact(tail []byte) bool {
	if !r.check {
		return true
	}
	r.claim()
	defer r.release()
	if !r.check {
		return true
	}
	crc, ok := r.whole.Checksum(0)
	if !ok {
		r.fault()
		return true
	}
	n := len(tail) - digestLen
	return crc32c.Update(crc, tail[:n]) == binary.LittleEndian.Uint32(tail[n:])
}

const digestLen = 4

// errAnew: memory that was guessed belongs to a command that has ended meanwhile, and
// another has its name now: its data is not where it belongs.
var errAnew = errors.New("data for a command whose name has been used anew while it came")
