package iwarp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"softiser/internal/resident"
	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Transmitting. Whoever pushes work onto an idle queue pair becomes its
// transmitter (busy): normally the poster itself, so that a request leaves in
// the system call of the goroutine that made it. The transmitter works in rounds:
//
//	build   FPDUs of as many messages as fit a round: headers, pads and CRCs in
//	        round.hdr, payload by reference, all named by round.iov
//	send    one non-blocking sendmsg; what the kernel did not take stays in round.iov
//	sweep   complete what has been taken as a whole
//
// until there is nothing to do. When the socket is full, or when a receive
// goroutine has sent its bounded share, the role goes to the transmit goroutine
// of the queue pair, which waits in the poller.
const (
	rxPushBytes = 512 << 10 // what a Push inside the receive goroutine may send itself
	pushBytes   = 8 << 20   // and any other poster, for whom others keep posting
)

// transmitter is the sending half. Whoever transmits at the moment owns what is below io.
type transmitter struct {
	qp *QP

	// Guarded by QP.Mu.
	busy    bool // somebody is the transmitter
	allowed bool // FPDUs may be sent (RFC 5044 §7.1.2: responder after the first FPDU)
	finSent bool
	broken  bool        // the socket takes nothing any more
	sentOff uint64      // bytes of the stream that the kernel has taken
	empty   emptyWrite  // zero-length Writes that are due, see empty.go
	idle    sync.Cond   // busy has become false; on QP.Mu
	fin     *time.Timer // bounds a graceful close: until our FIN, then until the peer's

	wake chan struct{} // capacity 1
	stop chan struct{}

	// io is held by the transmitter while it builds and sends a round. Taken
	// before QP.Mu.
	io sync.Mutex

	round  round
	keys   lastKey
	form   framing
	lately lately         // where payload has been sent from
	there  resident.Asked // of the message in progress

	cur    txMsg
	ahead  sqAhead
	msn    nextMSN
	sqTurn bool       // a response has just been sent: the send queue is next
	local  *verbs.WQE // a local operation is next and waits for the round to end
	reason error      // why building failed
	stats  txStats
}

// init makes the transmitter of a connection with FPDUs of up to fpdu bytes.
func (t *transmitter) init(crc bool, fpdu int) {
	t.form.init(crc, fpdu)
	t.msn = nextMSN{1, 1, 1, 1}
}

type txResult uint8

const (
	txIdleNow txResult = iota // nothing to do; no longer the transmitter
	txAgain                   // socket full; still the transmitter
	txShare                   // share used up; still the transmitter
	txDead                    // the connection is ending; no longer the transmitter
)

// push transmits what is queued, if nobody is doing so already. CQ handlers may
// run inside it.
func (t *transmitter) push() {
	qp := t.qp
	qp.Mu.Lock()
	if t.busy || qp.Dying.Load() || !t.workLocked() {
		ended := qp.Flushed
		if !t.busy && !qp.Dying.Load() {
			t.finLocked() // an answer may have emptied the queue
		}
		qp.Mu.Unlock()
		if ended {
			qp.SendCQ.Dispatch() // posts that were flushed at once
		}
		return
	}
	t.busy = true
	qp.Mu.Unlock()
	share := pushBytes
	if qp.inRx.Load() {
		share = rxPushBytes
	}
	switch t.transmit(share) {
	case txAgain, txShare:
		t.wake <- struct{}{} // room is certain: only the transmitter sends
	}
}

// loop is the transmit goroutine.
func (t *transmitter) loop() {
	qp := t.qp
	defer qp.wg.Done()
	poll := func(uintptr) bool {
		for {
			switch t.transmit(pushBytes) {
			case txAgain:
				return false
			case txShare:
				continue
			default:
				return true
			}
		}
	}
	for {
		select {
		case <-t.wake:
		case <-t.stop:
			return
		}
		if err := qp.conn.WriteLoop(poll); err != nil {
			// Interrupted while waiting for room: the role was still ours.
			t.quit()
		}
	}
}

// quit gives the transmitter's role up.
func (t *transmitter) quit() txResult {
	qp := t.qp
	qp.Mu.Lock()
	t.busy = false
	t.idle.Broadcast()
	qp.Mu.Unlock()
	return txDead
}

// transmit runs rounds until there is nothing to do, the socket is full, share
// bytes have been sent, or the connection ends. Preconditions: the caller is the
// transmitter; no lock is held.
func (t *transmitter) transmit(share int) txResult {
	qp := t.qp
	for {
		if qp.Dying.Load() {
			return t.quit()
		}
		n, err := t.sendRound()
		if err != nil && err != sockio.ErrAgain {
			t.fail(err)
			return t.quit()
		}
		if t.local != nil && len(t.round.iov) == 0 {
			t.runLocal(t.local)
			t.local = nil
		}
		share -= n

		qp.Mu.Lock()
		idle := t.sentLocked(n)
		qp.Mu.Unlock()
		qp.SendCQ.Dispatch()
		switch {
		case idle:
			return txIdleNow
		case err == sockio.ErrAgain || (n > 0 && len(t.round.iov) > 0):
			// A short count means a full socket too; the next call would say EAGAIN.
			return txAgain
		case share <= 0:
			return txShare
		}
	}
}

// sendRound builds a round, unless the rest of one is there, and offers it to the socket, which
// takes n bytes.
func (t *transmitter) sendRound() (n int, err error) {
	t.io.Lock()
	defer t.io.Unlock()
	r := &t.round
	if len(r.iov) == 0 {
		t.buildRound()
	}
	switch {
	case r.poison:
		err = errPoison
	case len(r.iov) > 0:
		n, err = t.write()
	default:
		err = t.reason
	}
	if len(r.iov) == 0 {
		r.rest(&t.qp.zc)
	}
	return n, err
}

