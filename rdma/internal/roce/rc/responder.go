package rc

import (
	"fmt"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
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
	in     message.In // the SENDs and WRITEs
	silent bool       // a NAK has named expect: nothing ahead of it is answered any more
	told   packet.PSN // while silent: the packet that the NAK was the answer to
	again  int        // how often the NAK was repeated
	eager  int        // packets that are still acknowledged one by one
	err    error

	answers   answers
	resources resources
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
	Faults     uint64 // packets of WRITEs for memory that cannot be touched
	NoRoom     uint64 // dropped because the peer does not take its answers
	Foreign    uint64 // dropped as they are of no reliable connection
}

// NewResponder makes the machine for a queue pair, whose Mem, PD, Dev and queues are
// set.
func NewResponder(qp *verbs.QP, cfg Params) *Responder {
	r := &Responder{qp: qp, cfg: cfg, mtu: cfg.MTU.Bytes(), expect: cfg.PSN}
	r.in.Init(qp, cfg.MTU)
	r.answers.init(cfg.Resources)
	r.resources.ring = make([]resource, cfg.Resources)
	return r
}

// Pending says whether there is an answer to send.
func (r *Responder) Pending() bool { return r.answers.n > 0 }

// Err is why the connection is over: *Refused, or an error of memory. The peer has been,
// or with the next packet of Next is, told of it.
func (r *Responder) Err() error { return r.err }

// Stats returns the counters.
func (r *Responder) Stats() Stats {
	s := r.stats
	s.Faults = r.in.Faults()
	return s
}

// TakeWCs moves the receive completions since the last call behind wcs.
func (r *Responder) TakeWCs(wcs []verbs.WC) []verbs.WC { return r.in.TakeWCs(wcs) }

// Receive executes one packet of a request. Its ICRC, addresses and queue pair number
// have been checked. Nothing of it is kept.
func (r *Responder) Receive(p *packet.Packet) {
	if r.err != nil {
		return
	}
	if p.Op.Service() != packet.RC {
		// Whoever is at the peer's address may send datagrams: they neither end the connection
		// nor get an answer, as with rxe (check_type_state).
		r.stats.Foreign++
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

// ahead asks for what was lost, once (§9.7.5.1.4.1). When the packet that the NAK was the
// answer to comes again, or an earlier one, the peer has gone back, and the packet that it
// was asked for was lost once more: the NAK is repeated, so that the peer need not wait for
// its timer. An acknowledgement goes before the NAK, for rxe's sake: see eagerFor.
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
		a := answer{op: packet.ReadResponseOnly, psn: p.PSN, end: p.PSN.Add(r.packets(p.RETH.Len)), msn: r.msn, reth: p.RETH, dup: true}
		if message.Allowed(r.qp, &p.RETH, mem.RemoteRead) != mem.None {
			// The key has been revoked since. A peer that still waits is told, as Linux' rxe does
			// it, and need not ask until it gives up. One that does not has sent this before it got
			// the answer, and passes over the NAK: no reason for the connection to end here. Of the
			// rest of a READ there is no NAK (see broken): who goes on asking for that does wait.
			if was.psn != p.PSN {
				if was.rest++; was.rest == restAsked {
					r.broken(message.MemoryFault, p.PSN, fmt.Sprintf("key %#08x was revoked before the peer had all of it", p.RETH.RKey))
				}
				return
			}
			a.op, a.verd = packet.Acknowledge, message.MemoryFault
		}
		r.answers.again(a)
	case t&packet.Atomic != 0:
		if was := r.resources.find(p.PSN); was != nil && was.atom {
			r.answers.again(answer{op: packet.AtomicAcknowledge, psn: p.PSN, end: p.PSN.Add(1), msn: r.msn, verd: packet.ACK, orig: was.orig, dup: true})
		}
	case r.resources.between(p.PSN, r.expect):
		// An acknowledgement of what lies behind a READ would say that the READ has
		// been answered.
		r.answers.ack(p.PSN, r.msn)
	default:
		r.answers.ack(r.expect.Add(-1), r.msn)
	}
}

// restAsked is how often a peer may ask for the rest of a READ whose key has been revoked until
// that is no copy that a network has made, or held back.
const restAsked = 3

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
	case t&(packet.Send|packet.Write) != 0:
		ok = r.message(p, t)
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

// message executes a packet of a SEND or WRITE.
func (r *Responder) message(p *packet.Packet, t packet.Traits) bool {
	f := r.in.Execute(p, t)
	switch {
	case f == nil:
		return true
	case f == message.NoBuffer: // the peer is to come again (§9.7.5.2.8)
		r.stats.RNRs++
		r.silent, r.told = true, p.PSN // packets behind it are no sign of a loss until it comes again
		r.answers.refuse(packet.RNR|packet.Syndrome(r.cfg.MinRNR), p.PSN, r.msn)
		return false
	case f.Syndrome == packet.ACK:
		r.err = &Refused{Syndrome: f.Syndrome, PSN: p.PSN, Op: p.Op, Reason: f.Reason}
		return true
	}
	r.in.Fail(f.Status)
	r.refuse(f.Syndrome, p, f.Reason)
	return false
}

// fits looks at whether a packet may come here at all. The result says what is wrong.
func (r *Responder) fits(p *packet.Packet, t packet.Traits) string {
	if t&packet.Response != 0 || t&(packet.Send|packet.Write|packet.Read|packet.Atomic) == 0 {
		return "no request of a reliable connection"
	}
	return r.in.Misfit(p, t)
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
func (r *Responder) Flush() { r.in.Fail(verbs.StatusFlushed) }

// find is the region that the peer's access is for; without a fault it is held.
func (r *Responder) find(rkey uint32, va, n uint64, want mem.Access) (*mem.Region, uint64, mem.Fault) {
	return message.Find(r.qp, rkey, va, n, want)
}

// readable says whether a whole READ may go on, and refuses it otherwise.
func (r *Responder) readable(p *packet.Packet) bool {
	h := &p.RETH
	f := message.Allowed(r.qp, h, mem.RemoteRead)
	if f != mem.None {
		r.refuse(message.MemoryFault, p, fmt.Sprintf("%d bytes at %#x of key %#08x: %v", h.Len, h.VA, h.RKey, f))
	}
	return f == mem.None
}
