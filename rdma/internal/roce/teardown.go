package roce

import (
	"errors"

	"softiser/rdma/internal/roce/rc"
)

// Drain is that of base, within bounds: a peer without a receive buffer may say so for ever. See
// verbs.Engine.
func (qp *QP) Drain() {
	if !qp.SQ.Empty() {
		qp.closing = qp.WatchDrainLocked(qp.req.Answered, func() bool { return qp.ending }, "the peer has answered nothing")
	}
	qp.kick()
}

// drainedLocked says whether the handshake of a graceful end is to begin.
func (qp *QP) drainedLocked() bool {
	return qp.emptyLocked() && !qp.resp.Pending()
}

// dueLocked says whether the pump is to go on.
func (qp *QP) dueLocked() bool { return qp.more || qp.ackDelayed != 0 }

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

// teardown ends the connection: the last thing that the loop does. The peer is told, and
// not waited for; then everything is flushed.
func (qp *QP) teardown() {
	qp.port.Detach(qp.Num)
	qp.Mu.Lock()
	qp.timer.Stop()
	qp.req.Leave()
	qp.port.paths.leave(qp.peer)
	qp.stopClosingLocked()
	qp.Mu.Unlock()
	qp.announceEnd()

	qp.Mu.Lock()
	qp.resp.Flush()
	qp.publishLocked()
	qp.reportEndLocked()
	qp.flushUnlock()
}
