package iscsitcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"softiser/internal/crc32c"
	"softiser/internal/iscsi"
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

// rxState is the receive goroutine's own.
type rxState struct {
	phase rxPhase
	buf   []byte // read-ahead: buf[r:w] has not been used yet
	r, w  int
	need  int // bytes of the header, or of the tail

	bhs    iscsi.BHS
	hd, dd bool // digests of this PDU

	// Where the data goes: the memory of a task (placing in a *task or *get), a
	// pooled buffer, or nowhere.
	dst    view
	left   int // bytes of the data segment still to come
	owner  any // *task, *get or nil
	tag    *r2t
	in     *inPDU
	toss   bool // the header was damaged: what it announced is skipped
	astray bool // no good header has come since
	direct bool // owner's memory, whole: the digest can be checked
	whole  view // all of dst, for the digest

	vec     []sockio.Vec
	scratch [][]byte
	err     error
	fn      func(uintptr) bool
	lone    int // wake-ups in a row that brought one PDU each, up to loneProof
}

// loneProof is how many such wake-ups show that PDUs come one by one.
const loneProof = 4

// sink takes data that nobody wants. It is written by any number of connections
// and never read.
var sink [64 << 10]byte

func (r *rxState) init(c *Conn) {
	r.buf = make([]byte, readAhead)
	r.need = iscsi.BHSLen
	r.fn = c.rxReady
}

// receive runs until the connection ends and says why.
func (c *Conn) receive() error {
	defer c.rx.dropPartial()
	if err := c.sk.ReadLoop(c.rx.fn); err != nil {
		return err
	}
	return c.rx.err
}

// dropPartial gives back the buffer of a PDU of which the stream held only the
// beginning.
func (r *rxState) dropPartial() {
	if r.in != nil {
		r.in.pdu.Release()
		r.in = nil
	}
}

// rxReady parses and reads until there is nothing to read. Where PDUs come one by one
// and the read has said that nothing is left, no further one is made to see it.
func (c *Conn) rxReady(uintptr) bool {
	r := &c.rx
	lone := r.lone == loneProof
	c.sk.Ask(lone)
	before := c.stats.pdusIn.Load()
	for {
		if err := c.parse(); err != nil {
			r.err = err
			return true
		}
		c.push(rxBytes) // what the PDUs of this batch were answered with
		got := c.stats.pdusIn.Load() - before
		if lone && got == 1 && c.sk.Drained() && r.phase == rxHeader && r.r == r.w {
			c.sk.Waits()
			return false
		}
		n, err := c.read()
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
			r.err = io.EOF
			if r.phase != rxHeader || r.r != r.w {
				r.err = fmt.Errorf("iscsitcp: the connection ended within a PDU: %w", io.ErrUnexpectedEOF)
			}
			return true
		}
	}
}

