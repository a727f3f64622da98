package rdma

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/wire"
)

// How long the end of a connection may take.
const (
	termTimeout   = 500 * time.Millisecond // to get a Terminate out
	lingerTimeout = 500 * time.Millisecond // for the peer's FIN behind it
	finTimeout    = 3 * time.Second        // for the peer's FIN after a graceful close
)

func setPanicOnFault() bool { return debug.SetPanicOnFault(true) }

// termLocked remembers the Terminate to send; the first one counts.
func (qp *QP) termLocked(t *wire.Term) {
	if qp.term == nil && qp.err == nil {
		qp.term = t
	}
}

// remoteTermLocked completes the request that the peer's Terminate is about with
// the matching status: the oldest one that can have caused it.
func (qp *QP) remoteTermLocked(t *wire.Term) {
	st := StatusRemoteOp
	switch c := t.Cause; {
	case c.Layer() == wire.LayerRDMAP && c.EType() == wire.ETypeProtection,
		c.Layer() == wire.LayerDDP && c.EType() == wire.ETypeTagged:
		st = StatusRemoteAccess
	case c == wire.CauseTooLong, c == wire.CauseNoBuffer:
		st = StatusRemoteInvalid
	case c.Layer() == wire.LayerLLP:
		st = StatusFatal
	}
	var op wire.Opcode = 0xff
	if len(t.DDP) >= 2 {
		op = wire.Control(uint16(t.DDP[0])<<8 | uint16(t.DDP[1])).Op()
	}
	for i := qp.sqHead; i != qp.sqTail; i++ {
		e := &qp.sq[i&uint32(len(qp.sq)-1)]
		if e.done {
			continue
		}
		var fits bool
		switch op {
		case wire.Write:
			fits = e.op == OpWrite || e.op == OpWriteImm
		case wire.ReadRequest:
			fits = e.op == OpRead
		case wire.AtomicReq:
			fits = e.op == OpFetchAdd || e.op == OpCmpSwap
		case 0xff:
			fits = true
		default:
			fits = op.IsSend() && (e.op == OpSend || e.op == OpSendInv)
		}
		if fits {
			e.status = st
			return
		}
	}
}

// fail ends the connection for err; the first cause counts.
func (qp *QP) fail(err error) {
	qp.sqMu.Lock()
	qp.failLocked(err)
	qp.sqMu.Unlock()
}

// failLocked makes transmitter and receiver stop; the receive goroutine then does
// the teardown. Preconditions: qp.sqMu is held.
func (qp *QP) failLocked(err error) {
	if qp.dying.Load() || qp.conn == nil {
		return
	}
	qp.err = err
	qp.dieLocked()
}

// dieLocked makes everybody stop, those who wait in a handler included.
func (qp *QP) dieLocked() {
	qp.dying.Store(true)
	close(qp.failing)
	qp.conn.Interrupt()
}

// teardown ends the connection: it is the last thing the receive goroutine does.
// In order: stop the transmitter, send a Terminate if one is due, flush, close.
func (qp *QP) teardown(cause error) {
	qp.sqMu.Lock()
	if !qp.dying.Load() {
		if qp.state != StateClosing || !errors.Is(cause, io.EOF) {
			qp.err = cause
			if cause != io.EOF {
				qp.err = fmt.Errorf("rdma: receive: %w", cause)
			}
		}
		qp.dieLocked()
	}
	for qp.txBusy {
		qp.txIdle.Wait()
	}
	term := qp.term
	hook := func() {}
	if term != nil {
		hook = qp.setState(StateTerminate)
	}
	err := qp.err
	qp.sqMu.Unlock()
	hook()
	close(qp.txStop)

	var te *TerminateError
	if term != nil {
		qp.sendTerminate(term)
		qp.statMu.Lock()
		qp.stats.TerminatesOut++
		qp.statMu.Unlock()
	}
	if errors.As(err, &te) {
		if te.Remote {
			qp.statMu.Lock()
			qp.stats.TerminatesIn++
			qp.statMu.Unlock()
		}
		if f := qp.dev.cfg.Hooks.Terminate; f != nil {
			f(qp, te)
		}
	}
	qp.zcSettle()
	qp.flush()

	if !qp.finSent {
		_ = qp.conn.CloseWrite()
	}
	if term != nil || te != nil && te.Remote {
		qp.conn.Linger(lingerTimeout)
	}
	_ = qp.conn.Close()
	qp.sqMu.Lock()
	if qp.fin != nil {
		qp.fin.Stop()
	}
	qp.sqMu.Unlock()
	qp.releaseSinks()
	qp.sendCQ.dispatch()
	qp.recvCQ.dispatch()
	qp.event(EventDisconnected)
	close(qp.done)
}

