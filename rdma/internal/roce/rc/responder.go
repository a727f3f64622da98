package rc

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Params is what a responder has to know of its connection.
type Params struct {
	RemoteQPN uint32          // where answers go
	MTU       packet.MTU      // of the path, as agreed on
	PSN       packet.PSN      // of the peer's first request
	Resources int             // READs and atomics that the peer may have outstanding; 0: none
	MinRNR    packet.RNRTimer // how long a peer waits that met no receive buffer
}

// Responder is the half of a connection that executes the peer's requests. It is not
// for concurrent use. It takes receive buffers by TakeRecv, and looks at nothing else of
// the queue pair that changes.
type Responder struct {
	qp  *verbs.QP
	cfg Params
	mtu int

	expect packet.PSN // of the next packet to execute
	msn    uint32     // messages executed
	msg    message    // the one whose packets are coming
	silent bool       // a NAK has named expect: nothing ahead of it is answered any more
	told   packet.PSN // while silent: the packet that it was said to
	again  int        // how often it was said once more
	eager  int        // packets that are still acknowledged one by one
	err    error

	answers   answers
	resources resources
	wcs       []verbs.WC
	stats     Stats
}

// eagerFor is for how many packets each one is acknowledged after a loss or a
// duplicate was seen. rxe retransmits at once for the first NAK after an
// acknowledgement, and for any other one when its timer runs out, 2 s later.
const eagerFor = 1024

// Stats count packets, by the names of rxe's counters where it has one.
type Stats struct {
	Requests   uint64
	OutOfSeq   uint64 // out_of_seq_request: ahead of the expected PSN
	Duplicates uint64 // duplicate_request
	RNRs       uint64 // send_rnr_err
	NoRoom     uint64 // dropped because the peer does not take its answers
}

// NewResponder makes the machine for a queue pair, whose Mem, PD, Dev and queues are
// set.
func NewResponder(qp *verbs.QP, cfg Params) *Responder {
	r := &Responder{qp: qp, cfg: cfg, mtu: cfg.MTU.Bytes(), expect: cfg.PSN}
	r.answers.init(cfg.Resources)
	r.resources.ring = make([]resource, cfg.Resources)
	return r
}

// Err is why the connection is over: *Refused, or an error of memory. The peer has been,
// or with the next packet of Next is, told of it.
func (r *Responder) Err() error { return r.err }

// Stats returns the counters.
func (r *Responder) Stats() Stats { return r.stats }

// TakeWCs moves the receive completions since the last call behind wcs.
func (r *Responder) TakeWCs(wcs []verbs.WC) []verbs.WC {
	wcs = append(wcs, r.wcs...)
	r.wcs = r.wcs[:0]
	return wcs
}

// Receive executes one packet of a request. Its ICRC, addresses and queue pair number
// have been checked. Nothing of it is kept.
func (r *Responder) Receive(p *packet.Packet) {
	if r.err != nil {
		return
	}
	if !r.answers.room() {
		r.stats.NoRoom++
		return // as if it had been lost
	}
	r.stats.Requests++
	switch d := p.PSN.Sub(r.expect); {
	case d > 0:
		r.ahead(p.PSN)
	case d < 0:
		r.duplicate(p)
	default:
		r.execute(p)
	}
}

// saidAgain is how often a NAK for the same packet may be repeated. Packets that somebody
// else has forged could ask for more, and each costs a requester one of its retries.
const saidAgain = 3

// ahead asks for what was lost, once (§9.7.5.1.4.1). When the packet that it said so to
// comes again, or one before it, the peer has gone back, and what it was asked for was
// lost once more: it is asked again, or its timer would have to see to it. An
// acknowledgement goes before the NAK, for rxe's sake: see eagerFor.
func (r *Responder) ahead(psn packet.PSN) {
	r.stats.OutOfSeq++
	switch {
	case !r.silent:
		r.again = 0
	case psn.Sub(r.told) > 0 || r.again == saidAgain:
		return
	default:
		r.again++
	}
	r.told = psn
	r.silent, r.eager = true, eagerFor
	if r.executed() {
		r.answers.ack(r.expect.Add(-1), r.msn)
	}
	r.answers.refuse(packet.NAKSequence, r.expect, r.msn)
}

// executed says whether the packet before the expected one was one to acknowledge: it
// was there, and no part of a READ or an atomic, which have answers of their own.
func (r *Responder) executed() bool {
	return r.expect != r.cfg.PSN && r.resources.find(r.expect.Add(-1)) == nil
}

