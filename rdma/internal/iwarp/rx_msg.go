package iwarp

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"softiser/internal/memfault"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// done is called when a segment has passed all checks, CRC included.
func (x *receiver) done() error {
	last := x.ctrl.Last()
	if x.op != opZeroFPDU && last {
		x.stats.Msgs[x.op]++
	}
	x.stats.Payload += uint64(x.paylen)
	if !last {
		x.in.shortFPDUs = x.paylen < directMin
		if x.ctrl.Tagged() {
			x.in.pattern.seg = x.paylen
		}
	}
	if x.op == opZeroFPDU {
		return nil
	}
	o := &rdmapOps[x.op]
	if !x.ctrl.Tagged() {
		if x.in.expect > 0 {
			x.in.expect--
		}
		if last {
			x.msn[x.unt.QN]++
		}
	}
	if o.done == nil {
		return nil
	}
	return o.done(x)
}

// readResponseDone ends the oldest Read when its last segment has come.
func (x *receiver) readResponseDone() error {
	qp := x.qp
	x.rlen += uint32(x.paylen)
	if x.ctrl.Last() {
		x.rlen = 0
		x.flushWC()
		qp.Mu.Lock()
		qp.reads.answeredLocked(verbs.StatusSuccess)
		qp.Mu.Unlock()
		x.wakeTx = true
	}
	return nil
}

// sendSegmentDone counts a segment of a Send.
func (x *receiver) sendSegmentDone() error {
	if x.rtrSend {
		x.rtrSend = false
		return nil
	}
	x.recv.got += uint64(x.paylen)
	if x.ctrl.Last() {
		return x.sendDone()
	}
	return nil
}

// terminateDone ends the connection as the peer has said.
func (x *receiver) terminateDone() error {
	qp := x.qp
	var t wire.Term
	if err := t.Parse(x.term.b[:x.term.n]); err != nil {
		return fmt.Errorf("rdma: unreadable Terminate from the peer: %w", err)
	}
	err := &Terminated{Remote: true, Cause: t.Cause}
	qp.Mu.Lock()
	qp.remote = qp.remote || !qp.Dying.Load() // an earlier cause counts
	qp.remoteTermLocked(&t)
	qp.FailLocked(err)
	qp.Mu.Unlock()
	return err
}

func (x *receiver) readRequestDone() error {
	var h wire.ReadReq
	h.Parse(x.ext())
	return x.queueRequest(irqEntry{size: h.Size, sinkSTag: h.SinkSTag, sinkTO: h.SinkTO, srcSTag: h.SrcSTag, srcTO: h.SrcTO})
}

func (x *receiver) immediateDone() error {
	qp := x.qp
	wc := x.in.room.completion(x.nwc)
	wc.ID, wc.QP, wc.Opcode, wc.ByteLen = x.recv.buf.ID, qp.QP, verbs.WCRecvImm, wire.ImmLen
	wc.Flags, wc.Imm = verbs.WCWithImm, binary.BigEndian.Uint64(x.ext())
	x.recv.active = false
	x.recvDone(wc)
	return nil
}

// sendDone completes a Send. The invalidation comes first (RFC 5040 §5.3).
func (x *receiver) sendDone() error {
	qp := x.qp
	v := &x.recv
	wc := x.in.room.completion(x.nwc)
	wc.ID, wc.QP, wc.Opcode, wc.ByteLen, wc.Status = v.buf.ID, qp.QP, verbs.WCRecv, uint32(v.got), v.status
	if x.op.Invalidates() {
		stag := x.unt.Inv
		// Most of the time that is the window that the peer has just written to.
		r := x.written
		if x.written = nil; r == nil || !r.Remote || !r.RevokeNamed(qp.PD, &qp.Mem, stag) {
			r = qp.Dev.Table.Lookup(stag)
			switch {
			case r == nil:
				return x.terminate(wire.CauseRemoteNoInval, fmt.Sprintf("cannot invalidate STag %#08x: it does not exist", stag))
			case !r.Remote && r.Matches(qp.PD, &qp.Mem, stag):
				return x.terminate(wire.CauseRemoteNoInval, fmt.Sprintf("cannot invalidate STag %#08x: it is a plain memory region", stag))
			case !r.Remote || !r.RevokeNamed(qp.PD, &qp.Mem, stag):
				return x.terminate(wire.CauseRemoteNoInval, fmt.Sprintf("cannot invalidate STag %#08x: it is not valid for this connection", stag))
			}
			x.in.distrust(r)
		}
		wc.Flags |= verbs.WCWithInv
		wc.InvSTag = stag
	}
	v.active, v.got = false, 0
	x.recvDone(wc)
	return nil
}

