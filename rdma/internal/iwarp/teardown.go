package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// How long the end of a connection may take.
const (
	termTimeout   = 500 * time.Millisecond // to get a Terminate out
	lingerTimeout = 500 * time.Millisecond // for the peer's FIN behind it
	finTimeout    = 3 * time.Second        // for the peer's FIN after a graceful close
)

// termLocked remembers the Terminate to send; the first one counts.
func (qp *QP) termLocked(t *wire.Term) {
	if qp.term == nil && qp.Err == nil {
		qp.term = t
	}
}

// remoteTermLocked completes the request that the peer's Terminate is about with
// the matching status: the oldest one that can have caused it.
func (qp *QP) remoteTermLocked(t *wire.Term) {
	st := verbs.StatusRemoteOp
	switch c := t.Cause; {
	case c.Layer() == wire.LayerRDMAP && c.EType() == wire.ETypeProtection,
		c.Layer() == wire.LayerDDP && c.EType() == wire.ETypeTagged:
		st = verbs.StatusRemoteAccess
	case c == wire.CauseTooLong, c == wire.CauseNoBuffer:
		st = verbs.StatusRemoteInvalid
	case c.Layer() == wire.LayerLLP:
		st = verbs.StatusFatal
	}
	var op wire.Opcode = 0xff
	if len(t.DDP) >= 2 {
		op = wire.Control(uint16(t.DDP[0])<<8 | uint16(t.DDP[1])).Op()
	}
	for i := qp.SQ.Head; i != qp.SQ.Tail; i++ {
		e := qp.SQ.At(i)
		if e.Done {
			continue
		}
		var fits bool
		switch op {
		case wire.Write:
			fits = e.Op == verbs.OpWrite || e.Op == verbs.OpWriteImm
		case wire.ReadRequest:
			fits = e.Op == verbs.OpRead
		case wire.AtomicReq:
			fits = e.Op == verbs.OpFetchAdd || e.Op == verbs.OpCmpSwap
		case 0xff:
			fits = true
		default:
			fits = op.IsSend() && (e.Op == verbs.OpSend || e.Op == verbs.OpSendInv)
		}
		if fits {
			e.Status = st
			return
		}
	}
}

// lastMax is how much is read for the peer's last words.
const lastMax = 1 << 20

// lastWords is the Terminate among what the peer has sent before the socket took nothing any more;
// nil: there is none. A peer that does not take what is still on its way to it (siw) closes with a
// reset behind its Terminate, and the transmitter may meet that before the receiver has read why.
// What else there is is not delivered: the connection has failed.
func (x *receiver) lastWords() *wire.Term {
	in, qp := &x.in, x.qp
	qp.Mu.Lock()
	broken := qp.tx.broken
	qp.Mu.Unlock()
	if !broken || x.err != nil || in.cuts.i < in.cuts.n {
		return nil
	}
	b := append([]byte(nil), in.buf[in.r:in.w]...)
	for end := false; !end && len(b) < lastMax; {
		at := len(b)
		b = append(b, make([]byte, 16<<10)...)
		n, err := qp.conn.Read(b[at:])
		b, end = b[:at+max(n, 0)], n <= 0 || err != nil
	}
	for b = b[min(len(b), x.toNext()):]; len(b) >= wire.LenField+wire.UntaggedLen; {
		whole := wire.FPDULen(int(binary.BigEndian.Uint16(b)))
		if len(b) < whole || x.crcOn && wire.CRC(0, b[:whole-wire.CRCLen]) != wire.GetCRC(b[whole-wire.CRCLen:]) {
			return nil
		}
		ulpdu := b[wire.LenField:][:binary.BigEndian.Uint16(b)]
		var t wire.Term
		if len(ulpdu) > wire.UntaggedLen && wire.Control(binary.BigEndian.Uint16(ulpdu)).Op() == wire.Terminate && t.Parse(ulpdu[wire.UntaggedLen:]) == nil {
			return &t
		}
		b = b[whole:]
	}
	return nil
}

// Stop wakes up receiver and transmitter, which see qp.Dying; see verbs.Engine.
func (qp *QP) Stop() {
	qp.conn.Interrupt()
	qp.halt.goOnLocked()
}

// Drain sends FIN when everything has been sent; see verbs.Engine.
func (qp *QP) Drain() {
	if !qp.tx.busy {
		qp.tx.finLocked()
	}
	if !qp.tx.finSent { // a peer that neither takes nor answers anything would keep the connection for ever
		qp.tx.fin = qp.WatchDrainLocked(qp.movedLocked, func() bool { return qp.tx.finSent }, "the peer has taken and sent nothing")
	}
	qp.halt.goOnLocked() // somebody has to read the peer's FIN
}

// movedLocked counts the bytes that the connection has moved.
func (qp *QP) movedLocked() uint64 {
	qp.StatMu.Lock()
	defer qp.StatMu.Unlock()
	return qp.tx.sentOff + qp.Stats.WireIn
}

// Wait returns when both goroutines are gone.
func (qp *QP) Wait() { qp.wg.Wait() }

