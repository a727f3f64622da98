package iwarp

import (
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/rdma/internal/verbs"
)

// How long the end of a connection may take.
const (
	termTimeout   = 500 * time.Millisecond // to get a Terminate out
	lingerTimeout = 500 * time.Millisecond // for the peer's FIN behind it
	finTimeout    = 3 * time.Second        // for the peer's FIN after a graceful close
)

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
