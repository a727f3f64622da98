package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/rdma/internal/mem"
)

// Device is what the queue pairs of a device share.
type Device struct {
	Table   mem.Table
	Atomics sync.Mutex // serializes atomic operations of all queue pairs
}

// Engine is a provider's half of a queue pair: it moves what is in the queues, from
// the creation of the queue pair on. Its methods may be called at any time, by
// anyone, unless they say otherwise.
type Engine interface {
	// Push starts what has been queued. It is the one call that the hot path makes
	// through this interface, once for all that was queued before.
	Push()
	// Stop makes everybody who sends or receives come to an end, those included who
	// wait: the connection has failed, see QP.FailLocked. It must not block; QP.Mu is
	// held.
	Stop()
	// Drain ends the connection once what is queued has been finished: the state has
	// become Closing. QP.Mu is held.
	Drain()
	// Wait returns when the goroutines of the connection are gone.
	Wait()
	// Discard takes the memory away from a Read that is queued or running; QP.Mu is
	// held.
	Discard(e *WQE)
	// SRQLow tells the owner of EventSRQLimit, when no lock is held. TakeRecv calls it
	// under whatever lock its caller holds.
	SRQLow()
	// Reads is the number of Reads and atomics in flight; QP.Mu is held.
	Reads() int
}

// Owner is the front's half of a queue pair.
type Owner interface {
	// StateChanged returns what is to be called when no lock is held.
	StateChanged(from, to State) func()
	// Cause says an engine's error in the front's words. It is called with QP.Mu held.
	Cause(err error) error
	// Ended is told of the cause, in the front's words, when the peer has been told
	// of it, and of nothing else: everything is still to be flushed.
	Ended(cause error)
	// Event is told on a goroutine of the engine.
	Event(e Event)
}

// QP is what front and engine share of a queue pair: the queues, the state, and how
// it ends. Fields without a remark do not change.
type QP struct {
	Num            uint32
	Dev            *Device
	PD             *mem.Domain
	Mem            mem.Stream // its identity at the gate to memory; the engine fills the functions in
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // receives come from there instead of RQ
	MaxSend        int
	SignalAll      bool
	Engine         Engine
	owner          Owner

	// Mu guards the queues that posters, transmitter and receiver share. Below it:
	// regions, CQ.mu.
	Mu        sync.Mutex
	SQ        SendQueue
	Connected bool // there is a connection that can fail
	Err       error
	Flushed   bool // posts flush at once
	state     State

	Dying   atomic.Bool   // set once: transmitter and receiver must stop
	Failing chan struct{} // closed with it
	Closed  atomic.Bool   // by the user
	Done    chan struct{} // closed by the last to go: the engine, or a close without a connection

	RQ RecvQueue

	StatMu sync.Mutex // guards Stats; a leaf
	Stats  Stats
}

// Init makes the queues. The fields that do not change have been set, except Engine.
func (qp *QP) Init(o Owner, maxRecv int) {
	qp.owner = o
	qp.SQ.Size(qp.MaxSend)
	qp.RQ.Ring(maxRecv)
	qp.Failing, qp.Done = make(chan struct{}), make(chan struct{})
}

// Owner is the front's half.
func (qp *QP) Owner() Owner { return qp.owner }

// PostLocked adds an entry to the send queue for the caller to fill before it unlocks
// Mu; nil without an error means that the request has been flushed.
func (qp *QP) PostLocked(id uint64, op Opcode) (*WQE, error) {
	if qp.state != StateRTS {
		if qp.Closed.Load() {
			return nil, fmt.Errorf("%w: queue pair", ErrClosed)
		}
		if qp.Flushed {
			qp.CompleteLocked(&WC{ID: id, QP: qp, Status: StatusFlushed, Opcode: wcOf[op]})
			return nil, nil
		}
		if qp.state != StateTerminate && qp.state != StateError {
			return nil, fmt.Errorf("%w: state %v", ErrState, qp.state)
		}
		// The connection is ending; the request is flushed with the others.
	}
	if qp.SQ.used() >= uint32(qp.MaxSend) {
		return nil, ErrQueueFull
	}
	e := qp.SQ.slot()
	e.ID, e.Op = id, op
	qp.SQ.Tail++
	return e, nil
}

// CompleteLocked adds a send completion, CompleteRecvLocked a receive one. Overflow
// ends the connection (verbs: a fatal event of the queue pair).
func (qp *QP) CompleteLocked(wc *WC) {
	if !qp.SendCQ.Add(wc) {
		qp.FailLocked(ErrOverflow)
	}
}

// CompleteRecvLocked is described at CompleteLocked.
func (qp *QP) CompleteRecvLocked(wc *WC) {
	if !qp.RecvCQ.Add(wc) {
		qp.FailLocked(ErrOverflow)
	}
}