// teardown ends the connection: it is the last thing the receive goroutine does.
// In order: stop the transmitter, send a Terminate if one is due, flush, close; the other
// way round where the kernel sends from memory that flush gives back.
func (qp *QP) teardown(cause error) {
	last := qp.rx.lastWords()
	qp.Mu.Lock()
	if last != nil {
		qp.Err = qp.Owner().Cause(&Terminated{Remote: true, Cause: last.Cause})
		qp.remote = true
		qp.remoteTermLocked(last)
	}
	if !qp.Dying.Load() {
		if qp.StateLocked() != verbs.StateClosing || !errors.Is(cause, io.EOF) {
			qp.Err = cause
			if cause != io.EOF {
				qp.Err = fmt.Errorf("rdma: receive: %w", cause)
			}
		}
		qp.DieLocked()
	}
	for qp.tx.busy {
		qp.tx.idle.Wait()
	}
	term := qp.term
	hook := func() {}
	if term != nil {
		hook = qp.SetState(verbs.StateTerminate)
	}
	err, remote := qp.Err, qp.remote
	qp.Mu.Unlock()
	hook()
	close(qp.tx.stop)

	if term != nil {
		qp.sendTerminate(term)
	}
	qp.StatMu.Lock()
	if term != nil {
		qp.Stats.TerminatesOut++
	}
	if remote {
		qp.Stats.TerminatesIn++
	}
	qp.StatMu.Unlock()
	qp.Owner().Ended(err)
	if qp.zc.settle() {
		qp.flush()
		qp.part(term != nil || remote, errors.Is(err, io.EOF))
	} else {
		qp.cut()
		qp.flush()
	}
	qp.Mu.Lock()
	if qp.tx.fin != nil {
		qp.tx.fin.Stop()
	}
	qp.Mu.Unlock()
	qp.reads.releaseSinks()
	qp.SendCQ.Dispatch()
	qp.RecvCQ.Dispatch()
	qp.Owner().Event(verbs.EventDisconnected)
	close(qp.Done)
}

// part closes the connection, after the peer has done so where it was told why; first says that it was
// the first to close it.
func (qp *QP) part(told, first bool) {
	abort := qp.abortive && !qp.tx.finSent && !first
	if !qp.tx.finSent && (told || !abort) {
		_ = qp.conn.CloseWrite()
	}
	if told {
		qp.conn.Linger(lingerTimeout)
	}
	if abort {
		qp.conn.Reset()
	}
	_ = qp.conn.Close()
}

// cut ends the connection by a reset, so that nothing of what it has sent by reference is read
// any more.
func (qp *QP) cut() {
	qp.Mu.Lock()
	qp.tx.finSent = true // by nobody: the descriptor is about to be another one's
	qp.Mu.Unlock()
	qp.conn.Reset()
	_ = qp.conn.Close()
}

// sendTerminate sends what is left of the round, so that the Terminate starts at
// an FPDU boundary, and then the Terminate. Preconditions: there is no transmitter
// any more.
func (qp *QP) sendTerminate(term *wire.Term) {
	t := &qp.tx
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	b := wire.AppendFPDU(nil, term.Append(h.Append(nil)), t.form.crc)
	left := append([]sockio.Vec(nil), t.round.iov...)
	var v sockio.Vec
	sockio.Set(&v, b)
	left = append(left, v)
	qp.conn.SetWriteDeadline(time.Now().Add(termTimeout))
	_ = qp.conn.WriteLoop(func(uintptr) bool {
		for len(left) > 0 {
			n, err := t.writeLast(left)
			if err == sockio.ErrAgain {
				return false
			}
			if err != nil {
				return true
			}
			left = sockio.Skip(left, n)
		}
		return true
	})
}

// writeLast sends from left, which begins with the rest of the round. While it waits for room
// the memory of Read Responses may be revoked, and then be in use for something else: whoever
// does that finds io held for as long as the memory is read.
func (t *transmitter) writeLast(left []sockio.Vec) (n int, err error) {
	t.io.Lock()
	defer t.io.Unlock()
	if t.round.poison {
		return 0, errPoison
	}
	if n, err = t.qp.conn.Writev(left[:min(len(left), sockio.MaxVec)], false); n > 0 {
		t.round.passed(n)
	}
	return n, err
}

// flush completes everything that is still queued, in order: send queue, then
// receive queue. Preconditions: nobody transmits or receives any more.
func (qp *QP) flush() {
	x := &qp.rx
	x.flushWC()
	qp.tx.round.iov = nil
	qp.tx.round.rest(&qp.zc)
	x.in.drop()
	qp.Mu.Lock()
	qp.reads.dropLocked()
	qp.asked.dropLocked()
	qp.start.heardLocked()
	qp.FlushSendsLocked()
	qp.SQ.Rest()
	if x.recv.active {
		st := x.recv.status
		if st == verbs.StatusSuccess {
			st = verbs.StatusFlushed
		}
		qp.RecvCQ.Add(&verbs.WC{ID: x.recv.buf.ID, QP: qp.QP, Status: st, Opcode: verbs.WCRecv})
		x.recv.active = false
	}
	qp.FlushRecvsLocked(&x.recv.buf)
	qp.tx.publishLocked()
	x.publish()
	hook := qp.SetState(verbs.StateError)
	qp.Mu.Unlock()
	hook()
}
