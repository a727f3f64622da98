package rc

import (
	"encoding/binary"
	"fmt"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// Receive takes one packet of an answer. Its ICRC, addresses and queue pair number have
// been checked. Nothing of it is kept.
func (r *Requester) Receive(p *packet.Packet, now time.Duration) {
	if r.err != nil {
		return
	}
	t := p.Op.Traits()
	d := p.PSN.Sub(packet.PSN(r.una & packet.PSNMask))
	psn := r.una + uint64(d)
	switch {
	case p.Op.Service() != packet.RC || t&packet.Response == 0:
		r.stats.Strange++
	case d < 0:
		// An acknowledgement that a later one has overtaken: what it is for has been answered.
	case t&packet.Ack != 0:
		r.acknowledge(p, psn, now)
	case psn >= r.top:
		r.stats.Strange++
	default:
		r.data(p, t, psn, now)
	}
}

// acknowledge takes an ACK or NAK.
func (r *Requester) acknowledge(p *packet.Packet, psn uint64, now time.Duration) {
	s := p.AETH.Syndrome
	// A NAK for a lost packet names the PSN that the peer expects, which may be one that has not been sent yet.
	if psn > r.top || psn == r.top && s != packet.NAKSequence {
		r.stats.Strange++
		return
	}
	switch {
	case s.IsACK():
		r.advance(psn+1, now)
	case s.IsRNR():
		if !r.advance(psn, now) {
			return
		}
		r.stats.RNRs++
		if r.rnrEnd != 0 {
			return // it answers what was sent before the NAK that holds
		}
		if r.rnrs++; r.rnrs > r.cfg.RNRRetries && r.cfg.RNRRetries != Forever {
			r.fail(psn, verbs.StatusRNRRetryExceeded, &Exceeded{RNR: true, Retries: r.cfg.RNRRetries})
			return
		}
		r.rtt.abandon()
		r.rewind()
		r.rnrEnd = now + s.Timer().Duration()
	case s == packet.NAKSequence:
		if !r.advance(psn, now) {
			return
		}
		r.stats.SeqNAKs++
		r.lost(now)
		r.retry(now)
	case s.IsNAK():
		if !r.advance(psn, now) {
			return
		}
		r.fail(psn, nakStatus(s), &Refused{Syndrome: s, PSN: p.PSN, Op: p.Op, Reason: "the peer refused the request with this PSN"})
	default:
		r.stats.Strange++
	}
}

// nakStatus is what a NAK means for the request (§9.9.2.1, table 60).
func nakStatus(s packet.Syndrome) verbs.Status {
	switch s {
	case packet.NAKInvalidRequest:
		return verbs.StatusRemoteInvalid
	case packet.NAKRemoteAccess:
		return verbs.StatusRemoteAccess
	}
	return verbs.StatusRemoteOp
}

// advance notes that everything below psn has been answered. It stops at a READ or
// atomic whose answer has not come: that was lost (§9.7.5.1.1, an implied NAK), and is
// asked for again; the result is false then.
func (r *Requester) advance(psn uint64, now time.Duration) bool {
	if psn <= r.una {
		return true
	}
	q := &r.qp.SQ
	lost := false
	for i := q.Head; i != q.Next; i++ {
		e := q.At(i)
		if e.Op.Answered() && !e.Done && e.End > r.una && *r.start(i) < psn {
			psn, lost = max(r.una, *r.start(i)), true
			break
		}
	}
	if psn > r.una { // psn may have been set back to the first answer that is missing
		r.progress(psn, now)
		r.qp.SweepLocked(r.una)
		r.stopped()
	}
	if lost {
		r.gap(now)
	}
	return !lost
}

// progress notes that everything below psn has been answered.
func (r *Requester) progress(psn uint64, now time.Duration) {
	n := psn - r.una
	r.carry(psn)
	r.window.answered(int(n))
	r.una, r.since = psn, now
	r.retries, r.rnrs = 0, 0
	took := r.rtt.answered(psn, now)
	if w := r.cfg.Path; w != nil {
		w.answered(n, took)
	}
	r.note()
	r.forward()
}

// carry notes how large the packets below psn were. Soon they are as large as any.
func (r *Requester) carry(psn uint64) {
	q := &r.qp.SQ
	for i := q.Head; r.carried < r.mtu && i != q.Next && *r.start(i) < psn; i++ {
		if e := q.At(i); !e.Op.Local() {
			r.carried = max(r.carried, min(r.mtu, uint64(e.Length)))
		}
	}
}

// silent is the error for a peer that does not answer the packet at una.
func (r *Requester) silent() *Exceeded {
	x, q := &Exceeded{Retries: r.cfg.Retries}, &r.qp.SQ
	for i := q.Head; i != q.Next; i++ {
		if e := q.At(i); e.End > r.una && !e.Op.Local() {
			if n := min(r.mtu, uint64(e.Length)-(r.una-*r.start(i))*r.mtu); n > r.carried {
				x.Bytes, x.Carried = int(n), int(r.carried)
			}
			break
		}
	}
	return x
}

// lost takes the window, and the bound of the way, down.
func (r *Requester) lost(now time.Duration) {
	r.window.lost()
	if w := r.cfg.Path; w != nil {
		w.lost(now)
	}
}

// ReceiveCNP takes a congestion notification packet (annex A17.9.3): routers have marked packets of
// this side. It reports whether less may be in flight now.
func (r *Requester) ReceiveCNP(now time.Duration) bool {
	if r.err != nil || r.Idle() || r.cfg.Path != nil && !r.cfg.Path.congested(now) {
		return false
	}
	r.window.lost()
	return true
}

// gap asks again for answers that were lost, from the oldest one on. What was on its way
// shows the same gap once more; a second loss is for the timer.
func (r *Requester) gap(now time.Duration) {
	if r.implied == r.una {
		return
	}
	r.implied = r.una
	r.stats.LostAnswers++
	r.lost(now)
	r.retry(now)
}

// forward takes the position past what has been answered since it was taken back.
func (r *Requester) forward() {
	if r.cur.i != r.qp.SQ.Next && *r.start(r.cur.i)+r.cur.off/r.mtu < r.una {
		r.rewind()
	}
}

// rewind takes the position back to the oldest packet without an answer (go-back-N).
func (r *Requester) rewind() {
	q := &r.qp.SQ
	for i := q.Head; i != q.Next; i++ {
		if e := q.At(i); e.End > r.una && !e.Done {
			r.cur = position{i: i, off: (r.una - *r.start(i)) * r.mtu}
			r.asked = r.una
			return
		}
	}
	r.cur = position{i: q.Next}
}

// retry sends what is in flight again, as often as that may be without progress.
func (r *Requester) retry(now time.Duration) {
	if r.retries++; r.retries > r.cfg.Retries {
		r.fail(r.una, verbs.StatusRetryExceeded, r.silent())
		return
	}
	r.since = now
	r.rtt.abandon()
	r.rewind()
}

// Deadline is when Tick is to be called next; false: never, as things are.
func (r *Requester) Deadline() (time.Duration, bool) {
	switch {
	case r.err != nil:
	case r.rnrEnd != 0:
		return r.rnrEnd, true
	case r.una != r.top && r.cfg.AckTimeout != 0:
		if d := r.rtt.probeAfter(r.cfg.AckTimeout); d != 0 {
			return r.since + d, true
		}
		return r.since + r.cfg.AckTimeout, true
	}
	return 0, false
}

// Tick does what is due at the time now: sending may go on after an RNR NAK, or what
// was not answered in time is sent again.
func (r *Requester) Tick(now time.Duration) {
	at, ok := r.Deadline()
	switch {
	case !ok || now < at:
	case r.rnrEnd != 0:
		r.rnrEnd, r.since = 0, now
	case r.rtt.probeAfter(r.cfg.AckTimeout) != 0:
		r.stats.Probes++
		r.rtt.probe()
		r.implied = 0
		r.rewind()
	default:
		r.stats.Timeouts++
		r.implied = 0
		r.lost(now)
		r.retry(now)
	}
}

// fail ends the connection for the request that psn belongs to.
func (r *Requester) fail(psn uint64, s verbs.Status, err error) {
	r.err = err
	q := &r.qp.SQ
	for i := q.Head; i != q.Next; i++ {
		if e := q.At(i); e.End > psn && !e.Op.Local() {
			e.Status = s
			return
		}
	}
}

// data takes a packet of a READ's answer, or an atomic's.
func (r *Requester) data(p *packet.Packet, t packet.Traits, psn uint64, now time.Duration) {
	q := &r.qp.SQ
	for i := q.Head; i != q.Next; i++ {
		e := q.At(i)
		if e.Op.Local() || e.End <= psn {
			continue
		}
		if !e.Op.Answered() || (e.Op == verbs.OpRead) != (t&packet.Read != 0) {
			r.stats.Strange++ // an answer of another kind than the question
			return
		}
		// This answer implies those before it, and of a READ the packets before this one: if one
		// of them has not come, it was lost.
		if !r.advance(*r.start(i), now) || psn > r.una {
			if r.err == nil && r.una >= *r.start(i) {
				r.gap(now)
			}
			return
		}
		if e.Op == verbs.OpRead {
			r.readData(p, e, (psn-*r.start(i))*r.mtu, psn+1 == r.pieceEnd(e, psn))
		} else {
			r.original(p, e)
		}
		if r.err != nil {
			return
		}
		if e.Op != verbs.OpRead || psn+1 == r.pieceEnd(e, psn) {
			r.reads--
		}
		e.Done = psn+1 == e.End
		r.await--
		r.progress(psn+1, now)
		if e.Done {
			r.qp.SweepLocked(r.una)
		}
		r.stopped()
		return
	}
	r.stats.Strange++
}

// readData places what a READ's answer carries from off on. Its place follows from the
// PSN: the opcode only has to agree on whether it is the last that its request asked for
// (rxe goes on with Middle where a repeated request begins anew with First).
func (r *Requester) readData(p *packet.Packet, e *verbs.WQE, off uint64, last bool) {
	want := min(uint64(e.Length)-off, r.mtu)
	if uint64(len(p.Payload)) != want || last != (p.Op.Traits()&packet.Last != 0) {
		r.err = fmt.Errorf("rdma: %v with %d bytes where %d of a READ's %d are left", p.Op, len(p.Payload), uint64(e.Length)-off, e.Length)
		e.Status = verbs.StatusFatal
		return
	}
	switch {
	case e.Flags&verbs.FlagDiscard != 0:
		e.Status = verbs.StatusDiscarded
	case e.Status == verbs.StatusSuccess:
		r.put(e, off, p.Payload)
	}
}

// original places the value that an atomic has found.
func (r *Requester) original(p *packet.Packet, e *verbs.WQE) {
	var val [8]byte
	binary.NativeEndian.PutUint64(val[:], p.Original)
	r.put(e, 0, val[:])
}

// put copies an answer to where the request wants it. Memory that cannot be touched
// fails the request alone.
func (r *Requester) put(e *verbs.WQE, off uint64, b []byte) {
	var cur mem.Cursor
	cur.Set(e.Segs)
	cur.Skip(int(off))
	if !mem.CopyTo(&cur, b) {
		r.stats.Faults++
		e.Status = verbs.StatusLocalFault
	}
}
