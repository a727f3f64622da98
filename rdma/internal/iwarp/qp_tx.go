package iwarp

import (
	"errors"
	"fmt"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Transmitting. Whoever pushes work onto an idle queue pair becomes its
// transmitter (txBusy): normally the poster itself, so that a request leaves in
// the system call of the goroutine that made it. The transmitter works in rounds:
//
//	build   FPDUs of as many messages as fit a round: headers, pads and CRCs in
//	        tx.hdr, payload by reference, all named by tx.iov
//	send    one non-blocking sendmsg; what the kernel did not take stays in tx.iov
//	sweep   complete what has been taken as a whole
//
// until there is nothing to do. When the socket is full, or when a receive
// goroutine has sent its bounded share, the role goes to the transmit goroutine
// of the queue pair, which waits in the poller.
const (
	roundBytes  = 512 << 10 // payload after which a round is closed
	roundCRC    = 256 << 10 // and with CRC: still in the cache when the kernel copies it
	hdrRing     = 16 << 10  // headers, trailers and small payloads of one round
	copyMax     = 256       // payloads up to this are copied next to their header: cheaper than a piece of their own
	hdrRoom     = wire.MaxHdr + copyMax + 3 + wire.CRCLen
	rxPushBytes = 512 << 10 // what a Push inside the receive goroutine may send itself
	pushBytes   = 8 << 20   // and any other poster, for whom others keep posting
)

// txState belongs to the transmitter, whoever that is at the moment.
type txState struct {
	hdr   []byte       // capacity hdrRing, never reallocated
	vec   []sockio.Vec // capacity sockio.MaxVec
	iov   []sockio.Vec // what is left to send of vec
	open  bool         // the last piece of vec ends at the end of hdr
	bytes int          // in this round
	off   uint64       // stream offset behind what has been built

	crc         bool
	round       int // roundBytes or roundCRC
	maxTagged   int // payload of a full segment
	maxUntagged int

	cur    txMsg
	msn    [4]uint32  // next to use, by queue number
	sqTurn bool       // a response has just been sent: the send queue is next
	local  *verbs.WQE // a local operation is next and waits for the round to end
	refs   []txRef    // memory of Read Responses in this round, guarded by txIO
	gone   int        // of refs: those that have been sent
	sent   int        // of bytes: what the socket has taken
	at     txMark
	poison bool  // one of refs[gone:] has been revoked, guarded by txIO
	reason error // why building failed
	stats  txStats
}

// txRef is memory that the round reads. The peer may have it all, and answer, while
// what follows in the round still waits for room; the memory may be taken back then.
type txRef struct {
	r   *mem.Region
	end int // bytes of the round when it has been sent
}

// taken enters that the socket has taken n bytes of the round.
func (t *txState) taken(n int) {
	t.iov = sockio.Skip(t.iov, n)
	t.sent += n
	for t.gone < len(t.refs) && t.refs[t.gone].end <= t.sent {
		t.gone++
	}
}

// txMsg is the message in progress.
type txMsg struct {
	active bool
	resp   bool // Read Response; otherwise e is a slot of the send queue
	e      *verbs.WQE
	op     wire.Opcode
	imm    bool // Immediate Data follows (verbs.OpWriteImm)
	msn    uint32
	stag   uint32 // tagged: sink
	to     uint64
	length uint32
	off    uint32
	cur    cursor
	src    *mem.Region // Read Response
	gen    uint64      // of src, when cur was set
	srcTag uint32
	srcTO  uint64
}

type txResult uint8

const (
	txIdleNow txResult = iota // nothing to do; no longer the transmitter
	txAgain                   // socket full; still the transmitter
	txShare                   // share used up; still the transmitter
	txDead                    // the connection is ending; no longer the transmitter
)

// Push transmits what is queued, if nobody is doing so already. CQ handlers may
// run inside it.
func (qp *QP) Push() {
	qp.Mu.Lock()
	if qp.txBusy || qp.Dying.Load() || !qp.workLocked() {
		ended := qp.Flushed
		if !qp.txBusy && !qp.Dying.Load() {
			qp.finLocked() // an answer may have emptied the queue
		}
		qp.Mu.Unlock()
		if ended {
			qp.SendCQ.Dispatch() // posts that were flushed at once
		}
		return
	}
	qp.txBusy = true
	qp.Mu.Unlock()
	share := pushBytes
	if qp.inRx.Load() {
		share = rxPushBytes
	}
	switch qp.transmit(share) {
	case txAgain, txShare:
		qp.txWake <- struct{}{} // room is certain: only the transmitter sends
	}
}

// txLoop is the transmit goroutine.
func (qp *QP) txLoop() {
	defer qp.wg.Done()
	poll := func(uintptr) bool {
		for {
			switch qp.transmit(pushBytes) {
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
		case <-qp.txWake:
		case <-qp.txStop:
			return
		}
		if err := qp.conn.WriteLoop(poll); err != nil {
			// Interrupted while waiting for room: the role was still ours.
			qp.txQuit()
		}
	}
}

// txQuit gives the transmitter's role up.
func (qp *QP) txQuit() txResult {
	qp.Mu.Lock()
	qp.txBusy = false
	qp.txIdle.Broadcast()
	qp.Mu.Unlock()
	return txDead
}

// transmit runs rounds until there is nothing to do, the socket is full, share
// bytes have been sent, or the connection ends. Preconditions: the caller is the
// transmitter; no lock is held.
func (qp *QP) transmit(share int) txResult {
	t := &qp.tx
	for {
		if qp.Dying.Load() {
			return qp.txQuit()
		}
		qp.txIO.Lock()
		if len(t.iov) == 0 {
			qp.buildRound()
		}
		var n int
		var err error
		switch {
		case t.poison:
			err = errPoison
		case len(t.iov) == 0 && t.reason != nil:
			err = t.reason
		case len(t.iov) > 0:
			var used bool
			if n, err, used = qp.zcWrite(); !used {
				n, err = qp.conn.Writev(t.iov, t.crc) // the CRC has just read it all
				t.stats.SendCalls++
			}
			if err == sockio.ErrFault && len(t.iov) > 1 {
				// What lies before the bad memory can still go, piece by piece.
				n, err = qp.conn.Writev(t.iov[:1], false)
			}
			if n > 0 {
				t.taken(n)
			}
		}
		local := t.local
		if len(t.iov) > 0 {
			local = nil
		}
		qp.txIO.Unlock()
		if err != nil && err != sockio.ErrAgain {
			qp.txFail(err)
			return qp.txQuit()
		}
		if local != nil {
			qp.runLocal(local)
			t.local = nil
		}
		share -= n

		qp.Mu.Lock()
		if qp.sentOff == 0 && n > 0 && qp.initiator {
			qp.armNudgeLocked()
		}
		qp.sentOff += uint64(n)
		qp.publishTxLocked()
		qp.sweepLocked()
		idle := len(t.iov) == 0 && !t.cur.active && !qp.workLocked()
		if idle {
			qp.finLocked()
			qp.txBusy = false
			qp.txIdle.Broadcast()
		}
		qp.Mu.Unlock()
		qp.SendCQ.Dispatch()
		switch {
		case idle:
			return txIdleNow
		case err == sockio.ErrAgain || (n > 0 && len(t.iov) > 0):
			// A short count means a full socket too; the next call would say EAGAIN.
			return txAgain
		case share <= 0:
			return txShare
		}
	}
}

var errPoison = errors.New("rdma: memory was invalidated while the peer was reading it")

// txFail turns a failed round into the end of the connection.
func (qp *QP) txFail(err error) {
	st := verbs.StatusFatal
	cause := wire.CauseLocal
	term := true
	var te *Terminated
	switch {
	case errors.As(err, &te):
		cause = te.Cause
	case err == sockio.ErrFault || errors.Is(err, errTouch):
		st = verbs.StatusLocalFault
		err = fmt.Errorf("rdma: memory that was to be sent cannot be read: %w", err)
		// A header without its payload may be out: no boundary for a Terminate.
		term = len(qp.tx.iov) == 0
	case errors.Is(err, errLKey):
		st = verbs.StatusLocalProtection
	case err == errPoison:
		term = false
	default:
		term = false
		err = fmt.Errorf("rdma: send: %w", err)
	}
	qp.Mu.Lock()
	if e := qp.culpritLocked(); st != verbs.StatusFatal && e != nil {
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
func (qp *QP) culpritLocked() *verbs.WQE {
	for i := qp.SQ.Head; i != qp.SQ.Next; i++ {
		if e := qp.SQ.At(i); !e.Done && e.End > qp.sentOff {
			return e
		}
	}
	if qp.tx.cur.active && qp.tx.cur.resp || qp.SQ.Next == qp.SQ.Tail {
		return nil
	}
	return qp.SQ.At(qp.SQ.Next)
}

// workLocked reports whether the transmitter has something to start or go on
// with. Preconditions: qp.Mu is held.
func (qp *QP) workLocked() bool {
	if !qp.txOpen {
		return false
	}
	return qp.empty != 0 || qp.irqHead != qp.irqTail || qp.runnableLocked() != nil
}

// runnableLocked is the next work request if it may start now.
func (qp *QP) runnableLocked() *verbs.WQE {
	if qp.SQ.Next == qp.SQ.Tail {
		return nil
	}
	e := qp.SQ.At(qp.SQ.Next)
	busy := qp.orqTail - qp.orqHead
	if e.Flags&verbs.FlagFence != 0 && busy > 0 {
		return nil
	}
	// With ORD 0 it starts, and fails.
	if e.Op.Answered() && busy > 0 && int(busy) >= len(qp.orq) {
		return nil
	}
	if extension(e.Op) && qp.ext == extPending {
		return nil
	}
	return e
}

// runLocal does a local operation. It runs between rounds, without txIO, because
// revoking takes the txIO of every queue pair that may be sending from the memory.
func (qp *QP) runLocal(e *verbs.WQE) {
	st := verbs.StatusSuccess
	switch e.Op {
	case verbs.OpLocalInv:
		r := qp.Dev.Table.Lookup(e.Inv)
		if r == nil || !r.Matches(qp.PD, &qp.Mem, e.Inv) {
			st = verbs.StatusInvalidated
		} else {
			r.Revoke()
		}
	case verbs.OpRegMR:
		e.MR.Revoke()
		var p []byte
		if len(e.Segs) > 0 {
			p = e.Segs[0]
		}
		e.MR.Aim(p, e.Access, uint32(e.Key))
	case verbs.OpBindMW:
		e.Window.Revoke()
		e.Window.OpenKey(&qp.Mem, e.Segs, e.Access, e.Key)
	}
	qp.Mu.Lock()
	e.Done = true
	e.Status = st
	qp.sweepLocked()
	qp.Mu.Unlock()
}

// finLocked sends FIN when a graceful close waits for the queue to drain.
func (qp *QP) finLocked() {
	if qp.StateLocked() == verbs.StateClosing && !qp.finSent && qp.SQ.Head == qp.SQ.Tail && qp.irqHead == qp.irqTail {
		qp.finSent = true
		_ = qp.conn.CloseWrite()
		qp.fin = time.AfterFunc(finTimeout, func() {
			qp.Fail(fmt.Errorf("%w: the peer did not close its side within %v", verbs.ErrTimeout, finTimeout))
		})
	}
}

// poisonTx is called when r has been revoked: it waits for the system call that
// may be reading r, and makes sure that there is no further one.
func (qp *QP) poisonTx(r *mem.Region) {
	qp.txIO.Lock()
	for _, ref := range qp.tx.refs[qp.tx.gone:] {
		if ref.r == r {
			qp.tx.poison = true
		}
	}
	poisoned := qp.tx.poison
	qp.txIO.Unlock()
	if poisoned {
		qp.Fail(errPoison)
	}
}
