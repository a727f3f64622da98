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
	phase rxPhase
	buf   []byte // read-ahead: buf[r:w] has not been used yet
	r, w  int
	need  int // bytes of what comes next, from buf[r] on

	layout Layout
	header [CapsuleCmdLen]byte // of the PDU under way, behind rxHeader

	// Where the data goes: a command's buffer, the memory of a transfer, or nowhere.
	cmd   *command
	get   *get
	dst   segs.View
	left  int       // bytes of the data still to come
	whole segs.View // all of dst, for the digest
	check bool      // the digest of dst is to be compared

	vec []sockio.Vec
	err error
	fn  func(uintptr) bool
	one [1][]byte // list of dst when it is a command's buffer
}

// sink takes data that nobody wants. It is written by any number of connections
// and never read.
var sink [64 << 10]byte

func (r *rxState) init(c *Controller) {
	r.buf = make([]byte, readAhead)
	r.need = ICLen // nothing but ICReq may come first, and nothing behind it yet
	r.fn = c.rxReady
}

// receive runs until the connection ends and says why.
func (c *Controller) receive() error {
	if err := c.sk.ReadLoop(c.rx.fn); err != nil {
		return err
	}
	return c.rx.err
}

// rxReady parses and reads until there is nothing to read.
func (c *Controller) rxReady(uintptr) bool {
	r := &c.rx
	for {
		if f := c.parse(); f != nil {
			head := r.buf[r.r:min(r.w, r.r+MaxTermData)]
			if r.phase > rxHeader {
				head = r.header[:r.layout.HLen]
			}
			c.refuse(f, head)
			r.phase, r.r, r.w, r.need = rxCommon, 0, 0, CHLen
		}
		c.push(rxBytes) // what the commands of this batch were answered with
		n, err := c.read()
		switch {
		case err == sockio.ErrAgain:
			return false
		case err != nil:
			r.err = err
			return true
		case n == 0:
			r.err = io.EOF
			if r.phase != rxCommon || r.r != r.w {
				r.err = fmt.Errorf("nvmetcp: the connection ended within a PDU: %w", io.ErrUnexpectedEOF)
			}
			return true
		}
	}
}

