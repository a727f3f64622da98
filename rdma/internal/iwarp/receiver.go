package iwarp

import (
	"io"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
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
	rxBuf     = 64 << 10  // read-ahead
	rxDeep    = 160 << 10 // and where one call has brought all the payloads that were guessed for want of room
	directMin = 4 << 10   // payload bytes still in the socket from which readv goes to the destination
	gapMax    = 1 << 10   // longest learned gap between two payloads
	heldLeast = 64 << 10  // received by calls of one payload each before what has ended with them is told
	heldMost  = 128 << 10 // and where much is on its way
	lentLong  = 16 << 10  // average length from which a payload is worth a call
	wcBatch   = 32
	rxVec     = 128 // pieces of one readv
)

// receiver belongs to the receive goroutine: the machine over the FPDUs, and what they
// mean. How the bytes come in is the intake's.
type receiver struct {
	qp *QP
	in intake

	err error // why the loop has ended

	crcOn bool
	fpdu  // the one in progress

	msn     [4]uint32   // expected next, by queue number
	written *mem.Region // of the last Write that consumeWhole took: the next Send may invalidate it
	begun   bool        // an FPDU has been received
	extWait bool        // responder: the announcement of the peer may be among the first FPDUs
	recv    rxRecv      // Send in progress
	rtrSend bool        // the FPDU is a Send as ready-to-receive message
	rlen    uint32      // bytes of the Read Response in progress
	term    rxTerm      // Terminate in progress

	nwc    int  // completions in the room
	held   int  // bytes received since the last flush
	holds  int  // so many at most
	wakeTx bool // the transmitter may have something to do
	lone   sockio.Lone
	early  sockio.Early // of what a read brings
	stats  rxStats
}

// init makes the receiver of a connection.
func (x *receiver) init(crc bool) {
	x.crcOn = crc
	x.msn = [4]uint32{1, 1, 1, 1}
}

// loop is the receive goroutine.
func (x *receiver) loop() {
	qp := x.qp
	defer qp.wg.Done()
	poll := func(fd uintptr) bool {
		over := qp.wait.Ready(fd)
		if x.stats.PollCalls != qp.wait.Calls {
			x.stats.PollCalls, x.stats.Polled = qp.wait.Calls, qp.wait.Found
			x.publish()
		}
		return over
	}
	err := x.read(poll)
	for x.stood(err) {
		x.err = nil
		err = x.read(poll)
	}
	qp.teardown(err)
}

// read reads until there is a reason to end it, or a wish to park, which it returns.
func (x *receiver) read(poll func(uintptr) bool) error {
	qp := x.qp
	err := qp.conn.ReadLoop(poll)
	for sockio.IsNotPollable(err) && x.err == nil && !qp.Dying.Load() {
		// The kernel's notice about sent memory (MSG_ZEROCOPY) came as an error event, after which
		// the poller refuses to wait until there is another event.
		if err = nil; poll(0) {
			break
		}
		time.Sleep(sockio.Pause)
		err = qp.conn.ReadLoop(poll)
	}
	if x.err != nil {
		return x.err
	}
	return err
}

// Between implements sockio.Receiver.
func (x *receiver) Between() bool { return x.stage == rxHeader && x.in.r == x.in.w }

// Within implements sockio.Receiver.
func (x *receiver) Within() bool { return !x.Between() || x.begun && !x.ctrl.Last() }

// Ready implements sockio.Receiver: it reads and handles until the socket is empty
// (false), its turn is over (false), or the connection has ended (true).
//
// A call that finds the socket empty is one of three at depth 1. It is left out where
// messages come one by one and the read itself has said that nothing is left (ADR 77).
// Where they come in batches the next ones may well arrive while these are handled,
// and looking once more is cheaper than waiting.
func (x *receiver) Ready() bool {
	qp := x.qp
	lone := x.lone.Proved()
	qp.conn.Ask(lone)
	before := x.stats.answers()
	x.early.Waited()
	for {
		if qp.Dying.Load() {
			x.flush()
			return true
		}
		n, err := x.in.read()
		if x.held > 0 && n <= 0 {
			x.flush()
			if err == sockio.ErrAgain {
				continue // that has taken its time
			}
		}
		if err == sockio.ErrAgain {
			x.lone.Brought(x.stats.answers() - before)
			x.idle()
			x.in.rest()
			return false
		}
		if err == nil && n == 0 {
			x.err = qp.conn.End()
			if x.err == io.EOF && !x.Between() {
				x.err = io.ErrUnexpectedEOF
			}
			return true
		}
		if err != nil {
			if err == sockio.ErrFault && x.in.cuts.aimed > 0 {
				x.in.cuts.off = true // go on with one piece per call, to find the one that failed
				continue
			}
			if err == sockio.ErrFault && x.left > 0 {
				x.placeFault()
				continue
			}
			x.err = err
			return true
		}
		err = x.consume()
		if err == nil && x.in.more && x.hold(n) {
			continue
		}
		x.flush()
		x.early = sockio.Early{}
		if err != nil {
			x.err = err
			return true
		}
		if lone && qp.conn.Drained() && x.Between() && x.stats.answers() == before+1 {
			x.idle()
			x.in.rest()
			qp.conn.Waits()
			return false
		}
		if qp.wait.Enough() {
			x.idle()
			x.in.rest()
			return false
		}
	}
}

