package rc

import (
	"softiser/rdma/internal/roce/packet"
)

// answer is what the peer is owed for one request, or for several that are
// acknowledged together.
type answer struct {
	op   packet.Opcode // Acknowledge, AtomicAcknowledge, or ReadResponseOnly for all of a READ's
	psn  packet.PSN    // of the next packet
	end  packet.PSN    // of a READ or an atomic: behind the last one
	msn  uint32
	verd packet.Syndrome

	reth packet.RETH // what is left of a READ
	sent bool        // its first packet has left
	dup  bool        // the READ or atomic came again
	orig uint64      // an atomic's result
}

// answers is the queue of them: a ring, bounded by how many requests a peer may have
// outstanding.
type answers struct {
	ring    []answer
	head, n int
}

// init makes room for the answers to so many READs and atomics, for
// an acknowledgement behind each of them, one before all, and a NAK.
func (q *answers) init(resources int) { q.ring = make([]answer, 2*resources+3) }

// room says whether the answers to one more packet fit.
func (q *answers) room() bool { return len(q.ring)-q.n >= 2 }

func (q *answers) first() *answer { return &q.ring[q.head] }

func (q *answers) at(i int) *answer { return &q.ring[(q.head+i)%len(q.ring)] }

func (q *answers) last() *answer {
	if q.n == 0 {
		return nil
	}
	return q.at(q.n - 1)
}

func (q *answers) add(a answer) {
	*q.at(q.n) = a
	q.n++
}

func (q *answers) pop() {
	q.head = (q.head + 1) % len(q.ring)
	q.n--
}

// again queues the answer to a READ or an atomic that has come again, where its PSNs belong among
// those that wait, and instead of what waits of that answer already. Those to later requests stay.
// Whoever has gone back repeats them too; but a requester that asks for the oldest answer alone
// (see Requester.Tick), or a network that has doubled a packet, does not, and is still owed them.
func (q *answers) again(a answer) {
	kept, at := 0, -1
	for i := range q.n {
		e := *q.at(i)
		if e.op != packet.Acknowledge && e.psn.Sub(a.psn) >= 0 && e.end.Sub(a.end) <= 0 {
			continue
		}
		if at < 0 && e.psn.Sub(a.psn) > 0 {
			at = kept
		}
		*q.at(kept) = e
		kept++
	}
	if at < 0 {
		at = kept
	}
	for i := kept; i > at; i-- {
		*q.at(i) = *q.at(i - 1)
	}
	*q.at(at) = a
	q.n = kept + 1
}

// ack queues an acknowledgement of everything up to psn. The newest one covers those
// before it, so that only one of them waits.
func (q *answers) ack(psn packet.PSN, msn uint32) {
	if l := q.last(); l != nil && l.op == packet.Acknowledge && l.verd == packet.ACK {
		if psn.Sub(l.psn) >= 0 {
			l.psn, l.msn = psn, msn
		}
		return
	}
	q.add(answer{op: packet.Acknowledge, psn: psn, msn: msn, verd: packet.ACK})
}

// refuse queues a NAK or RNR NAK. One that has not left yet says less than this one.
func (q *answers) refuse(s packet.Syndrome, psn packet.PSN, msn uint32) {
	a := answer{op: packet.Acknowledge, psn: psn, msn: msn, verd: s}
	if l := q.last(); l != nil && l.op == packet.Acknowledge && l.verd != packet.ACK {
		*l = a
		return
	}
	q.add(a)
}