// read makes one system call: the rest of the data into its place, and behind it
// the read-ahead.
func (c *Controller) read() (int, error) {
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
		c.beginPlacing()
		v, whole = c.appendDst(v)
	}
	if whole {
		v = sockio.Append(v, r.buf[r.w:min(len(r.buf), r.w+ahead)])
	}
	n, err := c.sk.Readv(v, false)
	clear(v)
	r.vec = v[:0]
	if r.phase == rxData {
		c.endPlacing()
	}
	if err != nil {
		if err == sockio.ErrFault && r.get != nil {
			c.fault()
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
	r.w += n - k
	return n, nil
}

// appendDst appends the destination of the rest of the data, and reports whether
// that is all of it.
func (c *Controller) appendDst(v []sockio.Vec) ([]sockio.Vec, bool) {
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

// ahead is how much to read behind the data. While data for transfers is expected
// that is only the next header, so that what follows it need not be copied. deaf
// says that whatever comes is thrown away, because the connection is closing.
func (c *Controller) ahead() (n int, deaf bool, err error) {
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
	case c.gets.live == 0:
		return len(r.buf), false, nil
	}
	next := DataLen
	if c.digests&DigestHeader != 0 {
		next += DigestLen
	}
	have := r.w - r.r
	switch r.phase {
	case rxData:
		return r.layout.DDigest + next, false, nil
	case rxTail:
		return r.need + next - have, false, nil
	}
	return max(r.need, next) - have, false, nil
}

// parse uses up what has been read. It returns when more is needed, or what is
// wrong.
func (c *Controller) parse() *Fault {
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
func (c *Controller) common() *Fault {
	r := &c.rx
	c.mu.Lock()
	st := c.st
	l := Limits{FromHost: true, Digests: c.digests, MaxData: c.cfg.MaxH2CData}
	c.mu.Unlock()
	if st == stateInit {
		q, f := ParseICReq(r.buf[r.r : r.r+ICLen])
		if f != nil {
			return f
		}
		r.r += ICLen
		r.need = CHLen
		c.stats.pdusIn.Add(1)
		c.answerIC(&q)
		return nil
	}
	h := (*CH)(r.buf[r.r:])
	switch h.Type() {
	case TypeICReq:
		return &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: a second ICReq")}
	case TypeCapsuleCmd:
		l.MaxData = c.cfg.InCapsule
	}
	var f *Fault
	if r.layout, f = h.Check(&l); f != nil {
		return f
	}
	r.phase, r.need = rxHeader, max(r.layout.HLen+r.layout.Digest, r.layout.PDO)
	return nil
}

// answerIC agrees to what the host wants of the connection.
func (c *Controller) answerIC(q *ICReq) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.tx.alloc()
	p.head = (&ICResp{Digests: q.Digests, MaxH2CData: c.cfg.MaxH2CData}).AppendTo(p.head)
	p.length = len(p.head)
	c.tx.push(p)
	c.digests, c.align = q.Digests, (int(q.HPDA)+1)*4
	c.toLocked(stateReady)
}

// dispatch finds the place of a PDU's data, with its header complete.
func (c *Controller) dispatch() *Fault {
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
	c.stats.pdusIn.Add(1)
	r.cmd, r.get, r.dst, r.check = nil, nil, segs.View{}, false
	r.left = int(l.Data)
	var f *Fault
	switch t := (*CH)(b).Type(); t {
	case TypeCapsuleCmd:
		f = c.capsule()
	case TypeH2CData:
		f = c.h2cData()
	case TypeH2CTermReq:
		c.termReq(b)
	}
	if f != nil {
		return f
	}
	r.r += r.need
	r.phase = rxData
	return nil
}

// capsule takes a slot for a command.
func (c *Controller) capsule() *Fault {
	r := &c.rx
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.slots.take(r.left)
	if k == nil {
		return &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: more than %d commands are outstanding", len(c.slots.all)-1)}
	}
	k.SQE = *(*CapsuleCmd)(r.header[:]).SQE()
	r.cmd = k
	if r.left > 0 && !k.NoRoom {
		r.one[0] = k.Data
		r.dst = segs.Of(r.one[:], 0, r.left)
		r.whole, r.check = r.dst, true
	}
	return nil
}

// h2cData finds the memory that a transfer's data goes to.
func (c *Controller) h2cData() *Fault {
	r := &c.rx
	d := (*Data)(r.header[:])
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gets.find(d.TTAG())
	off, n := d.Offset(), d.Length()
	switch {
	case g == nil:
		return &Fault{FESInvalidHeader, AtTTAG, fmt.Errorf("nvmetcp: H2CData with tag %d, which no R2T has", d.TTAG())}
	case !g.stale && d.CCCID() != g.cmd.SQE.CID():
		return &Fault{FESInvalidHeader, AtCCCID, fmt.Errorf("nvmetcp: H2CData of command %d with the tag of command %d", d.CCCID(), g.cmd.SQE.CID())}
	case n != uint32(r.left) || n == 0:
		return &Fault{FESInvalidHeader, AtLength, fmt.Errorf("nvmetcp: H2CData of %d bytes with %d", n, r.left)}
	case off != g.off+g.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: H2CData at offset %d, expected %d", off, g.off+g.got)}
	case n > g.n-g.got:
		return &Fault{FESOutOfRange, 0, fmt.Errorf("nvmetcp: H2CData of %d bytes, %d are left of what was asked for", n, g.n-g.got)}
	case d.CH().Flags()&FlagLast != 0 && n != g.n-g.got:
		return &Fault{FESInvalidHeader, atFlags, fmt.Errorf("nvmetcp: the last H2CData leaves %d bytes out", g.n-g.got-n)}
	}
	r.get = g
	if !g.stale && !g.fault {
		r.dst = g.view(g.got, n)
		r.whole, r.check = r.dst, true
	}
	if !g.stale {
		c.stats.payloadIn.Add(uint64(n))
	}
	return nil
}

// termReq ends the connection as the host says.
func (c *Controller) termReq(b []byte) {
	q, err := ParseTermReq(b[:TermLen])
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = fmt.Errorf("nvmetcp: the host ends the connection: %s (%d)", q.FES, q.FEI)
	}
	c.failLocked(err)
}

// beginPlacing claims the transfer's memory, or drops the data if it has been taken
// away.
func (c *Controller) beginPlacing() {
	r := &c.rx
	if r.get == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.get.stale {
		r.dst, r.check = segs.View{}, false
		return
	}
	c.placing = r.get
}

func (c *Controller) endPlacing() {
	if c.rx.get == nil {
		return
	}
	c.mu.Lock()
	c.placing = nil
	c.cond.Broadcast()
	c.mu.Unlock()
}

// fault notes that the transfer's memory cannot be written and drops the rest.
func (c *Controller) fault() {
	r := &c.rx
	c.mu.Lock()
	r.get.fault = true
	c.mu.Unlock()
	r.dst, r.check = segs.View{}, false
}

// take copies data that was read ahead to where it belongs.
func (c *Controller) take(b []byte) {
	r := &c.rx
	c.beginPlacing()
	n := len(b)
	for len(b) > 0 && r.dst.Len() > 0 {
		k, ok := segs.Copy(r.dst.Next(), b)
		if !ok {
			c.endPlacing()
			c.fault()
			c.beginPlacing()
			break
		}
		b = b[k:]
		r.dst.Skip(k)
		c.stats.copied.Add(uint64(k))
	}
	r.left -= n
	c.endPlacing()
}

// intact compares the data digest. Data whose memory faults, or has been taken
// away, counts as intact: nobody is told about it.
func (c *Controller) intact(tail []byte) bool {
	r := &c.rx
	if len(tail) == 0 || !r.check {
		return true
	}
	c.beginPlacing()
	defer c.endPlacing()
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

// finish handles the end of a PDU; tail is its data digest.
func (c *Controller) finish(tail []byte) {
	r := &c.rx
	good := c.intact(tail)
	r.whole = segs.View{}
	if k := r.cmd; k != nil {
		r.cmd, r.one[0] = nil, nil
		k.Corrupt = !good
		c.up.Command(&k.Command)
		return
	}
	if r.get != nil {
		c.placed(good)
	}
}