// sendTerminate sends what is left of the round, so that the Terminate starts at
// an FPDU boundary, and then the Terminate. Preconditions: there is no transmitter
// any more.
func (qp *QP) sendTerminate(term *wire.Term) {
	t := &qp.tx
	if t.poison {
		return
	}
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	b := wire.AppendFPDU(nil, term.Append(h.Append(nil)), t.crc)
	left := append([]sockio.Vec(nil), t.iov...)
	var v sockio.Vec
	sockio.Set(&v, b)
	left = append(left, v)
	qp.conn.SetWriteDeadline(time.Now().Add(termTimeout))
	_ = qp.conn.WriteLoop(func(uintptr) bool {
		for len(left) > 0 {
			n, err := qp.conn.Writev(left[:min(len(left), sockio.MaxVec)], false)
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

// flush completes everything that is still queued, in order: send queue, then
// receive queue. Preconditions: nobody transmits or receives any more.
func (qp *QP) flush() {
	x := &qp.rx
	qp.flushWC()
	qp.sqMu.Lock()
	qp.tx.iov = nil
	clear(qp.tx.vec[:cap(qp.tx.vec)])
	for qp.orqHead != qp.orqTail {
		o := qp.oldestLocked()
		o.sink.Revoke()
		o.e = nil
		qp.orqHead++
	}
	qp.irqHead = qp.irqTail
	qp.heardLocked()
	for qp.sqHead != qp.sqTail {
		e := &qp.sq[qp.sqHead&uint32(len(qp.sq)-1)]
		st := e.status
		if st == StatusSuccess && !e.done {
			st = StatusFlushed
		}
		if e.flags&flagHidden == 0 && (st != StatusSuccess || e.signaled(qp.cfg.SignalAll)) {
			qp.sendCQ.add(&WC{ID: e.id, QP: qp, Status: st, Opcode: wcOf[e.op]})
		}
		e.release()
		qp.sqHead++
	}
	qp.sqNext = qp.sqHead
	if x.recv.active {
		st := x.recv.status
		if st == StatusSuccess {
			st = StatusFlushed
		}
		qp.recvCQ.add(&WC{ID: x.recv.buf.id, QP: qp, Status: st, Opcode: WCRecv})
		x.recv.active = false
	}
	qp.rq.end()
	if qp.cfg.SRQ == nil {
		for {
			if _, ok := qp.rq.take(&x.recv.buf); !ok {
				break
			}
			qp.recvCQ.add(&WC{ID: x.recv.buf.id, QP: qp, Status: StatusFlushed, Opcode: WCRecv})
		}
	}
	qp.ended = true
	qp.publishTxLocked()
	qp.publishRx()
	hook := qp.setState(StateError)
	qp.sqMu.Unlock()
	hook()
}

// releaseSinks gives the STags of the ORD slots back.
func (qp *QP) releaseSinks() {
	qp.sqMu.Lock()
	sinks := qp.sinks
	qp.sinks = nil
	qp.sqMu.Unlock()
	for _, s := range sinks {
		qp.dev.tab.Remove(s)
	}
}

// Disconnect closes the connection gracefully: what is queued is finished, then
// FIN is sent, and the peer's FIN is waited for, not for ever. New work is refused.
// Disconnect itself does not wait; see Done.
func (qp *QP) Disconnect() {
	qp.sqMu.Lock()
	if qp.state != StateRTS {
		qp.sqMu.Unlock()
		return
	}
	hook := qp.setState(StateClosing)
	if !qp.txBusy {
		qp.finLocked()
	}
	qp.sqMu.Unlock()
	hook()
}

// Abort ends the connection at once with err as its cause; nil means ErrClosed.
func (qp *QP) Abort(err error) {
	if err == nil {
		err = fmt.Errorf("%w: queue pair aborted", ErrClosed)
	}
	qp.fail(err)
}

// Close ends the connection, if there is one, waits until everything is flushed
// and the goroutines are gone, and frees the queue pair. It must not be called
// from a CQ handler or from OnEvent.
func (qp *QP) Close() error {
	if qp.closed.Swap(true) {
		<-qp.done
		return nil
	}
	qp.sqMu.Lock()
	connected := qp.conn != nil
	if !connected {
		qp.setState(StateError)
	}
	qp.sqMu.Unlock()
	if connected {
		qp.Abort(nil)
		qp.wg.Wait()
	} else {
		close(qp.done)
	}
	d := qp.dev
	d.retire(qp)
	qp.pd.use.Add(-1)
	qp.sendCQ.use.Add(-1)
	qp.recvCQ.use.Add(-1)
	if qp.cfg.SRQ != nil {
		qp.cfg.SRQ.use.Add(-1)
	}
	return nil
}

func (qp *QP) event(e Event) {
	if qp.cfg.OnEvent != nil {
		qp.cfg.OnEvent(qp, e)
	}
}
