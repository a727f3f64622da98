package iwarp

import (
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Reads and atomics in flight. Outgoing ones wait in the ORQ for their response,
// which come in the order of the requests; incoming ones wait in the IRQ for
// their turn to be answered (RFC 5040 §5.5). Both are guarded by QP.Mu.

// orqEntry is one outstanding Read or atomic.
type orqEntry struct {
	e    *verbs.WQE
	sink *mem.Region // window over exactly the bytes of this request
	msn  uint32
}

// irqEntry is one Read or atomic of the peer.
type irqEntry struct {
	atomic   bool
	size     uint32
	sinkSTag uint32 // atomic: request identifier
	sinkTO   uint64 // atomic: original value
	srcSTag  uint32
	srcTO    uint64
}

// pushORQLocked takes the next slot for e; runnableLocked has seen that there is
// one.
func (qp *QP) pushORQLocked(e *verbs.WQE) *mem.Region {
	i := int(qp.orqTail % uint32(len(qp.orq)))
	qp.orqTail++
	qp.orq[i].e = e
	qp.orq[i].msn = qp.tx.cur.msn
	return qp.orq[i].sink
}

// oldestLocked is the request that the next response must answer, or nil.
func (qp *QP) oldestLocked() *orqEntry {
	if qp.orqHead == qp.orqTail {
		return nil
	}
	return &qp.orq[int(qp.orqHead%uint32(len(qp.orq)))]
}

// popORQLocked ends the oldest request with st and gives its slot back.
func (qp *QP) popORQLocked(st verbs.Status) {
	o := qp.oldestLocked()
	o.sink.Revoke()
	if o.e.Status == verbs.StatusSuccess {
		o.e.Status = st
	}
	if o.e.Flags&verbs.FlagDiscard != 0 {
		o.e.Status = verbs.StatusDiscarded
	}
	o.e.Done = true
	o.e = nil
	qp.orqHead++
	if n := uint32(len(qp.orq)); qp.orqHead >= n {
		// The counters stay below 2n: 2^32 need not be a multiple of n.
		whole := qp.orqHead - qp.orqHead%n
		qp.orqHead -= whole
		qp.orqTail -= whole
	}
	qp.sweepLocked()
}

// startResponseLocked makes the oldest request of the peer the message in
// progress. The slot is free from now on: the peer sends its next request only
// when it has our response.
func (qp *QP) startResponseLocked() {
	t := &qp.tx
	q := &qp.irq[int(qp.irqHead)%len(qp.irq)]
	qp.irqHead++
	m := &t.cur
	*m = txMsg{active: true, resp: true, op: wire.ReadResponse, stag: q.sinkSTag, to: q.sinkTO, length: q.size, srcTag: q.srcSTag, srcTO: q.srcTO}
	if q.atomic {
		m.op = wire.AtomicResp
		m.msn = t.take(wire.QNAtomicResp)
	}
}

// Discard takes the memory of a Read away, if it has been sent; see verbs.Engine.
func (qp *QP) Discard(e *verbs.WQE) {
	for j := qp.orqHead; j != qp.orqTail; j++ {
		if o := &qp.orq[int(j%uint32(len(qp.orq)))]; o.e == e {
			o.sink.Discard()
		}
	}
}

// Reads is the number of Reads and atomics in flight; see verbs.Engine.
func (qp *QP) Reads() int { return int(qp.orqTail - qp.orqHead) }