// signaled reports whether e completes also when it succeeds.
func (qp *QP) signaled(e *WQE) bool { return qp.SignalAll || e.Flags&FlagSignaled != 0 }

// SweepLocked completes, in order, everything at the head of the send queue that has
// ended: up to acked, in the engine's count, for what needs no answer, Done for the
// rest. It returns the operation of the last hidden request among them, or 0.
func (qp *QP) SweepLocked(acked uint64) (hidden Opcode) {
	q, cq := &qp.SQ, qp.SendCQ
	locked, lost := false, false
	for q.Head != q.Next {
		e := q.At(q.Head)
		if !e.ended(acked) {
			break
		}
		if e.Flags&FlagHidden != 0 {
			q.Hidden--
			hidden = e.Op
		} else if e.Status != StatusSuccess || qp.signaled(e) {
			if !locked {
				locked = true // once for all of them
				cq.mu.Lock()
			}
			lost = !cq.addLocked(&WC{ID: e.ID, QP: qp, Status: e.Status, Opcode: wcOf[e.Op], ByteLen: e.Length}) || lost
		}
		e.release()
		q.Head++
	}
	if locked {
		cq.mu.Unlock()
	}
	if lost {
		qp.FailLocked(ErrOverflow)
	}
	return hidden
}

// ended reports whether e is over, when the engine has got to acked in what it sends.
func (e *WQE) ended(acked uint64) bool {
	if e.Op.Answered() || e.Op.Local() {
		return e.Done
	}
	return e.End <= acked
}

// TakeRecv moves the next receive buffer into b; false when there is none.
func (qp *QP) TakeRecv(b *RecvBuf) bool {
	if qp.SRQ == nil {
		_, ok := qp.RQ.Take(b)
		return ok
	}
	left, ok := qp.SRQ.Take(b)
	if !ok && qp.SRQ.watched.Load() {
		// Whoever was told that it gets low is posting more, and others have taken what was left
		// meanwhile. The owner of this queue pair is told, too, and may see to it at once.
		qp.Engine.SRQLow()
		left, ok = qp.SRQ.Take(b)
	}
	if ok && qp.SRQ.low(left) {
		qp.Engine.SRQLow()
	}
	return ok
}

// Fail ends the connection for err; the first cause counts.
func (qp *QP) Fail(err error) {
	qp.Mu.Lock()
	qp.FailLocked(err)
	qp.Mu.Unlock()
}

// FailLocked makes transmitter and receiver stop; the engine then sees to the end.
// Preconditions: qp.Mu is held.
func (qp *QP) FailLocked(err error) {
	if qp.Dying.Load() || !qp.Connected {
		return
	}
	qp.Err = qp.owner.Cause(err)
	qp.DieLocked()
}

// DieLocked makes everybody stop, those who wait in a handler included, once.
func (qp *QP) DieLocked() {
	qp.Dying.Store(true)
	close(qp.Failing)
	qp.Engine.Stop()
}

// FlushSendsLocked completes everything that is still in the send queue, in order.
// Preconditions: nobody transmits or receives any more.
func (qp *QP) FlushSendsLocked() {
	q := &qp.SQ
	for !q.Empty() {
		e := q.At(q.Head)
		st := e.Status
		if st == StatusSuccess && !e.Done {
			st = StatusFlushed
		}
		if e.Flags&FlagHidden == 0 && (st != StatusSuccess || qp.signaled(e)) {
			qp.SendCQ.Add(&WC{ID: e.ID, QP: qp, Status: st, Opcode: wcOf[e.Op]})
		}
		e.release()
		q.Head++
	}
	q.Next = q.Head
}

// FlushRecvsLocked ends the receive queue and completes what is in it; what is
// posted from now on completes at once. b is for its use.
func (qp *QP) FlushRecvsLocked(b *RecvBuf) {
	qp.RQ.end()
	if qp.SRQ == nil {
		for {
			if _, ok := qp.RQ.Take(b); !ok {
				break
			}
			qp.RecvCQ.Add(&WC{ID: b.ID, QP: qp, Status: StatusFlushed, Opcode: WCRecv})
		}
	}
	qp.Flushed = true
}

// DiscardRead takes the memory away from the running or queued OpRead with this ID;
// false when there is no such Read any more.
func (qp *QP) DiscardRead(id uint64) bool {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	for i := qp.SQ.Head; i != qp.SQ.Tail; i++ {
		e := qp.SQ.At(i)
		if e.ID == id && e.Op == OpRead && !e.Done && e.Flags&FlagHidden == 0 {
			e.Flags |= FlagDiscard
			qp.Engine.Discard(e)
			return true
		}
	}
	return false
}
