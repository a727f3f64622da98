package roce

import (
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/verbs"
)

// endTimeout is how long the peer may take to answer the end of a connection.
const endTimeout = 3 * time.Second

// loop is the goroutine of a connection: what may take its time, or calls somebody back.
func (qp *QP) loop() {
	defer qp.wg.Done()
	for range qp.wake {
		qp.dispatch()
		if qp.step() {
			break
		}
	}
	qp.teardown()
}

// step does what is due of a connection's life; true when it is over.
func (qp *QP) step() bool {
	qp.Mu.Lock()
	if qp.Dying.Load() {
		qp.Mu.Unlock()
		return true
	}
	conn, due := qp.conn, qp.more || qp.owed != 0
	if (qp.heard || qp.rtu) && !qp.told {
		qp.told = true
		first := !qp.open
		qp.open, due = true, true
		qp.Mu.Unlock()
		conn.Heard()
		if first {
			qp.Owner().Event(verbs.EventEstablished)
		}
		qp.Mu.Lock()
	}
	if due && !qp.Dying.Load() {
		qp.settleLocked()
	}
	end := qp.drainedLocked()
	switch {
	case end && conn == nil: // there is nobody to tell
		qp.FailLocked(nil)
		end = false
	case end:
		qp.ending = true
		qp.closing = time.AfterFunc(endTimeout, func() {
			qp.Fail(fmt.Errorf("%w: the peer did not answer the end of the connection within %v", verbs.ErrTimeout, endTimeout))
		})
	}
	qp.Mu.Unlock()
	if end {
		_ = conn.Disconnect() // its hook says what came of it
	}
	return false
}

// drainedLocked says whether the handshake of a graceful end is to begin.
func (qp *QP) drainedLocked() bool {
	return qp.StateLocked() == verbs.StateClosing && !qp.ending && qp.SQ.Empty() && !qp.resp.Pending()
}

// failedLocked ends the connection if one of its machines has come to an end. What the
// peer is to be told by a packet has been sent, or will not be.
func (qp *QP) failedLocked() {
	if err := qp.resp.Err(); err != nil {
		var r *rc.Refused
		if errors.As(err, &r) {
			err = &Refused{Refused: r}
		}
		qp.FailLocked(err)
	}
	if err := qp.req.Err(); err != nil {
		qp.FailLocked(qp.cause(err))
	}
}

// ended is the manager's word that the connection is over.
func (qp *QP) ended(err error) {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	if !qp.Connected {
		return
	}
	qp.failedLocked() // what the peer said just before
	switch closing := qp.StateLocked() == verbs.StateClosing; {
	case closing && (err == nil || errors.Is(err, cm.ErrDisconnected)):
		err = nil
	case errors.Is(err, cm.ErrDisconnected):
		err = io.EOF
	}
	qp.FailLocked(err)
}

// teardown ends the connection: the last thing that the loop does. The peer is told, and
// not waited for; then everything is flushed.
func (qp *QP) teardown() {
	qp.port.Detach(qp.Num)
	qp.Mu.Lock()
	qp.timer.Stop()
	qp.req.Leave()
	qp.port.ways.leave(qp.peer)
	if qp.closing != nil {
		qp.closing.Stop()
	}
	conn, err := qp.conn, qp.Err
	qp.Mu.Unlock()
	if conn != nil {
		_ = conn.Disconnect() // the peer may have said so before us
		conn.Forget()
	}
	qp.Owner().Ended(err)

	qp.Mu.Lock()
	qp.resp.Flush()
	qp.publishLocked()
	qp.tellEndLocked()
	qp.FlushSendsLocked()
	var b verbs.RecvBuf
	qp.FlushRecvsLocked(&b)
	hook := qp.SetState(verbs.StateError)
	qp.Mu.Unlock()
	hook()
	qp.SendCQ.Dispatch()
	qp.RecvCQ.Dispatch()
	qp.Owner().Event(verbs.EventDisconnected)
	close(qp.Done)
}