// read makes one system call: the rest of the data into its place, and behind it
// the read-ahead.
func (c *Conn) read() (int, error) {
	r := &c.rx
	if r.r == r.w {
		r.r, r.w = 0, 0
	} else if r.r > 0 && len(r.buf)-r.r < r.need {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	v := r.vec[:0]
	if r.phase == rxData {
		c.beginPlacing()
		v = c.appendDst(v)
	}
	v = sockio.Append(v, r.buf[r.w:min(len(r.buf), r.w+c.ahead())])
	n, err := c.sk.Readv(v)
	clear(v)
	r.vec = v[:0]
	if r.phase == rxData {
		c.endPlacing()
	}
	if err != nil {
		if err == sockio.ErrFault && r.phase == rxData && r.owner != nil {
			c.fault()
			return c.read()
		}
		return 0, err
	}
	c.stats.recvs.Add(1)
	if r.phase == rxData {
		k := min(n, r.left)
		r.took(k)
		r.w += n - k
		return n, nil
	}
	r.w += n
	return n, nil
}

// appendDst appends the destination of the rest of the data.
func (c *Conn) appendDst(v []sockio.Vec) []sockio.Vec {
	r := &c.rx
	if cap(v) == 0 {
		v = make([]sockio.Vec, 0, 64)
	}
	if r.dst.n == 0 { // dropped
		for left := r.left; left > 0 && len(v) < 16; left -= len(sink) {
			v = sockio.Append(v, sink[:min(left, len(sink))])
		}
		return v
	}
	d := r.dst
	for d.n > 0 && len(v) < sockio.MaxVec-1 {
		s := d.next()
		v = sockio.Append(v, s)
		d.skip(len(s))
	}
	return v
}

// took counts k bytes of data.
func (r *rxState) took(k int) {
	r.left -= k
	if r.dst.n > 0 {
		r.dst.skip(k)
	}
}

// ahead is how much to read behind the data: while data for tasks is expected,
// only up to the end of the next header, so that what follows it need not be
// copied; while the stream may change its form, nothing behind the PDU.
func (c *Conn) ahead() int {
	r := &c.rx
	have := r.w - r.r
	direct, last := c.expects()
	if !direct && !last && (r.phase != rxData || r.dst.n >= r.left) {
		return len(r.buf)
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
		return r.tailLen() + next
	case rxTail:
		return r.need + next - have
	}
	return max(r.need, next) - have
}

func (r *rxState) tailLen() int {
	n := iscsi.PadLen(r.bhs.DataLen())
	if r.dd && r.bhs.DataLen() > 0 {
		n += iscsi.DigestLen
	}
	return n
}

// expects tells what may come next: direct, data for the memory of a task; last,
// something else than iSCSI.
func (c *Conn) expects() (direct, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks.direct || c.gets.first != nil, c.cfg.Upgradable && c.st == stateLogin
}

// parse uses up what has been read. It returns when more is needed.
func (c *Conn) parse() error {
	r := &c.rx
	for {
		switch r.phase {
		case rxHeader:
			if r.w-r.r < r.need {
				return nil
			}
			if r.need == iscsi.BHSLen {
				c.peekHeader()
				if err := c.checkLengths(); err != nil {
					return err
				}
				if r.w-r.r < r.need {
					return nil
				}
			}
			if err := c.header(); err != nil {
				return err
			}
		case rxData:
			if r.left > 0 {
				n := min(r.left, r.w-r.r)
				if n == 0 {
					return nil
				}
				c.take(r.buf[r.r : r.r+n])
				r.r += n
				continue
			}
			r.phase, r.need = rxTail, r.tailLen()
		case rxTail:
			if r.w-r.r < r.need {
				return nil
			}
			if err := c.finish(r.buf[r.r : r.r+r.need]); err != nil {
				return err
			}
			if r.err != nil {
				return r.err
			}
		}
	}
}

// peekHeader copies the BHS and finds the length of the whole header.
func (c *Conn) peekHeader() {
	r := &c.rx
	r.bhs = iscsi.BHS(r.buf[r.r:])
	op := r.bhs.Opcode()
	login := op == iscsi.OpLoginRequest || op == iscsi.OpLoginResponse
	c.mu.Lock()
	r.hd, r.dd = c.digestsLocked()
	c.mu.Unlock()
	r.hd, r.dd = r.hd && !login, r.dd && !login
	r.need = iscsi.BHSLen + r.bhs.AHSLen()
	if r.hd {
		r.need += iscsi.DigestLen
	}
}

// checkLengths compares every length with what was negotiated, before anything
// is allocated or read because of it.
func (c *Conn) checkLengths() error {
	if c.rx.hd && c.recovers() {
		return nil // once its digest is known to be good; see header
	}
	return c.lengths()
}

func (c *Conn) lengths() error {
	r := &c.rx
	op := r.bhs.Opcode()
	info := op.Info()
	limit := c.cfg.LoginDataLimit
	c.mu.Lock()
	if c.enabled {
		limit = int(c.params.MaxRecvDataSegmentLength)
	}
	c.mu.Unlock()
	switch n := r.bhs.DataLen(); {
	case n > limit:
		return protocolError("%s with a data segment of %d bytes; %d is the limit", op, n, limit)
	case r.bhs.AHSLen() > 0 && info.Name != "" && !info.AHS:
		return protocolError("%s with additional header segments", op)
	case info.Name != "" && op.FromTarget() == (c.role == iscsi.RoleTarget):
		return protocolError("the peer sent a %s, which is for the other side to send", op)
	}
	return nil
}

func protocolError(format string, args ...any) error {
	return &iscsi.ProtocolError{Reason: iscsi.RejectProtocol, Msg: fmt.Sprintf(format, args...), Fatal: true}
}

var errHeaderDigest = &iscsi.ProtocolError{Reason: iscsi.RejectProtocol, Msg: "header digest error", Fatal: true}

// header handles a complete header and decides where the data goes.
func (c *Conn) header() error {
	r := &c.rx
	h := r.buf[r.r : r.r+r.need]
	r.r += r.need
	r.need = iscsi.BHSLen
	if r.hd {
		n := len(h) - iscsi.DigestLen
		if crc32c.Update(0, h[:n]) != binary.LittleEndian.Uint32(h[n:]) {
			return c.badHeader()
		}
		h = h[:n]
		if c.recovers() {
			r.astray = false
			if err := c.lengths(); err != nil {
				return err
			}
		}
	}
	c.stats.pdusIn.Add(1)
	if c.keep != nil {
		c.mu.Lock()
		c.keep.acked(r.bhs.ExpStatSN())
		c.mu.Unlock()
	}
	r.phase, r.left = rxData, r.bhs.DataLen()
	r.owner, r.tag, r.in, r.dst, r.whole, r.direct = nil, nil, nil, view{}, view{}, false
	switch r.bhs.Opcode() {
	case iscsi.OpDataIn:
		return c.dataIn()
	case iscsi.OpR2T:
		if r.left != 0 {
			return protocolError("R2T with data")
		}
		return nil
	case iscsi.OpDataOut:
		if r.bhs.TTT() != iscsi.ReservedTag {
			return c.dataOut()
		}
	}
	r.in = newInPDU(len(h) - iscsi.BHSLen + r.left)
	p := &r.in.pdu
	p.BHS = r.bhs
	if n := len(h) - iscsi.BHSLen; n > 0 {
		p.AHS = r.in.buf.b[:n:n]
		copy(p.AHS, h[iscsi.BHSLen:])
	}
	if r.left > 0 {
		n := len(p.AHS)
		p.Data = r.in.buf.b[n : n+r.left : n+r.left]
		r.scratch = append(r.scratch[:0], p.Data)
		r.dst = view{segs: r.scratch, n: r.left}
		r.whole, r.direct = r.dst, true
	}
	return nil
}

// take copies data that was read ahead to where it belongs.
func (c *Conn) take(b []byte) {
	r := &c.rx
	c.beginPlacing()
	n := len(b)
	for len(b) > 0 && r.dst.n > 0 {
		d := r.dst.next()
		k, ok := copyGuarded(d, b)
		if !ok {
			c.endPlacing()
			c.fault()
			c.beginPlacing()
			break
		}
		b = b[k:]
		r.dst.skip(k)
		if r.owner != nil {
			c.stats.copied.Add(uint64(k))
		}
	}
	r.left -= n
	c.endPlacing()
}

// beginPlacing claims the owner's memory, or drops the data if it has been taken
// away.
func (c *Conn) beginPlacing() {
	r := &c.rx
	if r.owner == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.owned() {
		r.drop()
		return
	}
	c.placing = r.owner
}

// owned reports whether the memory still belongs to the data.
func (r *rxState) owned() bool {
	switch o := r.owner.(type) {
	case *task:
		return o.bufs != nil && o.itt == r.bhs.ITT()
	case *get:
		return o.x != nil && r.tag.g == o && r.tag.ttt == r.bhs.TTT()
	}
	return false
}

// drop sends the rest of the data nowhere.
func (r *rxState) drop() {
	r.owner, r.tag, r.dst, r.direct = nil, nil, view{}, false
	clear(r.scratch)
}

func (c *Conn) endPlacing() {
	if c.rx.owner == nil {
		return
	}
	c.mu.Lock()
	c.placing = nil
	c.cond.Broadcast()
	c.mu.Unlock()
}

// fault notes that the owner's memory cannot be written and drops the rest.
func (c *Conn) fault() {
	r := &c.rx
	c.mu.Lock()
	if r.owned() {
		switch o := r.owner.(type) {
		case *task:
			o.fault = true
		case *get:
			o.fault = true
		}
	}
	c.mu.Unlock()
	r.dst, r.direct = view{}, false
}

// errDataDigest is how a data digest error is answered.
var errDataDigest = &iscsi.ProtocolError{Reason: iscsi.RejectDataDigest, Msg: "data digest error"}

var errDigestFatal = errors.New("iscsitcp: data digest error at error recovery level 0")

// finish handles the end of a PDU; tail is its padding and digest.
func (c *Conn) finish(tail []byte) error {
	r := &c.rx
	r.r += len(tail)
	r.phase, r.need = rxHeader, iscsi.BHSLen
	if r.toss {
		r.toss = false
		return nil
	}
	good := true
	if r.dd && len(tail) > 0 && r.direct {
		good = c.checkData(tail)
	}
	clear(r.scratch)
	switch r.bhs.Opcode() {
	case iscsi.OpDataIn:
		return c.dataInDone(good)
	case iscsi.OpR2T:
		return c.r2tIn()
	case iscsi.OpDataOut:
		if r.in == nil {
			return c.dataOutDone(good)
		}
	}
	p := &r.in.pdu
	if !good {
		p.Bad = errDataDigest
	}
	in := r.in
	r.in = nil
	if !good {
		c.stats.damaged.Add(1)
	} else if c.keep != nil && r.bhs.Opcode() == iscsi.OpSNACK {
		return c.snack(in)
	}
	return c.notify(in)
}

// checkData compares the data digest. Data whose owner has gone, or whose memory
// faults, counts as good: nobody is told about it.
func (c *Conn) checkData(tail []byte) bool {
	r := &c.rx
	c.beginPlacing()
	defer c.endPlacing()
	if !r.direct {
		return true
	}
	r.scratch = r.whole.appendTo(r.scratch[:0])
	crc, ok := crcOf(0, r.scratch)
	if !ok {
		c.fault()
		return true
	}
	n := len(tail) - iscsi.DigestLen
	return crc32c.Update(crc, tail[:n]) == binary.LittleEndian.Uint32(tail[n:])
}

// notify hands a PDU up. During login the stream may be about to change its
// form, so that reading goes on only when the upper layer has answered.
func (c *Conn) notify(in *inPDU) error {
	p := &in.pdu
	op := p.BHS.Opcode()
	c.mu.Lock()
	pause := false
	switch {
	case c.st >= stateClosing:
		c.mu.Unlock()
		p.Release()
		return nil
	case op == iscsi.OpSCSIResponse:
		if k := c.tasks.find(p.BHS.ITT()); k != nil {
			if p.Bad != nil {
				// The response's data is lost and cannot be asked for again at this level.
				c.mu.Unlock()
				p.Release()
				return errDigestFatal
			}
			k.bufs.InLen = k.placed
			if k.fault {
				// The target's answer stands, but the data is not there.
				p.BHS.SCSIResponse().SetResponse(iscsi.ResponseTargetFailure)
			}
			c.releaseLocked(k)
		}
	case op == iscsi.OpLoginRequest || op == iscsi.OpLoginResponse && p.BHS.LoginResponse().NSG() == iscsi.StageFullFeature && p.BHS.Final():
		pause = c.st == stateLogin
		c.resumeRx = false
	}
	c.mu.Unlock()
	c.up.ControlNotify(p)
	if !pause {
		return nil
	}
	c.push(rxBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = true
	c.cond.Broadcast()
	for !c.resumeRx && c.st != stateDead && !c.detached {
		c.cond.Wait()
	}
	c.paused = false
	if c.detached {
		if c.rx.r != c.rx.w {
			return errors.New("iscsitcp: the peer sent more behind the last login PDU")
		}
		return errDetached
	}
	return nil
}

var errDetached = errors.New("iscsitcp: the stream was handed over")