// hold enters that n bytes have been received, behind which more are likely to lie in the socket, and reports
// whether the next ones may be received before the batch is ended. Long payloads come one by a call; if each were a batch
// of its own, its answer would leave by a call of its own, which costs as much as receiving it, and the peer would
// send one by one as well. A quarter of what is on its way is held, so that the peer has something to do
// meanwhile (ADR 216, 222).
func (x *receiver) hold(n int) bool {
	if x.held == 0 {
		_, _, bytes := x.qp.lent.lent()
		x.holds = int(min(max(bytes/4, heldLeast), heldMost))
	}
	x.held += n
	return x.held < x.holds
}

// stops reports whether the receiver, where it stands, is to stop. What has come is
// delivered before that is asked.
func (x *receiver) stops() bool {
	qp := x.qp
	if k := &x.in.cuts; !x.begun || x.recv.active || x.rlen > 0 || k.i < k.n {
		return false
	}
	x.flush()
	p := qp.halt.wish.Load()
	if p == nil || !p.may() {
		return false
	}
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	return qp.heldUpLocked(p)
}

// stood is called when reading has ended with err. If that was for Park, the receiver waits
// here as long as it is to stand, and the result is true: it is to read on.
func (x *receiver) stood(err error) bool {
	qp := x.qp
	qp.Mu.Lock()
	if err != errParked && !sockio.IsTimeout(err) || qp.Dying.Load() {
		qp.Mu.Unlock()
		return false
	}
	qp.conn.SetReadDeadline(time.Time{}) // before it is asked, so that a Nudge from now on is not lost
	qp.Mu.Unlock()
	if x.stage == rxHeader && x.stops() {
		x.in.rest()
		qp.Mu.Lock()
		for p := qp.halt.wish.Load(); p != nil && qp.heldUpLocked(p); {
			p.stands = true
			p.changed()
			qp.halt.moved.Wait()
			p.stands = false
		}
		qp.Mu.Unlock()
	}
	qp.Mu.Lock()
	over := qp.halt.over
	qp.halt.over = nil
	qp.Mu.Unlock()
	if over != nil {
		over()
	}
	x.in.again()
	x.lone = 0 // what the last read has left is not known any more
	return true
}

// idle is called when the socket is empty.
func (x *receiver) idle() {
	qp := x.qp
	x.publish()
	if qp.zc.used {
		qp.zc.drain()
	}
}

// consume runs the machine over the bytes in the buffer.
func (x *receiver) consume() error {
	begin := x.in.r
	for {
		k := &x.in.cuts
		have := x.in.buf[x.in.r:x.in.w]
		if k.i < k.n {
			have = x.in.buf[x.in.r:k.all[k.i].pos]
		}
		switch x.stage {
		case rxHeader:
			if x.qp.halt.wish.Load() != nil && x.stops() {
				return errParked
			}
			if x.early.Over(x.nwc, x.in.r-begin, x.in.w-begin) {
				x.flush()
			}
			if k.i < k.n && k.all[k.i].whole != nil && len(have) == wire.LenField+wire.TaggedLen {
				x.consumeWhole(have)
				continue
			}
			n, ok := x.parse(have)
			if !ok {
				return nil
			}
			x.in.r += n
			x.stage = rxPayload
			if x.paylen >= directMin {
				x.in.pattern.measure()
			}
		case rxPayload:
			if k.i < k.n && len(have) == 0 && x.left > 0 {
				x.in.consumeCut()
			} else if n := min(x.left, len(have)); n > 0 {
				x.place(have[:n])
				x.in.r += n
			}
			if x.left > 0 {
				return nil
			}
			if x.paylen >= directMin {
				x.in.learn()
			}
			x.stage = rxTrailer
		case rxTrailer:
			n := x.trailerLen()
			if len(have) < n {
				return nil
			}
			x.in.r += n
			x.in.pattern.since += n
			if err := x.trailer(have[:n]); err != nil {
				return err
			}
			x.stage = rxHeader
		}
	}
}

