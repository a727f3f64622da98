package rdma

import (
	"math"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
)

// checkWR finds what is wrong with a work request in itself. Keys are checked
// when it runs, as in verbs.
func (qp *QP) checkWR(wr *SendWR) (uint32, error) {
	if !wr.Op.Valid() {
		return 0, invalid("%v", wr.Op)
	}
	if wr.Op == OpSendImm && qp.pd.dev.cfg.Provider != ProviderRoCE {
		return 0, invalid("%v: %v has no such message", wr.Op, qp.pd.dev.cfg.Provider)
	}
	if f := wr.Flags &^ verbs.UserFlags; f != 0 {
		return 0, invalid("flags %#x, which do not exist", uint8(f))
	}
	if len(wr.SGL) > qp.cfg.MaxSGE {
		return 0, invalid("%d pieces of memory, the queue pair allows %d", len(wr.SGL), qp.cfg.MaxSGE)
	}
	var n uint64
	for i := range wr.SGL {
		n += uint64(len(wr.SGL[i].Mem))
	}
	if n > uint64(qp.pd.dev.cfg.MaxMsg) || n > math.MaxUint32 {
		return 0, invalid("a message of %d bytes, the device allows %d", n, qp.pd.dev.cfg.MaxMsg)
	}
	if wr.Flags&FlagInline != 0 {
		if wr.Op.Answered() || wr.Op.Local() {
			return 0, invalid("%v cannot be inline", wr.Op)
		}
		if n > uint64(qp.cfg.MaxInline) {
			return 0, invalid("%d bytes inline, the queue pair allows %d", n, qp.cfg.MaxInline)
		}
	}
	if qp.pd.dev.cfg.Provider == ProviderRoCE {
		if err := qp.checkRoCE(wr); err != nil {
			return 0, err
		}
	}
	switch wr.Op {
	case OpFetchAdd, OpCmpSwap:
		if n != 8 {
			return 0, invalid("%v needs room for 8 bytes, got %d", wr.Op, n)
		}
		if wr.Remote.TO%8 != 0 {
			return 0, invalid("%v on tagged offset %#x, which is not a multiple of 8", wr.Op, wr.Remote.TO)
		}
	case OpImm:
		if n != 0 {
			return 0, invalid("Imm carries no payload, got %d bytes", n)
		}
	case OpRegMR:
		if wr.MR == nil || wr.MR.gone.Load() || wr.MR.pd != qp.pd || len(wr.SGL) != 1 {
			return 0, invalid("RegMR needs an MR of this protection domain and one piece of memory")
		}
		if err := checkAccess(wr.Access, n); err != nil {
			return 0, err
		}
	case OpBindMW:
		if wr.Window == nil || wr.Window.gone.Load() || wr.Window.pd != qp.pd {
			return 0, invalid("BindMW needs a Window of this protection domain")
		}
	}
	return uint32(n), nil
}

// Enqueue puts one work request on the send queue without transmitting; Push
// starts it, unless it goes along before with what the queue pair sends of itself. It never
// calls a CQ handler, but one may run meanwhile, also about this request. The error is ErrQueueFull, ErrState
// (not connected) or ErrInvalid; then nothing has been queued.
func (qp *QP) Enqueue(wr *SendWR) error {
	p := Post(qp)
	err := p.Enqueue(wr)
	p.End()
	return err
}

// Posting is a send queue in the hands of somebody who has several requests for it.
type Posting struct{ qp *QP }

// Post gives the caller the send queue of qp until End. No method of qp may be called in between.
func Post(qp *QP) Posting {
	qp.v.Mu.Lock()
	return Posting{qp}
}

// End gives the send queue back.
func (p Posting) End() { p.qp.v.Mu.Unlock() }

// Enqueue is [QP.Enqueue].
func (p Posting) Enqueue(wr *SendWR) error {
	qp := p.qp
	n, err := qp.checkWR(wr)
	if err != nil {
		return err
	}
	e, err := qp.v.PostLocked(wr.ID, wr.Op)
	if e != nil {
		qp.fillSend(e, wr, n)
	}
	return err
}

