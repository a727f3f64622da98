package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"softiser/internal/crc32c"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// readAhead is the size of the read-ahead buffer; the longest header with its
// digest and padding must fit.
const readAhead = 16 << 10

// rxPhase is the receive goroutine's place in a PDU:
//
//	rxCommon ──▶ rxHeader ──▶ rxData ──▶ rxTail ──▶ rxCommon
//	(8 bytes)    (the rest,   (data)     (digest)
//	             digest, pad)
type rxPhase uint8

const (
	rxCommon rxPhase = iota
	rxHeader
	rxData
	rxTail
)

// rxState is the receive goroutine's own.
type rxState struct {
	c     *conn
	phase rxPhase
	buf   []byte // read-ahead: buf[r:w] has not been used yet
	r, w  int
	need  int // bytes of what comes next, from buf[r] on

	layout Layout
	header [CapsuleCmdLen]byte // of the PDU under way, behind rxHeader

	// Where the data goes; nowhere when dst is empty.
	dst   segs.View
	left  int       // bytes of the data still to come
	whole segs.View // all of dst, for the digest
	check bool      // the digest of dst is to be compared

	bad *Fault // in what was foreseen
	vec []sockio.Vec
	err error

	single int // wake-ups in a row that brought one PDU each, up to loneProof
}

// loneProof is how many such wake-ups show that PDUs come one by one.
const loneProof = 4

// sink takes data that nobody wants. It is written by any number of connections
// and never read.
var sink [64 << 10]byte

func (r *rxState) init(c *conn, first int) {
	r.c = c
	r.buf = make([]byte, readAhead)
	r.need = first
}

// grow makes the read-ahead n bytes long.
func (r *rxState) grow(n int) { r.buf = make([]byte, n) }

// receive runs until the connection ends and says why.
func (c *conn) receive() error {
	if err := c.sk.ReadLoop(c.wait.Ready); err != nil {
		return err
	}
	return c.rx.err
}

// Between implements sockio.Receiver.
func (r *rxState) Between() bool { return r.phase == rxCommon && r.r == r.w }

// Ready implements sockio.Receiver: it reads and parses until there is nothing to read.
// Where PDUs come one by one and the read has said that nothing is left, no further one is
// made to see it.
func (r *rxState) Ready() bool {
	c := r.c
	lone := r.single == loneProof
	c.sk.Ask(lone)
	before := c.stats.pdusIn.Load()
	for {
		n, err := c.read()
		got := c.stats.pdusIn.Load() - before
		switch {
		case err == sockio.ErrAgain:
			switch {
			case got > 1:
				r.single = 0
			case got == 1 && r.single < loneProof:
				r.single++
			}
			return false
		case err != nil:
			r.err = err
			return true
		case n == 0:
			r.err = c.sk.End()
			if r.err == io.EOF && !r.Between() {
				r.err = fmt.Errorf("nvmetcp: the connection ended within a PDU: %w", io.ErrUnexpectedEOF)
			}
			return true
		}
		f := r.bad
		if f == nil {
			f = c.parse()
		}
		if f != nil {
			head := r.buf[r.r:min(r.w, r.r+MaxTermData)]
			if r.phase > rxHeader {
				head = r.header[:r.layout.HLen]
			}
			c.refuse(f, head)
			r.phase, r.r, r.w, r.need, r.bad = rxCommon, 0, 0, CHLen, nil
		}
		c.role.batchEnd()
		c.push(rxBytes) // what this batch has led to
		if got = c.stats.pdusIn.Load() - before; lone && got == 1 && c.sk.Drained() && r.Between() {
			c.sk.Waits()
			return false
		}
	}
}