// parse starts the FPDU at the front of b. It returns the length of its header,
// or false when that is not there yet.
func (x *receiver) parse(b []byte) (int, bool) {
	f := &x.fpdu
	hl := f.parse(b)
	if hl == 0 {
		return 0, false
	}
	f.crcOver = !x.crcOn
	whole := wire.FPDULen(f.ulen)
	switch end := whole - wire.CRCLen; {
	case !x.crcOn:
		x.begin()
	case len(b) < whole:
		f.crc = wire.CRC(0, b[:hl])
		x.begin()
	default:
		// All of it is here: nothing is looked at before the CRC is known to be good,
		// and then it need not be computed again on the way.
		f.crcOver = true
		if wire.CRC(0, b[:end]) != wire.GetCRC(b[end:whole]) {
			x.fail(wire.CauseCRC, "")
		} else {
			x.begin()
		}
	}
	x.in.pattern.since += hl
	return hl, true
}

// consumeWhole takes an FPDU, up to its trailer, that is in place already and has been checked
// by verify while its window was held: what parse, begin and consumeCut do, without the
// look-up. hdr is its header.
func (x *receiver) consumeWhole(hdr []byte) {
	in := &x.in
	c := &in.cuts.all[in.cuts.i]
	in.cuts.i++
	x.placed(hdr, c.n, c.crc)
	x.crcOver = !x.crcOn
	x.stats.Direct += uint64(c.n)
	x.written, c.whole = c.whole, nil
	in.r += len(hdr)
	in.pattern.since += len(hdr)
	if c.n >= directMin {
		in.pattern.measure()
		in.learn()
	}
}

// trailer handles the trailer: CRC, pending errors, then what the segment means.
func (x *receiver) trailer(trailer []byte) error {
	qp := x.qp
	f := &x.fpdu
	x.stats.FPDUs++
	if pad := len(trailer) - wire.CRCLen; !f.crcOver {
		if pad > 0 {
			f.crc = wire.CRC(f.crc, trailer[:pad])
		}
		if f.crc != wire.GetCRC(trailer[pad:]) {
			f.pend, f.detail = wire.CauseCRC, ""
		}
	}
	if f.pend != causeNone {
		if f.pend == wire.CauseTooLong {
			x.recv.status = verbs.StatusLocalLength
		}
		return x.terminate(f.pend, f.detail)
	}
	if !x.begun {
		x.firstFPDU()
		if f.pend != causeNone {
			return x.terminate(f.pend, f.detail)
		}
	}
	if x.extWait || f.announce {
		qp.start.extHeard()
	}
	return x.done()
}

// terminate prepares the Terminate for a failed check and returns the error that
// ends the receive loop.
func (x *receiver) terminate(c wire.Cause, detail string) error {
	qp := x.qp
	t := &wire.Term{Cause: c}
	if c.Layer() != wire.LayerLLP && c != wire.CauseLocal && c != wire.CauseDDPLocal {
		x.refuse(t)
	}
	err := &Terminated{Cause: c, Detail: detail}
	qp.Mu.Lock()
	qp.termLocked(t)
	qp.FailLocked(err)
	qp.Mu.Unlock()
	return err
}

// flush ends a batch: completions become visible, the transmitter is started if
// what has come allows it, handlers run.
func (x *receiver) flush() {
	qp := x.qp
	x.held = 0
	if x.nwc == 0 && !x.wakeTx {
		return
	}
	x.flushWC()
	qp.inRx.Store(true)
	if x.wakeTx {
		x.wakeTx = false
		qp.tx.push()
	}
	qp.RecvCQ.Dispatch()
	if qp.SendCQ != qp.RecvCQ {
		qp.SendCQ.Dispatch()
	}
	qp.inRx.Store(false)
}

// flushWC moves collected receive completions to the completion queue. The
// counters are brought up to date first, so that they agree with what completes.
func (x *receiver) flushWC() {
	qp := x.qp
	x.publish()
	if x.nwc == 0 {
		return
	}
	wcs := x.in.room.wcs[:x.nwc]
	ok := qp.RecvCQ.AddAll(wcs)
	clear(wcs)
	x.nwc = 0
	if !ok {
		qp.Fail(verbs.ErrOverflow)
	}
}
