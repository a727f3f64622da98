package iwarp

import (
	"errors"
	"fmt"
	"math/bits"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
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

// reads is what is in flight. It is guarded by QP.Mu.
type reads struct {
	qp      *QP
	orq     []orqEntry // sent, in order; ring of ORD
	orqHead uint32
	orqTail uint32
	irq     []irqEntry // to answer; ring, power of two
	irqHead uint32
	irqTail uint32
	sinks   []*mem.Region // those that have been needed, of the first slots of orq
}

// makeSink registers a window into which the answer to a Read goes.
func (q *reads) makeSink() (*mem.Region, error) {
	qp := q.qp
	s := new(mem.Region)
	s.Init(qp.PD)
	if err := qp.Dev.Table.Insert(s); err != nil {
		if errors.Is(err, mem.ErrFull) {
			return nil, fmt.Errorf("%w: no STag for the sink of an RDMA Read", verbs.ErrLimit)
		}
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return s, nil
}

// openLocked makes the queues of a connection that sends ord Reads, the first one into
// sink, and answers ird.
func (q *reads) openLocked(sink *mem.Region, ord, ird int) {
	q.orq = make([]orqEntry, ord)
	if ord > 0 {
		q.orq[0].sink = sink
		q.sinks = append(q.sinks, sink)
	}
	// Rounded up to a power of two, as some peers (siw) do with the depth they use. There is one
	// slot even for IRD 0: a peer's first message may be an empty Read.
	q.irq = make([]irqEntry, roundUp(ird))
}

// roundUp is the next power of two.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// roomLocked reports whether another Read or atomic may be sent: it has a slot, and a sink.
// Sinks come when there are more Reads in flight than ever before. When the table has no
// STag left, those that are in flight are waited for: the first slot has its sink from the
// start, and is the next one when none is.
func (q *reads) roomLocked() bool {
	n := uint32(len(q.orq))
	if n == 0 {
		return true // the request is started, and fails
	}
	if q.orqTail-q.orqHead >= n {
		return false
	}
	o := &q.orq[q.orqTail%n]
	if o.sink == nil {
		s, err := q.makeSink()
		if err != nil {
			return false
		}
		o.sink = s
		q.sinks = append(q.sinks, s)
	}
	return true
}

// sentLocked takes the next slot for e; runnableLocked has seen that there is
// one.
func (q *reads) sentLocked(e *verbs.WQE) *mem.Region {
	qp := q.qp
	i := int(q.orqTail % uint32(len(q.orq)))
	q.orqTail++
	q.orq[i].e = e
	q.orq[i].msn = qp.tx.cur.msn
	qp.halt.goOnLocked() // somebody has to read the answer
	return q.orq[i].sink
}

// oldestLocked is the request that the next response must answer, or nil.
func (q *reads) oldestLocked() *orqEntry {
	if q.orqHead == q.orqTail {
		return nil
	}
	return &q.orq[int(q.orqHead%uint32(len(q.orq)))]
}

// answeredLocked ends the oldest request with st and gives its slot back.
func (q *reads) answeredLocked(st verbs.Status) {
	qp := q.qp
	o := q.oldestLocked()
	o.sink.Revoke()
	if o.e.Status == verbs.StatusSuccess {
		o.e.Status = st
	}
	if o.e.Flags&verbs.FlagDiscard != 0 {
		o.e.Status = verbs.StatusDiscarded
	}
	o.e.Done = true
	o.e = nil
	q.orqHead++
	if q.orqHead == q.orqTail {
		q.orqHead, q.orqTail = 0, 0 // so that few in flight use few sinks
	}
	if n := uint32(len(q.orq)); q.orqHead >= n {
		// The counters stay below 2n: 2^32 need not be a multiple of n.
		whole := q.orqHead - q.orqHead%n
		q.orqHead -= whole
		q.orqTail -= whole
	}
	qp.sweepLocked()
}

// discardLocked takes the memory of a Read away, if it has been sent.
func (q *reads) discardLocked(e *verbs.WQE) {
	for j := q.orqHead; j != q.orqTail; j++ {
		if o := &q.orq[int(j%uint32(len(q.orq)))]; o.e == e {
			o.sink.Discard()
		}
	}
}

// releaseSinks gives the STags of the ORD slots back.
func (q *reads) releaseSinks() {
	qp := q.qp
	qp.Mu.Lock()
	sinks := q.sinks
	q.sinks = nil
	qp.Mu.Unlock()
	for _, s := range sinks {
		qp.Dev.Table.Remove(s)
	}
}