// read makes one system call: the rest of the data into its place, and behind it
// the read-ahead.
func (c *conn) read() (int, error) {
	r := &c.rx
	if r.r == r.w {
		r.r, r.w = 0, 0
	} else if r.r > 0 && len(r.buf)-r.r < r.need {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	ahead, deaf, err := c.ahead()
	if err != nil {
		return 0, err
	}
	if deaf {
		return c.sk.Read(sink[:])
	}
	v := r.vec[:0]
	whole := true
	if r.phase == rxData {
		c.claim()
		v, whole = c.appendDst(v)
	}
	guessing := false
	if whole {
		if v, guessing = c.role.foresee(v); !guessing {
			v = sockio.Append(v, r.buf[r.w:min(len(r.buf), r.w+ahead)])
		}
	}
	n, err := c.sk.Readv(v, false)
	clear(v)
	r.vec = v[:0]
	if r.phase == rxData {
		c.role.release()
	}
	if err != nil {
		if err == sockio.ErrFault && (guessing && c.role.unforeseen() || c.fault()) {
			return c.read()
		}
		return 0, err
	}
	c.stats.recvs.Add(1)
	k := 0
	if r.phase == rxData {
		k = min(n, r.left)
		r.took(k)
	}
	if !guessing {
		r.w += n - k
	} else if n > k {
		if r.bad = c.parse(); r.bad == nil { // the PDU whose data is complete
			c.role.foreseen(n - k)
		}
	}
	return n, nil
}

// appendDst appends the destination of the rest of the data, and reports whether
// that is all of it.
func (c *conn) appendDst(v []sockio.Vec) ([]sockio.Vec, bool) {
	r := &c.rx
	if cap(v) == 0 {
		v = make([]sockio.Vec, 0, 64)
	}
	if r.dst.Len() == 0 { // dropped
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

// took counts k bytes of data.
func (r *rxState) took(k int) {
	r.left -= k
	if r.dst.Len() > 0 {
		r.dst.Skip(k)
	}
}

// ahead is how much to read behind the data. deaf says that whatever comes is thrown away, because the connection is closing.
func (c *conn) ahead() (n int, deaf bool, err error) {
	r := &c.rx
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.st == stateDead:
		return 0, false, c.endError()
	case c.finSent && time.Now().After(c.lingerEnd):
		return 0, false, os.ErrDeadlineExceeded
	case c.st == stateClosing:
		return 0, true, nil
	case c.st == stateInit:
		return r.need - (r.w - r.r), false, nil
	}
	return c.role.aheadLocked(), false, nil
}

// nextOnly is how much to read when what follows the next header, of n bytes, is
// data that is not to be copied.
func (c *conn) nextOnly(n int) int {
	r := &c.rx
	if c.digests&DigestHeader != 0 {
		n += DigestLen
	}
	have := r.w - r.r
	switch r.phase {
	case rxData:
		return r.layout.DDigest + n
	case rxTail:
		return r.need + n - have
	}
	return max(r.need, n) - have
}

// parse uses up what has been read. It returns when more is needed, or what is
// wrong.
func (c *conn) parse() *Fault {
	r := &c.rx
	for {
		have := r.w - r.r
		if r.phase != rxData && have < r.need {
			return nil
		}
		var f *Fault
		switch r.phase {
		case rxCommon:
			f = c.common()
		case rxHeader:
			f = c.dispatch()
		case rxData:
			if r.left > 0 {
				n := min(r.left, have)
				if n == 0 {
					return nil
				}
				c.take(r.buf[r.r : r.r+n])
				r.r += n
				continue
			}
			r.phase, r.need = rxTail, r.layout.DDigest
		case rxTail:
			tail := r.buf[r.r : r.r+r.need]
			r.r += r.need
			r.phase, r.need = rxCommon, CHLen
			c.finish(tail)
		}
		if f != nil {
			return f
		}
	}
}

// common looks at the common header.
func (c *conn) common() *Fault {
	r := &c.rx
	c.mu.Lock()
	st := c.st
	h := (*CH)(r.buf[r.r:])
	l := c.role.limitsLocked(h.Type())
	c.mu.Unlock()
	if st == stateInit {
		if f := c.first(r.buf[r.r : r.r+ICLen]); f != nil {
			return f
		}
		r.r += ICLen
		r.need = CHLen
		c.stats.pdusIn.Add(1)
		return nil
	}
	if t := h.Type(); t == TypeICReq || t == TypeICResp {
		return &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: a second %s", t)}
	}
	var f *Fault
	if r.layout, f = h.Check(&l); f != nil {
		return f
	}
	r.phase, r.need = rxHeader, max(r.layout.HLen+r.layout.Digest, r.layout.PDO)
	return nil
}

// dispatch finds the place of a PDU's data, with its header complete.
func (c *conn) dispatch() *Fault {
	r := &c.rx
	b := r.buf[r.r:]
	l := &r.layout
	if l.Digest > 0 {
		want := binary.LittleEndian.Uint32(b[l.HLen:])
		if got := crc32c.Update(0, b[:l.HLen]); got != want {
			return &Fault{FESHeaderDigest, want, fmt.Errorf("nvmetcp: header digest %08x, the header's is %08x", want, got)}
		}
	}
	copy(r.header[:], b[:l.HLen])
	if f := c.place((*CH)(b).Type()); f != nil {
		return f
	}
	r.r += r.need
	r.phase = rxData
	return nil
}

// place finds where the data of the PDU goes whose header is complete.
func (c *conn) place(t Type) *Fault {
	r := &c.rx
	c.stats.pdusIn.Add(1)
	r.dst, r.whole, r.check = segs.View{}, segs.View{}, false
	r.left = int(r.layout.Data)
	if t == TypeH2CTermReq || t == TypeC2HTermReq {
		c.terminated()
		return nil
	}
	return c.role.dispatch(t)
}

// terminated ends the connection as the peer says.
func (c *conn) terminated() {
	q, err := ParseTermReq(c.rx.header[:TermLen])
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = fmt.Errorf("nvmetcp: the other end closes the connection: %s (%d)", q.FES, q.FEI)
	}
	c.failLocked(err)
}

// aim makes v where the data of the PDU goes.
func (r *rxState) aim(v segs.View) { r.dst, r.whole, r.check = v, v, true }

// claim keeps the memory of the data while it is touched; if that has been taken away,
// the data is dropped.
func (c *conn) claim() {
	if !c.role.claim() {
		c.rx.drop()
	}
}

func (r *rxState) drop() { r.dst, r.check = segs.View{}, false }

// fault drops the rest of data whose memory cannot be written, if that may be.
func (c *conn) fault() bool {
	if !c.role.faulted() {
		return false
	}
	c.rx.drop()
	return true
}

// take copies data that was read ahead to where it belongs.
func (c *conn) take(b []byte) {
	r := &c.rx
	c.claim()
	n := len(b)
	for len(b) > 0 && r.dst.Len() > 0 {
		k, ok := segs.Copy(r.dst.Next(), b)
		if !ok {
			c.role.release()
			c.fault()
			c.claim()
			break
		}
		b = b[k:]
		r.dst.Skip(k)
		c.stats.copied.Add(uint64(k))
	}
	r.left -= n
	c.role.release()
}

// intact compares the data digest. Data whose memory faults, or has been taken
// away, counts as intact: nobody is told about it.
func (c *conn) intact(tail []byte) bool {
	r := &c.rx
	if len(tail) == 0 || !r.check {
		return true
	}
	c.claim()
	defer c.role.release()
	if !r.check {
		return true
	}
	crc, ok := r.whole.Checksum(0)
	if !ok {
		c.fault()
		return true
	}
	return crc == binary.LittleEndian.Uint32(tail)
}

// finish ends a PDU; tail is its data digest.
func (c *conn) finish(tail []byte) {
	good := c.intact(tail)
	c.rx.whole = segs.View{}
	c.role.finish(good)
}