// recvDone collects wc, which is the next one of the room, for the end of the batch.
func (x *receiver) recvDone(wc *verbs.WC) {
	qp := x.qp
	if x.op.Solicited() {
		wc.Flags |= verbs.WCSolicited
	}
	x.recv.buf.Segs = mem.Drop(x.recv.buf.Segs)
	if x.nwc++; x.nwc == len(x.in.room.wcs) {
		x.flushWC()
		x.wakeTx = true // nwc is 0 now: without this the end of the batch would not call the handlers
		if qp.RecvCQ.Crowded() {
			// The read-ahead buffer may hold more short messages than the queue has room for: handle some now.
			qp.inRx.Store(true)
			qp.RecvCQ.Dispatch()
			qp.inRx.Store(false)
		}
	}
}

// queueRequest queues a request of the peer for the transmitter.
func (x *receiver) queueRequest(q irqEntry) error {
	qp := x.qp
	qp.Mu.Lock()
	ok := qp.asked.putLocked(q)
	qp.Mu.Unlock()
	if !ok {
		return x.terminate(wire.CauseStreamCatastroph, fmt.Sprintf("more than %d RDMA Reads outstanding", len(qp.asked.ring)))
	}
	x.wakeTx = true
	return nil
}

// atomicDone does an Atomic Request (RFC 7306 §5) and queues the answer. All atomic
// operations of a device are serialized, and are atomic against sync/atomic
// operations of this process on the same word.
func (x *receiver) atomicDone() error {
	qp := x.qp
	var h wire.Atomic
	h.Parse(x.ext())
	r, off, f := qp.find(h.STag, h.TO, 8, mem.RemoteAtomic)
	if f != mem.None {
		return x.terminate(faultCauses[f].rdmap, "the memory of an atomic operation was invalidated")
	}
	var cur mem.Cursor
	cur.Set(r.Pieces())
	cur.Skip(int(off))
	word := cur.Next(8)
	var old uint64
	ok := len(word) == 8 && mem.AddrOf(word)%8 == 0
	if ok {
		qp.Dev.Atomics.Lock()
		old, ok = atomicOp((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), &h)
		qp.Dev.Atomics.Unlock()
	}
	r.Release()
	if !ok {
		return x.terminate(wire.CauseStreamCatastroph, "the memory of an atomic operation is not aligned to 8 bytes or cannot be touched")
	}
	return x.queueRequest(irqEntry{atomic: true, sinkSTag: h.ID, sinkTO: old})
}

func atomicOp(p *uint64, h *wire.Atomic) (old uint64, ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for {
		old = atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, h.Apply(old)) {
			return old, true
		}
	}
}

// atomicResponseDone puts the original value where the requester wants it.
func (x *receiver) atomicResponseDone() error {
	qp := x.qp
	var h wire.AtomicReply
	h.Parse(x.ext())
	var val [8]byte
	binary.NativeEndian.PutUint64(val[:], h.Value)
	x.flushWC()
	qp.Mu.Lock()
	st := verbs.StatusSuccess
	o := qp.reads.oldestLocked()
	var cur mem.Cursor
	cur.Set(o.e.Segs)
	if !mem.CopyTo(&cur, val[:]) {
		st = verbs.StatusLocalFault
	}
	qp.reads.answeredLocked(st)
	qp.Mu.Unlock()
	x.wakeTx = true
	return nil
}

// firstFPDU is called once, when the first FPDU has passed its checks: the
// responder may send from now on (RFC 5044 §7.1.2).
func (x *receiver) firstFPDU() {
	qp := x.qp
	x.begun = true
	if qp.start.rtr != 0 && !qp.start.initiator {
		ok := false
		switch x.op {
		case opZeroFPDU:
			ok = qp.start.rtr == mpa.RTRSend
		case wire.Write:
			ok = qp.start.rtr == mpa.RTRWrite && x.paylen == 0
		case wire.ReadRequest:
			ok = qp.start.rtr == mpa.RTRRead
		case wire.Send:
			ok = qp.start.rtr == mpa.RTRSend && x.paylen == 0
		case wire.Terminate:
			ok = true // the initiator refuses our Reply, and says why
		}
		if !ok {
			x.fail(wire.CauseNoRTR, fmt.Sprintf("the first message is not the RTR message agreed on (%v)", qp.start.rtr))
			return
		}
	}
	qp.Mu.Lock()
	open := qp.tx.allowed
	qp.tx.allowed = true
	qp.start.heardLocked()
	qp.Mu.Unlock()
	if !open {
		x.wakeTx = true
	}
	if !qp.start.initiator {
		qp.Owner().Event(verbs.EventEstablished)
	}
}
