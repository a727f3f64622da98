package iwarp

import (
	"encoding/binary"
	"io"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Receiving. One goroutine per queue pair owns the stream. It parses FPDUs from a
// read-ahead buffer with a machine that can stop at any byte:
//
//	      +--> header --> payload --> trailer --+
//	      |    lookup     placed      CRC, then |
//	      |    checks     as it comes completion|
//	      +-------------------------------------+
//
// Long payloads are put straight to their place by readv, and what lies between
// them into the buffer, in the same call; see rx_cut.go. Short payload comes with
// the buffer and is copied.
//
// A check that fails in the header is raised only after the trailer, so that a
// damaged header is reported as what it is, a bad CRC; until then the payload is
// dropped. Whole FPDUs in the buffer have their CRC checked before anything is
// placed (RFC 5044 §6); longer ones touch only memory that was lent for them, and
// are completed only after the check.

const (
	rxBuf     = 64 << 10 // read-ahead
	directMin = 4 << 10  // payload bytes still in the socket from which readv goes to the destination
	gapMax    = 1 << 10  // longest learned gap between two payloads
	lentLong  = 16 << 10 // average length from which a payload is worth a call
	wcBatch   = 32
	rxVec     = 64 // pieces of one readv
	loneProof = 4
)

type rxStage uint8

const (
	rxHeader rxStage = iota
	rxPayload
	rxTrailer
)

// rxState belongs to the receive goroutine.
type rxState struct {
	buf  []byte
	r, w int
	vec  []sockio.Vec
	err  error // why the loop has ended

	stage  rxStage
	crcOn  bool
	crc    uint32
	crcBad bool // memory fault while computing: cannot be checked

	// The FPDU in progress.
	hdr    [wire.MaxHdr]byte // copy of its header, length field included
	hlen   int
	ctrl   wire.Control
	op     wire.Opcode
	tag    wire.Tagged
	unt    wire.Untagged
	ulen   int
	paylen int
	left   int // payload bytes not placed yet
	dst    rxDest
	pend   wire.Cause // check that failed, raised after the trailer
	detail string

	msn      [4]uint32 // expected next, by queue number
	any      bool      // an FPDU has been received
	extWait  bool      // responder: the announcement of the peer may be among the first FPDUs
	recv     rxRecv    // Send in progress
	announce bool      // the FPDU is an announcement, see ext.go
	rtrSend  bool      // the FPDU is a Send as ready-to-receive message
	rlen     uint32    // bytes of the Read Response in progress
	term     [wire.MaxTermLen]byte
	nterm    int

	cuts   rxCuts
	pat    rxPattern
	short  bool // the peer's FPDUs are too short for direct placement
	expect int  // > 0: a direct payload is likely to be next

	wcs   [wcBatch]verbs.WC
	nwc   int
	kick  bool // the transmitter may have something to do
	lone  int  // wake-ups in a row that brought one message each, up to loneProof
	stats rxStats
	scrap []byte // where dropped payload goes
}

// rxLoop is the receive goroutine.
func (qp *QP) rxLoop() {
	defer qp.wg.Done()
	poll := qp.rxPoll
	switch d := qp.busyPoll; {
	case d > 0:
		poll = func(fd uintptr) bool { return qp.rxBusyPoll(fd, d) }
	case d == BusyPollAuto:
		poll = qp.rxAutoPoll
	}
	err := qp.conn.ReadLoop(poll)
	for sockio.IsNotPollable(err) && qp.rx.err == nil && !qp.Dying.Load() {
		// A notice on a full socket came as an error event alone, and the poller
		// refuses to wait until another event has come.
		if err = nil; poll(0) {
			break
		}
		time.Sleep(sockio.Pause)
		err = qp.conn.ReadLoop(poll)
	}
	if qp.rx.err != nil {
		err = qp.rx.err
	}
	qp.teardown(err)
}

// rxPoll reads and handles until the socket is empty (false) or the connection
// has ended (true).
//
// A call that finds the socket empty is one of three at depth 1. It is left out where
// messages come one by one and the read itself has said that nothing is left (ADR 77).
// Where they come in batches the next ones may well arrive while these are handled,
// and looking once more is cheaper than waiting.
func (qp *QP) rxPoll(uintptr) bool {
	x := &qp.rx
	lone := x.lone == loneProof
	qp.conn.Ask(lone)
	before := x.stats.answers()
	for {
		if qp.Dying.Load() {
			return true
		}
		n, err := qp.rxRead()
		if err == sockio.ErrAgain {
			x.alone(x.stats.answers() - before)
			qp.rxIdle()
			return false
		}
		if err == nil && n == 0 {
			x.err = io.EOF
			if x.stage != rxHeader || x.r != x.w {
				x.err = io.ErrUnexpectedEOF
			}
			return true
		}
		if err != nil {
			if err == sockio.ErrFault && x.cuts.aimed > 0 {
				x.cuts.off = true // which piece it was is found out one by one
				continue
			}
			if err == sockio.ErrFault && x.left > 0 {
				qp.placeFault()
				continue
			}
			x.err = err
			return true
		}
		err = qp.rxConsume()
		qp.rxFlush()
		if err != nil {
			x.err = err
			return true
		}
		if lone && qp.conn.Drained() && x.stage == rxHeader && x.r == x.w && x.stats.answers() == before+1 {
			qp.rxIdle()
			qp.conn.Waits()
			return false
		}
	}
}

// rxIdle is called when the socket is empty.
func (qp *QP) rxIdle() {
	qp.publishRx()
	if qp.zc.mode != ZerocopyOff {
		qp.zcDrain()
	}
}

// alone enters that a wake-up has brought n messages.
func (x *rxState) alone(n uint64) {
	switch {
	case n > 1:
		x.lone = 0
	case n == 1 && x.lone < loneProof:
		x.lone++
	}
}

// rxRead reads: straight into the destination when much payload is still to come,
// and into the next ones when they are known, else into the buffer.
func (qp *QP) rxRead() (int, error) {
	n, err := qp.rxCall()
	qp.rx.stats.Bytes += uint64(max(n, 0))
	return n, err
}

func (qp *QP) rxCall() (int, error) {
	x := &qp.rx
	x.stats.RecvCalls++
	x.vec = x.vec[:0]
	x.cuts.aimed, x.cuts.n, x.cuts.i = 0, 0, 0
	x.r, x.w = 0, copy(x.buf, x.buf[x.r:x.w]) // part of a header or of a trailer
	if x.w == 0 && x.stage == rxPayload && x.paylen >= directMin && x.left > 0 {
		if look := qp.peekPast(); look > 0 {
			return qp.peek(look)
		}
		return qp.rxDirect()
	}
	if !x.busy() && qp.guess(x.lead()) {
		n, err := qp.conn.Readv(x.vec, true)
		clear(x.vec)
		if e := qp.settle(n); e != nil {
			err = e
		}
		return n, err
	}
	limit := len(x.buf) - x.w
	switch look := qp.peekLen(); {
	case x.cuts.off:
		x.cuts.off = false
		limit = x.want()
	case look > 0:
		return qp.peek(look)
	}
	n, err := qp.conn.Read(x.buf[x.w : x.w+limit])
	x.w += max(n, 0)
	return n, err
}

// want is how much to read so that no long payload comes along: to the next
// header, or to the end of a short FPDU and the header behind it.
func (x *rxState) want() int {
	const next = wire.LenField + wire.TaggedLen
	have := x.w - x.r
	if x.stage != rxHeader {
		return x.left + wire.Pad(x.ulen) + wire.CRCLen + next - have
	}
	if have < 4 {
		return next - have
	}
	ulen := int(binary.BigEndian.Uint16(x.buf[x.r:]))
	hl := wire.LenField + wire.Ops[wire.Control(binary.BigEndian.Uint16(x.buf[x.r+2:])).Op()].Hdr
	if ulen+wire.LenField-hl >= directMin {
		return hl - have
	}
	return wire.FPDULen(ulen) + next - have
}

// rxConsume runs the machine over the bytes in the buffer.
func (qp *QP) rxConsume() error {
	x := &qp.rx
	for {
		k := &x.cuts
		have := x.buf[x.r:x.w]
		if k.i < k.n {
			have = x.buf[x.r:k.all[k.i].pos]
		}
		switch x.stage {
		case rxHeader:
			n, ok := qp.rxParse(have)
			if !ok {
				return nil
			}
			x.r += n
			x.stage = rxPayload
			if x.paylen >= directMin {
				x.pat.measure()
			}
		case rxPayload:
			if k.i < k.n && len(have) == 0 && x.left > 0 {
				qp.consumeCut()
			} else if n := min(x.left, len(have)); n > 0 {
				qp.rxCopy(have[:n])
				x.r += n
			}
			if x.left > 0 {
				return nil
			}
			if x.paylen >= directMin {
				x.learn()
			}
			x.stage = rxTrailer
		case rxTrailer:
			n := wire.Pad(x.ulen) + wire.CRCLen
			if len(have) < n {
				return nil
			}
			x.r += n
			x.pat.since += n
			if err := qp.rxEnd(have[:n]); err != nil {
				return err
			}
			x.stage = rxHeader
		}
	}
}

// rxParse starts the FPDU at the front of b. It returns the length of its header,
// or false when that is not there yet.
func (qp *QP) rxParse(b []byte) (int, bool) {
	x := &qp.rx
	if len(b) < wire.LenField {
		return 0, false
	}
	x.ulen = int(binary.BigEndian.Uint16(b))
	hl := wire.LenField
	if x.ulen >= 2 {
		if len(b) < 4 {
			return 0, false
		}
		x.ctrl = wire.Control(binary.BigEndian.Uint16(b[2:]))
		hl += wire.Ops[x.ctrl.Op()].Hdr
	}
	hl = min(hl, wire.LenField+x.ulen)
	if len(b) < hl {
		return 0, false
	}
	x.hlen = copy(x.hdr[:], b[:hl])
	x.paylen = x.ulen + wire.LenField - hl
	x.left = x.paylen
	x.pend, x.detail = causeNone, ""
	x.crcBad = false
	x.dst = rxDest{}
	x.announce = false
	if x.crcOn {
		x.crc = wire.CRC(0, b[:hl])
	}
	whole := wire.FPDULen(x.ulen)
	if x.crcOn && len(b) >= whole {
		// All of it is here: nothing is looked at before the CRC is known to be good.
		if wire.CRC(x.crc, b[hl:whole-wire.CRCLen]) != wire.GetCRC(b[whole-wire.CRCLen:whole]) {
			x.fail(wire.CauseCRC, "")
		} else {
			qp.rxBegin()
		}
	} else {
		qp.rxBegin()
	}
	x.pat.since += hl
	return hl, true
}

// fail notes a failed check; the first one counts.
func (x *rxState) fail(c wire.Cause, detail string) {
	if x.pend == causeNone {
		x.pend, x.detail = c, detail
	}
	x.dst = rxDest{kind: destScrap}
}

// rxEnd handles the trailer: CRC, pending errors, then what the segment means.
func (qp *QP) rxEnd(trailer []byte) error {
	x := &qp.rx
	pad := len(trailer) - wire.CRCLen
	x.stats.FPDUs++
	if x.crcOn && !x.crcBad {
		x.crc = wire.CRC(x.crc, trailer[:pad])
		if x.crc != wire.GetCRC(trailer[pad:]) {
			x.pend, x.detail = wire.CauseCRC, ""
		}
	}
	if x.pend != causeNone {
		if x.pend == wire.CauseTooLong {
			x.recv.status = verbs.StatusLocalLength
		}
		return qp.rxTerminate(x.pend, x.detail)
	}
	if !x.any {
		qp.firstFPDU()
		if x.pend != causeNone {
			return qp.rxTerminate(x.pend, x.detail)
		}
	}
	if x.extWait || x.announce {
		qp.extHeard()
	}
	return qp.rxDone()
}

// rxTerminate prepares the Terminate for a failed check and returns the error that
// ends the receive loop.
func (qp *QP) rxTerminate(c wire.Cause, detail string) error {
	x := &qp.rx
	t := &wire.Term{Cause: c}
	local := c == wire.CauseLocal || c == wire.CauseDDPLocal
	if c.Layer() != wire.LayerLLP && !local && x.hlen >= wire.LenField+wire.TaggedLen {
		// M and D: the DDP header that was refused; R: with its Read Request.
		t.HasLen, t.SegLen = true, uint16(x.ulen)
		n := wire.UntaggedLen
		if x.ctrl.Tagged() {
			n = wire.TaggedLen
		}
		if x.hlen >= wire.LenField+n {
			t.DDP = append([]byte(nil), x.hdr[wire.LenField:wire.LenField+n]...)
			if x.op == wire.ReadRequest && c.Layer() == wire.LayerRDMAP && x.hlen >= wire.LenField+n+wire.ReadReqLen {
				t.RDMAP = append([]byte(nil), x.hdr[wire.LenField+n:wire.LenField+n+wire.ReadReqLen]...)
			}
		}
	}
	err := &Terminated{Cause: c, Detail: detail}
	qp.Mu.Lock()
	qp.termLocked(t)
	qp.FailLocked(err)
	qp.Mu.Unlock()
	return err
}

// rxFlush ends a batch: completions become visible, the transmitter is started if
// what has come allows it, handlers run.
func (qp *QP) rxFlush() {
	x := &qp.rx
	if x.nwc == 0 && !x.kick {
		return
	}
	qp.flushWC()
	qp.inRx.Store(true)
	if x.kick {
		x.kick = false
		qp.Push()
	}
	qp.RecvCQ.Dispatch()
	if qp.SendCQ != qp.RecvCQ {
		qp.SendCQ.Dispatch()
	}
	qp.inRx.Store(false)
}

// flushWC moves collected receive completions to the completion queue. The
// counters are brought up to date first, so that they agree with what completes.
func (qp *QP) flushWC() {
	x := &qp.rx
	qp.publishRx()
	if x.nwc == 0 {
		return
	}
	ok := qp.RecvCQ.AddAll(x.wcs[:x.nwc])
	clear(x.wcs[:x.nwc])
	x.nwc = 0
	if !ok {
		qp.Fail(verbs.ErrOverflow)
	}
}