// fillSend copies a request of n bytes of payload into its entry.
func (qp *QP) fillSend(e *verbs.WQE, wr *SendWR, n uint32) {
	e.Flags, e.Length = wr.Flags, n
	e.Remote, e.Inv, e.Imm = verbs.RemoteAddr(wr.Remote), wr.InvSTag, wr.Imm
	if qp.cfg.Type == TypeUD && wr.Dest.AH != nil {
		e.Dest = verbs.Destination{AH: &wr.Dest.AH.a, QPN: wr.Dest.QPN, QKey: wr.Dest.QKey}
	}
	switch wr.Op {
	case OpFetchAdd:
		e.Atom = verbs.Atomic{Data: wr.Add, Mask: wr.AddMask, CompareMask: math.MaxUint64}
	case OpCmpSwap:
		e.Atom = verbs.Atomic{Data: wr.Swap, Mask: verbs.AllBits(wr.SwapMask), Compare: wr.Compare, CompareMask: verbs.AllBits(wr.CompareMask)}
	case OpRegMR:
		e.MR, e.Access, e.Key = &wr.MR.m, mem.Access(wr.Access), wr.Key
	case OpBindMW:
		e.Window, e.Access, e.Key = &wr.Window.r, mem.Access(wr.Access), wr.Key
	}
	if wr.Flags&FlagInline != 0 {
		to := e.Inline(int(n), qp.cfg.MaxInline)
		for i := range wr.SGL {
			to = to[copy(to, wr.SGL[i].Mem):]
		}
		return
	}
	for i := range wr.SGL {
		e.Add(wr.SGL[i].Mem, wr.SGL[i].LKey)
	}
}

// PostSend queues work requests in order and transmits. The error is that of Enqueue; the
// requests before the refused one have been posted.
func (qp *QP) PostSend(wrs ...SendWR) error {
	var err error
	for i := range wrs {
		if err = qp.Enqueue(&wrs[i]); err != nil {
			break
		}
	}
	qp.Push()
	return err
}

// PostRecv adds buffers to the receive queue, in order. It may be called before
// the connection and should be, so that no Send of the peer meets an empty queue,
// which would end the connection. It never calls a CQ handler. The error is ErrQueueFull or
// ErrInvalid; the buffers before the refused one have been posted. A buffer that comes after
// the end completes as flushed.
func (qp *QP) PostRecv(wrs ...RecvWR) error {
	if qp.cfg.SRQ != nil {
		return invalid("the queue pair takes its buffers from a shared receive queue")
	}
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) > qp.cfg.MaxSGE {
			return invalid("%d pieces of memory, the queue pair allows %d", len(wr.SGL), qp.cfg.MaxSGE)
		}
		qp.v.RQ.Lock()
		flushed, err := fillRecvLocked(&qp.v.RQ, wr)
		qp.v.RQ.Unlock()
		if err != nil {
			return err
		}
		if flushed {
			qp.v.Mu.Lock()
			qp.v.CompleteRecvLocked(&verbs.WC{ID: wr.ID, QP: &qp.v, Status: StatusFlushed, Opcode: WCRecv})
			qp.v.Mu.Unlock()
			// The handler must not run in here.
			if cq := qp.v.RecvCQ; cq.Handled() {
				go cq.Dispatch()
			}
		}
	}
	return nil
}

// fillRecvLocked posts a receive buffer to a queue that is locked, unless that has ended.
func fillRecvLocked(q *verbs.RecvQueue, wr *RecvWR) (flushed bool, err error) {
	b, err := q.PostLocked(wr.ID)
	if b != nil {
		for i := range wr.SGL {
			b.Add(wr.SGL[i].Mem, wr.SGL[i].LKey)
		}
	}
	return b == nil && err == nil, err
}

// Push transmits what is queued, if nobody is doing so already. CQ handlers may
// run inside it.
func (qp *QP) Push() { qp.v.Engine.Push() }

// DiscardRead takes the memory away from the running or queued OpRead with this
// ID: when it returns true, its SGL is no longer touched. What the peer still
// sends is dropped, and the Read completes with StatusDiscarded when its response
// has ended. It returns false when there is no such Read any more.
func (qp *QP) DiscardRead(id uint64) bool { return qp.v.DiscardRead(id) }
