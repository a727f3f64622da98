package pdustream

import (
	"sync/atomic"

	"softiser/internal/resident"
	"softiser/internal/segs"
	"softiser/internal/sockio"
)

// roundBytes is how much is offered to the socket in one call, roughly.
const roundBytes = 2 << 20

// soonBytes is how much a call moves at most that the scheduler is not told of, bytes: the
// processor has nothing else to do until it returns.
const soonBytes = 512 << 10

// ram reports whether all of d is memory that is always resident.
func ram(d segs.View) bool {
	for d.Len() > 0 {
		s := d.Next()
		if !resident.Holds(s) {
			return false
		}
		d.Skip(len(s))
	}
	return true
}

// PDU is what the queue keeps of a T that is to be sent. It is embedded in it.
//
//	Head: header, digest, padding │ Data (by reference) │ Tail: padding, digest
type PDU[T any] struct {
	Head []byte
	Data segs.View
	Tail []byte

	next   *PDU[T]
	self   *T
	length int  // of the whole PDU; 0 until it is sealed
	sent   int  // bytes that the socket has taken
	taken  bool // the transmitter has seen it
	cold   bool // its data is long, and has not been sent lately
}

// Next returns the PDU behind p; nil at the end.
func (p *PDU[T]) Next() *T {
	if p.next == nil {
		return nil
	}
	return p.next.self
}

// Taken reports whether the transmitter has seen p: it must not be changed any more.
func (p *PDU[T]) Taken() bool { return p.taken }

// Sent returns how many bytes of p the socket has taken.
func (p *PDU[T]) Sent() int { return p.sent }

// appendTo appends what has not been sent yet, as far as room goes.
func (p *PDU[T]) appendTo(v []sockio.Vec) []sockio.Vec {
	skip := p.sent
	if skip < len(p.Head) {
		v = sockio.Append(v, p.Head[skip:])
		skip = 0
	} else {
		skip -= len(p.Head)
	}
	d := p.Data
	if skip < d.Len() {
		d.Skip(skip)
		skip = 0
		for d.Len() > 0 {
			if len(v) == cap(v) {
				return v
			}
			s := d.Next()
			v = sockio.Append(v, s)
			d.Skip(len(s))
		}
	} else {
		skip -= d.Len()
	}
	if len(v) < cap(v) {
		v = sockio.Append(v, p.Tail[skip:])
	}
	return v
}

// queue is the PDUs that are to be sent. The lock of its Transmitter guards it, except
// where noted.
type queue[T any] struct {
	src        Sender[T]
	head, tail *PDU[T]
	spare      *PDU[T] // to be used again
	spares     int
	sent       uint64 // bytes that the socket has taken

	batch []*PDU[T] // the transmitter's: of one call
	vec   []sockio.Vec
	soon  bool // what Gather has returned is resident and not long: sending it cannot wait
	cold  bool // it is resident, some of it is cold, and no digest has read it

	lately lately

	// PDUs counts those that have left whole. Anybody may read it.
	PDUs atomic.Uint64
}

// MaxSpare is how many PDUs are kept for their next use.
const MaxSpare = 512

// Spare returns a PDU that Sender.Gone has emptied; nil: there is none.
func (q *queue[T]) Spare() *T {
	n := q.spare
	if n == nil {
		return nil
	}
	q.spare, n.next = n.next, nil
	q.spares--
	return n.self
}

// Push puts p, whose PDU is n, at the end.
func (q *queue[T]) Push(n *PDU[T], p *T) {
	n.self = p
	if q.tail == nil {
		q.head = n
	} else {
		q.tail.next = n
	}
	q.tail = n
}

// First returns the oldest PDU; nil when there is none.
func (q *queue[T]) First() *T {
	if q.head == nil {
		return nil
	}
	return q.head.self
}

// Last returns the youngest PDU; nil when there is none.
func (q *queue[T]) Last() *T {
	if q.tail == nil {
		return nil
	}
	return q.tail.self
}

