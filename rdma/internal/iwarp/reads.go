package iwarp

import (
	"errors"
	"fmt"
	"math/bits"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
)

// Reads and atomics in flight (RFC 5040 §5.5). Outgoing ones wait in the ORQ, reads, for their
// responses, which come in the order of the requests; those of the peer wait in the irq for
// their turn to be answered. Both are guarded by QP.Mu.

// orqEntry is one outstanding Read or atomic.
type orqEntry struct {
	e    *verbs.WQE
	sink *mem.Region // window over exactly the bytes of this request
	msn  uint32
}

// reads are the Reads and atomics of this side that are in flight.
type reads struct {
	qp    *QP
	orq   []orqEntry // sent, in order; ring of ORD
	head  uint32
	tail  uint32
	sinks []*mem.Region // those that have been needed, of the first slots of orq
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

// openLocked makes the queue of a connection that sends ord Reads, the first one into sink.
func (q *reads) openLocked(sink *mem.Region, ord int) {
	q.orq = make([]orqEntry, ord)
	if ord > 0 {
		q.orq[0].sink = sink
		q.sinks = append(q.sinks, sink)
	}
}

// inFlight is how many have not been answered.
func (q *reads) inFlight() int { return int(q.tail - q.head) }

// roomLocked reports whether another Read or atomic may be sent: it has a slot, and a sink.
// Sinks come when there are more Reads in flight than ever before. When the table has no
// STag left, those that are in flight are waited for: the first slot has its sink from the
// start, and is the next one when none is.
func (q *reads) roomLocked() bool {
	n := uint32(len(q.orq))
	if n == 0 {
		return true // the request is started, and fails
	}
	if q.tail-q.head >= n {
		return false
	}
	o := &q.orq[q.tail%n]
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
	i := int(q.tail % uint32(len(q.orq)))
	q.tail++
	q.orq[i].e = e
	q.orq[i].msn = qp.tx.cur.msn
	qp.halt.goOnLocked() // somebody has to read the answer
	return q.orq[i].sink
}

// oldestLocked is the request that the next response must answer, or nil.
func (q *reads) oldestLocked() *orqEntry {
	if q.head == q.tail {
		return nil
	}
	return &q.orq[int(q.head%uint32(len(q.orq)))]
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
	q.head++
	if q.head == q.tail {
		q.head, q.tail = 0, 0 // so that few in flight use few sinks
	}
	if n := uint32(len(q.orq)); q.head >= n {
		// The counters stay below 2n: 2^32 need not be a multiple of n.
		whole := q.head - q.head%n
		q.head -= whole
		q.tail -= whole
	}
	qp.sweepLocked()
}

// discardLocked takes the memory of a Read away, if it has been sent.
func (q *reads) discardLocked(e *verbs.WQE) {
	for j := q.head; j != q.tail; j++ {
		if o := &q.orq[int(j%uint32(len(q.orq)))]; o.e == e {
			o.sink.Discard()
		}
	}
}

// dropLocked forgets all requests, which the send queue flushes.
func (q *reads) dropLocked() {
	for ; q.head != q.tail; q.head++ {
		o := q.oldestLocked()
		o.sink.Revoke()
		o.e = nil
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

// irqEntry is one Read or atomic of the peer.
type irqEntry struct {
	atomic   bool
	size     uint32
	sinkSTag uint32 // atomic: request identifier
	sinkTO   uint64 // atomic: original value
	srcSTag  uint32
	srcTO    uint64
}

// irq are the Reads and atomics of the peer that wait for their turn to be answered.
type irq struct {
	ring       []irqEntry // a power of two
	head, tail uint32
}

// openLocked makes the queue of a connection that answers ird Reads at a time: rounded up to
// a power of two, as some peers (siw) do with the depth they use. There is one slot even for
// IRD 0: a peer's first message may be an empty Read.
func (q *irq) openLocked(ird int) { q.ring = make([]irqEntry, roundUp(ird)) }

// roundUp is the next power of two.
func roundUp(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

func (q *irq) empty() bool { return q.head == q.tail }

// putLocked enters a request; false: the peer has more outstanding than was agreed on.
func (q *irq) putLocked(e irqEntry) bool {
	if int(q.tail-q.head) == len(q.ring) {
		return false
	}
	q.ring[int(q.tail)%len(q.ring)] = e
	q.tail++
	return true
}

// takeLocked takes the oldest request out. Its slot is free from now on: the peer sends its
// next request only when it has our response.
func (q *irq) takeLocked() *irqEntry {
	e := &q.ring[int(q.head)%len(q.ring)]
	q.head++
	return e
}

// dropLocked forgets all requests.
func (q *irq) dropLocked() { q.head = q.tail }
