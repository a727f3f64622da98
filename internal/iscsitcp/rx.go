package iscsitcp

import (
	"fmt"
	"io"
	"os"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// readAhead is the size of the read-ahead buffer; the longest header with its
// digest must fit.
const readAhead = 16 << 10

// rxPhase is the receive goroutine's place in a PDU:
//
//	rxHeader ──▶ rxData ──▶ rxTail ──▶ rxHeader
//	(BHS, AHS,   (data)     (padding,
//	 digest)                 digest)
type rxPhase uint8

const (
	rxHeader rxPhase = iota
	rxData
	rxTail
)

// receiver is the half of a connection that the receive goroutine owns: how far it is
// in the stream, and where the data goes.
type receiver struct {
	c     *Conn
	phase rxPhase
	buf   []byte // read-ahead: buf[r:w] has not been used yet
	r, w  int
	need  int // bytes of the header, or of the tail

	bhs    iscsi.BHS
	hd, dd bool // digests of this PDU

	// Where the data goes: the memory of a task (placing in a *task or *get), a
	// pooled buffer, or nowhere.
	dst    segs.View
	left   int // bytes of the data segment still to come
	owner  any // *task, *get or nil
	tag    *r2t
	in     *inPDU
	toss   bool      // the header was damaged: what it announced is skipped
	astray bool      // no good header has come since
	full   bool      // the next header waits until the peer has read more of its answers
	direct bool      // owner's memory, whole: the digest can be checked
	whole  segs.View // all of dst, for the digest

	guess guess // of an initiator: whose data comes next

	vec  []sockio.Vec
	one  [1][]byte // dst of a PDU that goes into a buffer of ours
	err  error
	lone int // wake-ups in a row that brought one PDU each, up to loneProof
}

// loneProof is how many such wake-ups show that PDUs come one by one.
const loneProof = 4

// sink takes data that nobody wants. It is written by any number of connections
// and never read.
var sink [64 << 10]byte

func (r *receiver) init(c *Conn) {
	r.c = c
	r.buf = make([]byte, readAhead)
	r.need = iscsi.BHSLen
	r.guess.init(r)
}

// receive runs until the connection ends and says why.
func (r *receiver) receive() error {
	c := r.c
	defer r.dropPartial()
	if err := c.sk.ReadLoop(c.wait.Ready); err != nil {
		return err
	}
	return r.err
}

// dropPartial gives back the buffer of a PDU of which the stream held only the
// beginning.
func (r *receiver) dropPartial() {
	if r.in != nil {
		r.in.pdu.Release()
		r.in = nil
	}
}

// Between implements sockio.Receiver.
func (r *receiver) Between() bool { return r.phase == rxHeader && r.r == r.w }

// Ready implements sockio.Receiver: it reads and parses until there is nothing to read.
// Where PDUs come one by one and the read has said that nothing is left, no further one is
// made to see it.
func (r *receiver) Ready() bool {
	c := r.c
	lone := r.lone == loneProof
	c.sk.Ask(lone)
	before := c.stats.pdusIn.Load()
	for {
		n, err := r.read()
		got := c.stats.pdusIn.Load() - before
		switch {
		case err == sockio.ErrAgain:
			switch {
			case got > 1:
				r.lone = 0
			case got == 1 && r.lone < loneProof:
				r.lone++
			}
			return false
		case err != nil:
			r.err = err
			return true
		case n == 0:
			r.err = c.sk.End()
			if r.err == io.EOF && !r.Between() {
				r.err = fmt.Errorf("iscsitcp: the connection ended within a PDU: %w", io.ErrUnexpectedEOF)
			}
			return true
		}
		if r.err = r.handle(); r.err != nil {
			return true
		}
		c.tx.turn(rxBytes) // what the PDUs of this batch were answered with
		if got = c.stats.pdusIn.Load() - before; lone && got == 1 && c.sk.Drained() && r.Between() {
			c.sk.Waits()
			return false
		}
	}
}

// handle handles what has been read.
func (r *receiver) handle() error {
	for {
		if err := r.parse(); err != nil || !r.full {
			return err
		}
		r.full = false
		r.c.tx.turn(rxBytes)
		r.awaitReader()
	}
}

// awaitReader waits until the peer has read what it made us say, or the connection
// is ending.
func (r *receiver) awaitReader() {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.st == iscsi.ConnFull && !c.tx.unsent.Room() {
		c.cond.Wait()
	}
}

// read makes one system call: the rest of the data into its place, and behind it
// the read-ahead.
func (r *receiver) read() (int, error) {
	c := r.c
	if r.r == r.w {
		r.r, r.w = 0, 0
	} else if r.r > 0 && len(r.buf)-r.r < r.need {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	v := r.vec[:0]
	if r.phase == rxData {
		r.beginPlacing()
		v = r.appendDst(v)
	}
	ahead, err := r.ahead()
	if err != nil {
		if r.phase == rxData {
			r.endPlacing()
		}
		return 0, err
	}
	v, guessing := r.guess.foresee(v)
	if !guessing {
		v = sockio.Append(v, r.buf[r.w:min(len(r.buf), r.w+ahead)])
	}
	n, err := c.sk.Readv(v, false)
	clear(v)
	r.vec = v[:0]
	if r.phase == rxData {
		r.endPlacing()
	}
	if err != nil {
		if guessing {
			r.guess.settle()
		}
		switch {
		case err == sockio.ErrFault && guessing:
			r.guess.score = worstScore // whose memory it was is found out one by one
			return r.read()
		case err == sockio.ErrFault && r.phase == rxData && r.owner != nil:
			r.fault()
			return r.read()
		}
		return 0, err
	}
	c.stats.recvs.Add(1)
	behind := n
	if r.phase == rxData {
		k := min(n, r.left)
		r.took(k)
		behind -= k
	}
	switch {
	case !guessing:
		r.w += behind
	case behind == 0:
		r.guess.settle()
	default:
		err = r.guess.foreseen(behind)
	}
	return n, err
}

// appendDst appends the destination of the rest of the data.
func (r *receiver) appendDst(v []sockio.Vec) []sockio.Vec {
	if cap(v) == 0 {
		v = make([]sockio.Vec, 0, 64)
	}
	if r.dst.Len() == 0 { // dropped
		for left := r.left; left > 0 && len(v) < 16; left -= len(sink) {
			v = sockio.Append(v, sink[:min(left, len(sink))])
		}
		return v
	}
	d := r.dst
	for d.Len() > 0 && len(v) < sockio.MaxVec-1 {
		s := d.Next()
		v = sockio.Append(v, s)
		d.Skip(len(s))
	}
	return v
}

// took counts k bytes of data.
func (r *receiver) took(k int) {
	r.left -= k
	if r.dst.Len() > 0 {
		r.dst.Skip(k)
	}
}

// ahead is how much to read behind the data: while data for tasks is expected,
// only up to the end of the next header, so that what follows it need not be
// copied; while the stream may change its form, nothing behind the PDU.
func (r *receiver) ahead() (int, error) {
	have := r.w - r.r
	direct, last, err := r.expects()
	if err != nil || !direct && !last && (r.phase != rxData || r.dst.Len() >= r.left) {
		return len(r.buf), err
	}
	next := iscsi.BHSLen
	if r.hd {
		next += iscsi.DigestLen
	}
	if last {
		next = 0
	}
	switch r.phase {
	case rxData:
		return r.tailLen() + next, nil
	case rxTail:
		return r.need + next - have, nil
	}
	return max(r.need, next) - have, nil
}

func (r *receiver) tailLen() int {
	n := iscsi.PadLen(r.bhs.DataLen())
	if r.dd && r.bhs.DataLen() > 0 {
		n += iscsi.DigestLen
	}
	return n
}

// expects tells what may come next: direct, data for the memory of a task; last,
// something else than iSCSI. A connection that has ended expects nothing, however
// much its peer goes on sending: a socket that is never empty would hide the
// deadlines that end the receive goroutine.
func (r *receiver) expects() (direct, last bool, err error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.st == iscsi.ConnDead:
		err = c.endError()
	case c.finSent && time.Now().After(c.lingerEnd):
		err = os.ErrDeadlineExceeded
	}
	return c.tasks.direct || !c.gets.running.Empty(), c.cfg.Upgradable && c.st == iscsi.ConnLogin, err
}

// parse uses up what has been read. It returns when more is needed.
func (r *receiver) parse() error {
	for {
		switch r.phase {
		case rxHeader:
			if r.w-r.r < r.need {
				return nil
			}
			if r.need == iscsi.BHSLen {
				r.peekHeader()
				if r.full {
					r.need = iscsi.BHSLen // it is looked at again
					return nil
				}
				if err := r.checkLengths(); err != nil {
					return err
				}
				if r.w-r.r < r.need {
					return nil
				}
			}
			if err := r.header(); err != nil {
				return err
			}
		case rxData:
			if r.left > 0 {
				n := min(r.left, r.w-r.r)
				if n == 0 {
					return nil
				}
				r.take(r.buf[r.r : r.r+n])
				r.r += n
				continue
			}
			r.phase, r.need = rxTail, r.tailLen()
		case rxTail:
			if r.w-r.r < r.need {
				return nil
			}
			if err := r.finish(r.buf[r.r : r.r+r.need]); err != nil {
				return err
			}
			if r.err != nil {
				return r.err
			}
		}
	}
}

// take copies data that was read ahead to where it belongs.
func (r *receiver) take(b []byte) {
	c := r.c
	r.beginPlacing()
	n := len(b)
	for len(b) > 0 && r.dst.Len() > 0 {
		d := r.dst.Next()
		k, ok := segs.Copy(d, b)
		if !ok {
			r.endPlacing()
			r.fault()
			r.beginPlacing()
			break
		}
		b = b[k:]
		r.dst.Skip(k)
		if r.owner != nil {
			c.stats.copied.Add(uint64(k))
		}
	}
	r.left -= n
	r.endPlacing()
}