// Empty reports whether there is no PDU.
func (q *queue[T]) Empty() bool { return q.head == nil }

// SentBytes returns how many bytes the socket has taken.
func (q *queue[T]) SentBytes() uint64 { return q.sent }

// Remove takes those PDUs out of which drop reports true. No system call uses them.
func (q *queue[T]) Remove(drop func(p *T) bool) {
	var prev *PDU[T]
	for n := q.head; n != nil; {
		next := n.next
		if drop(n.self) {
			q.unlink(prev, n)
		} else {
			prev = n
		}
		n = next
	}
}

// Purge takes all PDUs out, and keeps none for another use.
func (q *queue[T]) Purge() {
	for q.head != nil {
		q.unlink(nil, q.head)
	}
	q.spare, q.spares = nil, 0
}

// unlink takes n, which is behind prev, out before it has been sent whole.
func (q *queue[T]) unlink(prev, n *PDU[T]) {
	if prev == nil {
		q.head = n.next
	} else {
		prev.next = n.next
	}
	if n.next == nil {
		q.tail = prev
	}
	q.gone(n, false)
}

// gone ends the stay of n, which is unlinked.
func (q *queue[T]) gone(n *PDU[T], whole bool) {
	p := n.self
	q.src.Gone(p, whole)
	if q.spares == MaxSpare {
		return
	}
	*n = PDU[T]{self: p, next: q.spare}
	q.spare = n
	q.spares++
}

// Collect picks the PDUs for one system call, and reports whether there are any.
func (q *queue[T]) Collect() bool {
	q.batch = q.batch[:0]
	var prev *PDU[T]
	size, pieces := 0, 0
	for n := q.head; n != nil && size < roundBytes && pieces < sockio.MaxVec-8; {
		next := n.next
		if !n.taken && !q.src.Pick(n.self) {
			q.unlink(prev, n)
			n = next
			continue
		}
		n.taken = true
		q.batch = append(q.batch, n)
		size += n.Data.Len() + len(n.Head)
		pieces += 2 + n.Data.Pieces()
		prev, n = n, next
	}
	return len(q.batch) > 0
}

// Gather completes what has been collected and returns the pieces of as much of it as one
// call takes; none when the first data cannot be read. It is called without the lock.
func (q *queue[T]) Gather() []sockio.Vec {
	if q.vec == nil {
		q.vec = make([]sockio.Vec, 0, 64)
	}
	v := q.vec[:0]
	q.soon = true
	size, cold, digest := 0, false, false
	for _, n := range q.batch {
		if n.length == 0 {
			if !q.src.Seal(n.self) {
				break
			}
			n.length = len(n.Head) + n.Data.Len() + len(n.Tail)
			n.cold = n.Data.Len() >= loadMin && !q.lately.again(n.Data.Next())
		}
		if need := len(v) + 2 + n.Data.Pieces(); need > cap(v) && cap(v) < sockio.MaxVec {
			v = append(make([]sockio.Vec, 0, min(max(2*cap(v), need), sockio.MaxVec)), v...)
		}
		q.soon = q.soon && ram(n.Data)
		cold = cold || n.cold
		digest = digest || len(n.Tail) > 0
		size += n.length
		v = n.appendTo(v)
		if len(v) == cap(v) {
			break
		}
	}
	q.cold = q.soon && cold && !digest
	q.soon = q.soon && size <= soonBytes
	q.vec = v
	return v
}

// Advance takes n bytes off the queue, which the socket has taken.
func (q *queue[T]) Advance(n int) {
	q.sent += uint64(n)
	for n > 0 {
		p := q.head
		rest := p.length - p.sent
		if n < rest {
			p.sent += n
			return
		}
		n -= rest
		q.PDUs.Add(1)
		if q.head = p.next; q.head == nil {
			q.tail = nil
		}
		q.gone(p, true)
	}
}