// duplicate answers a request again that has been executed (§9.7.5.1.2).
func (r *Responder) duplicate(p *packet.Packet) {
	r.stats.Duplicates++
	r.eager = eagerFor
	switch t := p.Op.Traits(); {
	case t&packet.Read != 0:
		was := r.resources.find(p.PSN)
		if was == nil || was.atom || !was.covers(&p.RETH, p.PSN, r.mtu) {
			return // too old to be remembered, or another request under its number
		}
		r.answers.dropFrom(p.PSN)
		r.answers.add(answer{op: packet.ReadResponseOnly, psn: p.PSN, msn: r.msn, reth: p.RETH})
	case t&packet.Atomic != 0:
		if was := r.resources.find(p.PSN); was != nil && was.atom {
			r.answers.dropFrom(p.PSN)
			r.answers.add(answer{op: packet.AtomicAcknowledge, psn: p.PSN, msn: r.msn, verd: packet.ACK, orig: was.orig})
		}
	case r.resources.between(p.PSN, r.expect):
		// An acknowledgement of what lies behind a READ would say that the READ has
		// been answered.
		r.answers.ack(p.PSN, r.msn)
	default:
		r.answers.ack(r.expect.Add(-1), r.msn)
	}
}

// covers says whether a READ that asks for h from psn on is the remembered one, or what
// was missing of it.
func (w *resource) covers(h *packet.RETH, psn packet.PSN, mtu int) bool {
	at := uint64(psn.Sub(w.psn)) * uint64(mtu)
	return h.RKey == w.reth.RKey && h.VA == w.reth.VA+at && at+uint64(h.Len) <= uint64(w.reth.Len)
}

// execute executes the expected packet.
func (r *Responder) execute(p *packet.Packet) {
	t, n := p.Op.Traits(), 1
	if why := r.fits(p, t); why != "" {
		r.refuse(packet.NAKInvalidRequest, p, why)
		return
	}
	ok := false
	switch {
	case t&packet.Send != 0:
		ok = r.send(p, t)
	case t&packet.Write != 0:
		ok = r.write(p, t)
	case t&packet.Read != 0:
		ok, n = r.read(p)
	case t&packet.Atomic != 0:
		ok = r.atomic(p)
	}
	if !ok {
		return
	}
	r.expect, r.silent = r.expect.Add(n), false
	if t&(packet.Read|packet.Atomic) != 0 {
		return
	}
	if t&packet.Last != 0 {
		r.msn = (r.msn + 1) & packet.PSNMask
	}
	if r.eager > 0 {
		r.eager--
	} else if !p.AckReq {
		return
	}
	r.answers.ack(p.PSN, r.msn)
}

// fits looks at the opcode's place in its message, and at the length that it has there
// (§9.7.4.1.3, §9.7.4.1.6). The result says what is wrong.
func (r *Responder) fits(p *packet.Packet, t packet.Traits) string {
	first, last := t&packet.First != 0, t&packet.Last != 0
	switch n := len(p.Payload); {
	case p.Op.Service() != packet.RC || t&packet.Response != 0 || t&(packet.Send|packet.Write|packet.Read|packet.Atomic) == 0:
		return "no request of a reliable connection"
	case first && r.msg.kind != 0:
		return "the message before has not ended"
	case !first && r.msg.kind != t&(packet.Send|packet.Write):
		return "no such message has begun"
	case !last && n != r.mtu:
		return fmt.Sprintf("%d bytes in a packet that is not the last, with a path MTU of %d", n, r.mtu)
	case n > r.mtu:
		return fmt.Sprintf("%d bytes with a path MTU of %d", n, r.mtu)
	case last && !first && n == 0:
		return "nothing in the last packet of a message"
	}
	return ""
}

// refuse ends the connection (§9.9.3: a class of error that both ends feel).
func (r *Responder) refuse(s packet.Syndrome, p *packet.Packet, why string) {
	r.end(&Refused{Syndrome: s, PSN: p.PSN, Op: p.Op, Reason: why}, s, p.PSN)
}

func (r *Responder) end(err error, s packet.Syndrome, psn packet.PSN) {
	r.err = err
	r.answers.refuse(s, psn, r.msn)
	r.Flush()
}

// Flush completes the receive buffer of a message that will not go on: the connection
// is over.
func (r *Responder) Flush() {
	if r.msg.taken {
		r.complete(verbs.WC{Opcode: verbs.WCRecv, Status: verbs.StatusFlushed})
	}
	r.msg.kind = 0
}

// find is the region that the peer's access is for; without a fault it is held.
func (r *Responder) find(rkey uint32, va, n uint64, want mem.Access) (*mem.Region, uint64, mem.Fault) {
	reg := r.qp.Dev.Table.Lookup(rkey)
	if reg == nil {
		return nil, 0, mem.NoRegion
	}
	reg.Hold()
	off, f := reg.Check(r.qp.PD, &r.qp.Mem, rkey, va, n, want)
	if f != mem.None {
		reg.Release()
		return nil, 0, f
	}
	return reg, off, mem.None
}

// allowed is find for a whole message that begins: whatever its packets do later, the
// first one is refused if any of them would be.
func (r *Responder) allowed(p *packet.Packet, rkey uint32, va, n uint64, want mem.Access) bool {
	if n == 0 {
		return true // neither key nor address count then (§9.7.4.1.5)
	}
	reg, _, f := r.find(rkey, va, n, want)
	if f != mem.None {
		r.refuse(memoryFault, p, fmt.Sprintf("%d bytes at %#x of key %#08x: %v", n, va, rkey, f))
		return false
	}
	reg.Release()
	return true
}