// write offers the round to the socket. The caller holds io.
func (t *transmitter) write() (int, error) {
	qp, r := t.qp, &t.round
	n, err, used := qp.zc.write()
	if !used {
		n, err = qp.conn.Writev(r.iov, r.soon)
		t.stats.SendCalls++
	}
	if err == sockio.ErrFault && len(r.iov) > 1 {
		// What lies before the bad memory can still go, piece by piece.
		n, err = qp.conn.Writev(r.iov[:1], false)
	}
	if n > 0 {
		r.taken(n)
	}
	return n, err
}

// sentLocked enters that the socket has taken n more bytes, and completes what has been sent as
// a whole. It reports whether there is nothing more to do: the caller is no longer the transmitter then.
func (t *transmitter) sentLocked(n int) (idle bool) {
	qp := t.qp
	if t.sentOff == 0 && n > 0 && qp.start.initiator {
		qp.start.armNudgeLocked()
	}
	t.sentOff += uint64(n)
	t.ahead.enterLocked(&qp.SQ)
	t.publishLocked()
	qp.sweepLocked()
	if len(t.round.iov) > 0 || t.cur.active || t.workLocked() {
		return false
	}
	t.finLocked()
	t.busy = false
	t.idle.Broadcast()
	qp.halt.tellLocked()
	return true
}

var errPoison = errors.New("rdma: memory was invalidated while the peer was reading it")

// fail turns a failed round into the end of the connection.
func (t *transmitter) fail(err error) {
	qp := t.qp
	st := verbs.StatusFatal
	cause := wire.CauseLocal
	term, broken := true, false
	var te *Terminated
	switch {
	case errors.As(err, &te):
		cause = te.Cause
	case err == sockio.ErrFault || errors.Is(err, errTouch):
		st = verbs.StatusLocalFault
		err = fmt.Errorf("rdma: memory that was to be sent cannot be read: %w", err)
		// A header without its payload may be out: no boundary for a Terminate.
		term = len(t.round.iov) == 0
	case errors.Is(err, errLKey):
		st = verbs.StatusLocalProtection
	case err == errPoison:
		term = false
	default:
		term, broken = false, true
		err = fmt.Errorf("rdma: send: %w", err)
	}
	qp.Mu.Lock()
	t.broken = broken
	t.ahead.enterLocked(&qp.SQ)
	if e := t.culpritLocked(); st != verbs.StatusFatal && e != nil {
		e.Status = st
	}
	if term {
		qp.termLocked(&wire.Term{Cause: cause})
	}
	qp.FailLocked(err)
	qp.Mu.Unlock()
}

// culpritLocked is the work request that was being built or sent: the oldest one
// that the kernel has not taken as a whole; nil when it was a Read Response.
func (t *transmitter) culpritLocked() *verbs.WQE {
	qp := t.qp
	for i := qp.SQ.Head; i != qp.SQ.Next; i++ {
		if e := qp.SQ.At(i); !e.Done && e.End > t.sentOff {
			return e
		}
	}
	if t.cur.active && t.cur.resp || qp.SQ.Next == qp.SQ.Tail {
		return nil
	}
	return qp.SQ.At(qp.SQ.Next)
}

// workLocked reports whether the transmitter has something to start or go on
// with. Preconditions: qp.Mu is held.
func (t *transmitter) workLocked() bool {
	qp := t.qp
	if !t.allowed {
		return false
	}
	return t.empty != 0 || !qp.asked.empty() || t.runnableLocked() != nil
}

// runnableLocked is the next work request if it may start now.
func (t *transmitter) runnableLocked() *verbs.WQE {
	qp := t.qp
	if qp.SQ.Next == qp.SQ.Tail {
		return nil
	}
	e := qp.SQ.At(qp.SQ.Next)
	if e.Flags&verbs.FlagFence != 0 && qp.reads.inFlight() > 0 {
		return nil
	}
	if e.Op.Answered() && !qp.reads.roomLocked() {
		return nil
	}
	if extension(e.Op) && qp.start.ext == extPending {
		return nil
	}
	return e
}

// runLocal does a local operation. It runs between rounds, without io, because
// revoking takes the io of every queue pair that may be sending from the memory.
func (t *transmitter) runLocal(e *verbs.WQE) {
	qp := t.qp
	st := qp.Local(e)
	qp.Mu.Lock()
	e.Done = true
	e.Status = st
	qp.sweepLocked()
	qp.Mu.Unlock()
}

// finLocked sends FIN when a graceful close waits for the queue to drain.
func (t *transmitter) finLocked() {
	qp := t.qp
	if qp.StateLocked() == verbs.StateClosing && !t.finSent && qp.SQ.Head == qp.SQ.Tail && t.empty == 0 && qp.asked.empty() {
		t.finSent = true
		_ = qp.conn.CloseWrite()
		if t.fin != nil {
			t.fin.Stop()
		}
		t.fin = time.AfterFunc(finTimeout, func() {
			qp.Fail(fmt.Errorf("%w: the peer did not close its side within %v", verbs.ErrTimeout, finTimeout))
		})
	}
}

// revoked is called when r has been revoked: it waits for the system call that
// may be reading r, and makes sure that there is no further one.
func (t *transmitter) revoked(r *mem.Region) {
	qp := t.qp
	t.io.Lock()
	poisoned := t.round.revoke(r)
	t.io.Unlock()
	if poisoned {
		qp.Fail(errPoison)
	}
}
