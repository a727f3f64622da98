package rdma

import (
	"fmt"
	"math"
)

// sqe is a slot of the send queue. Its slices keep their backing arrays, so that
// a warm ring allocates nothing.
type sqe struct {
	id     uint64
	op     Opcode
	flags  SendFlags
	status WCStatus
	built  bool   // the last byte is in a round; end is valid
	done   bool   // answered or local operation: has ended
	end    uint64 // stream offset behind the last byte
	length uint32
	segs   [][]byte
	lkeys  []uint32
	inl    []byte // copy of inline data
	remote RemoteAddr
	inv    uint32
	imm    uint64
	atom   atomicArgs
	mr     *MR
	win    *Window
	access Access
	key    uint8
}

type atomicArgs struct{ data, mask, compare, compareMask uint64 }

func (e *sqe) signaled(all bool) bool { return all || e.flags&FlagSignaled != 0 }

// release drops references to user memory.
func (e *sqe) release() {
	clear(e.segs)
	e.segs = e.segs[:0]
	e.mr, e.win = nil, nil
}

// checkWR finds what is wrong with a work request in itself. Keys are checked
// when it runs, as in verbs.
func (qp *QP) checkWR(wr *SendWR) (uint32, error) {
	if wr.Op == 0 || wr.Op >= opEnd {
		return 0, invalid("%v", wr.Op)
	}
	if len(wr.SGL) > qp.cfg.MaxSGE {
		return 0, invalid("%d pieces of memory, the queue pair allows %d", len(wr.SGL), qp.cfg.MaxSGE)
	}
	var n uint64
	for i := range wr.SGL {
		n += uint64(len(wr.SGL[i].Mem))
	}
	if n > uint64(qp.dev.cfg.MaxMsg) || n > math.MaxUint32 {
		return 0, invalid("a message of %d bytes, the device allows %d", n, qp.dev.cfg.MaxMsg)
	}
	if wr.Flags&FlagInline != 0 {
		if wr.Op.answered() || wr.Op.local() {
			return 0, invalid("%v cannot be inline", wr.Op)
		}
		if n > uint64(qp.cfg.MaxInline) {
			return 0, invalid("%d bytes inline, the queue pair allows %d", n, qp.cfg.MaxInline)
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
// starts it. It never calls a CQ handler. The error is ErrQueueFull, ErrState
// (not connected) or ErrInvalid; then nothing has been queued.
func (qp *QP) Enqueue(wr *SendWR) error {
	n, err := qp.checkWR(wr)
	if err != nil {
		return err
	}
	qp.sqMu.Lock()
	defer qp.sqMu.Unlock()
	if qp.state != StateRTS {
		if qp.closed.Load() {
			return fmt.Errorf("%w: queue pair", ErrClosed)
		}
		if qp.ended {
			qp.completeLocked(&WC{ID: wr.ID, QP: qp, Status: StatusFlushed, Opcode: wcOf[wr.Op]})
			return nil
		}
		if qp.state != StateTerminate && qp.state != StateError {
			return fmt.Errorf("%w: state %v", ErrState, qp.state)
		}
		// The connection is ending; the request is flushed with the others.
	}
	if qp.sqTail-qp.sqHead-qp.hidden >= uint32(qp.cfg.MaxSend) {
		return ErrQueueFull
	}
	if qp.sqHead == qp.sqTail {
		// Nobody has a place in an empty ring: it begins anew, so that a connection
		// with little to do keeps few slots, and these in the cache.
		qp.sqHead, qp.sqNext, qp.sqTail = 0, 0, 0
	}
	e := &qp.sq[qp.sqTail&uint32(len(qp.sq)-1)]
	e.id, e.op, e.flags, e.length = wr.ID, wr.Op, wr.Flags, n
	e.status, e.built, e.done = StatusSuccess, false, false
	e.remote, e.inv, e.imm = wr.Remote, wr.InvSTag, wr.Imm
	e.mr, e.win, e.access, e.key = wr.MR, wr.Window, wr.Access, wr.Key
	e.segs, e.lkeys = e.segs[:0], e.lkeys[:0]
	switch wr.Op {
	case OpFetchAdd:
		e.atom = atomicArgs{wr.Add, wr.AddMask, 0, math.MaxUint64}
	case OpCmpSwap:
		e.atom = atomicArgs{wr.Swap, orAll(wr.SwapMask), wr.Compare, orAll(wr.CompareMask)}
	}
	if wr.Flags&FlagInline != 0 {
		if e.inl == nil {
			e.inl = make([]byte, 0, qp.cfg.MaxInline)
		}
		e.inl = e.inl[:0]
		for i := range wr.SGL {
			e.inl = append(e.inl, wr.SGL[i].Mem...)
		}
		e.segs = append(e.segs, e.inl)
		e.lkeys = append(e.lkeys, localDMAKey)
	} else {
		for i := range wr.SGL {
			if len(wr.SGL[i].Mem) > 0 {
				e.segs = append(e.segs, wr.SGL[i].Mem)
				e.lkeys = append(e.lkeys, wr.SGL[i].LKey)
			}
		}
	}
	qp.sqTail++
	return nil
}

func orAll(mask uint64) uint64 {
	if mask == 0 {
		return math.MaxUint64
	}
	return mask
}

// PostSend queues work requests in order and transmits. On error the requests
// before the refused one have been posted.
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
// which would end the connection. It never calls a CQ handler.
func (qp *QP) PostRecv(wrs ...RecvWR) error {
	if qp.cfg.SRQ != nil {
		return invalid("the queue pair takes its buffers from a shared receive queue")
	}
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGL) > qp.cfg.MaxSGE {
			return invalid("%d pieces of memory, the queue pair allows %d", len(wr.SGL), qp.cfg.MaxSGE)
		}
		flushed, err := qp.rq.post(wr)
		if err != nil {
			return err
		}
		if flushed {
			qp.sqMu.Lock()
			qp.completeRecvLocked(&WC{ID: wr.ID, QP: qp, Status: StatusFlushed, Opcode: WCRecv})
			qp.sqMu.Unlock()
			// The handler must not run in here.
			if qp.recvCQ.handler != nil {
				go qp.recvCQ.dispatch()
			}
		}
	}
	return nil
}

// completeLocked adds a send completion; completeRecvLocked a receive one.
// Overflow ends the connection (verbs: a fatal event of the queue pair).
func (qp *QP) completeLocked(wc *WC) {
	if !qp.sendCQ.add(wc) {
		qp.failLocked(ErrOverflow)
	}
}

func (qp *QP) completeRecvLocked(wc *WC) {
	if !qp.recvCQ.add(wc) {
		qp.failLocked(ErrOverflow)
	}
}

// sweepLocked completes, in order, everything at the head of the send queue that
// has ended: sent for what needs no answer, answered for the rest.
func (qp *QP) sweepLocked() {
	acked := qp.ackedLocked()
	for qp.sqHead != qp.sqNext {
		e := &qp.sq[qp.sqHead&uint32(len(qp.sq)-1)]
		if e.op.answered() || e.op.local() {
			if !e.done {
				return
			}
		} else if !e.built || e.end > acked {
			return
		}
		if e.flags&flagHidden == 0 && (e.status != StatusSuccess || e.signaled(qp.cfg.SignalAll)) {
			qp.completeLocked(&WC{ID: e.id, QP: qp, Status: e.status, Opcode: wcOf[e.op], ByteLen: e.length})
		}
		if e.flags&flagHidden != 0 {
			qp.hidden--
			qp.extBarrierLocked(e)
		}
		e.release()
		qp.sqHead++
	}
}
