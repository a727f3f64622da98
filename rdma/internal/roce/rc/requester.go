package rc

import (
	"errors"
	"fmt"
	"time"

	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// RequesterParams is what a requester has to know of its connection.
type RequesterParams struct {
	RemoteQPN uint32
	MTU       packet.MTU
	PSN       packet.PSN // of our first request
	Depth     int        // READs and atomics that the peer takes at a time; 0: none, they fail
	Window    int        // packets in flight at most
	// MaxRead is for how many packets one READ request asks at most, so that the answers
	// fit the receive buffer of a socket: responders send them in one go. Longer READs go
	// out as several requests, each of which counts for Depth. 0: no bound.
	MaxRead int
	// AckTimeout is how long to wait for an answer before everything that is in flight
	// is sent again; 0: for ever. On the wire it is 4.096 µs·2^n (IBA vol. 1 §9.7.6.1.3).
	AckTimeout time.Duration
	Retries    int // timeouts and NAKs for lost packets in a row, without any progress
	RNRRetries int // RNR NAKs in a row; Forever means what it says
	// Path is the way to the peer, Intake that of the answers to READs to this side's socket.
	// nil: nobody shares them.
	Path, Intake *Path
	// Local executes a request that does not go to the wire. Everything before it has
	// been answered.
	Local func(*verbs.WQE) verbs.Status
}

// Forever is the RNRRetries of rdma_cm: the code 7 (§9.7.5.2.8).
const Forever = 7

// Requester is the half of a connection that executes the send queue: it cuts requests
// into packets and completes them as the answers come. Packets are numbered by PSNs that
// are unwrapped to 64 bits; verbs.WQE.End counts them. Whatever is lost is made good by
// going back to the oldest packet without an answer and sending everything from there on
// again (§9.7.5.1.4, §9.7.6): the entries of the queue say what that was.
//
// It is not for concurrent use; QP.Mu is held around all its methods. Times are those of
// any clock that only goes forward.
type Requester struct {
	qp  *verbs.QP
	cfg RequesterParams
	mtu uint64

	starts []uint64 // by place in the send queue: PSN of an entry's first packet
	una    uint64   // everything below it has been answered
	top    uint64   // behind the newest packet that was ever sent
	cur    position // of the next packet to send
	asked  uint64   // PSN behind the last packet with AckReq
	reads  int      // requests of READs and atomics in flight
	await  uint64   // packets of their answers that have been asked for and not come

	window  window
	rtt     rtt
	carried uint64    // the largest payload of a packet that has been answered, bytes
	noted   [2]uint64 // packets in flight as the Path to the peer knows them, and Intake
	retries int
	implied uint64 // una when a gap between answers was last taken for a loss
	rnrs    int
	rnrEnd  time.Duration // nothing is sent before; 0: no RNR NAK holds
	since   time.Duration // when what is in flight began to wait for an answer
	halt    halt
	err     error
	stats   RequesterStats
}

// position is a place in the send queue: the byte at which a packet begins.
type position struct {
	i   uint32
	off uint64 // bytes; of a READ, those that have come
}

// RequesterStats count, by the names of rxe's counters where it has one.
type RequesterStats struct {
	Packets, Repeated uint64
	Timeouts          uint64
	Probes            uint64 // packets sent once more because an answer was late, before a timeout
	SeqNAKs           uint64 // rcvd_seq_err
	RNRs              uint64 // rcvd_rnr_err
	LostAnswers       uint64 // gaps between answers, which ask for a repetition as a NAK does
	Faults            uint64 // answers for memory that cannot be touched
	Strange           uint64 // answers to nothing that was asked
}

// Exceeded is why a connection has ended whose peer does not answer, or has no buffer.
type Exceeded struct {
	RNR     bool
	Retries int
	// Bytes is the payload of the packet that was not answered, if none as large as that has
	// been, and 0 otherwise; Carried the largest that has.
	Bytes, Carried int
}

func (e *Exceeded) Error() string {
	if e.RNR {
		return fmt.Sprintf("rdma: the peer had no receive buffer, asked %d times", e.Retries+1)
	}
	s := fmt.Sprintf("rdma: the peer did not answer, asked %d times", e.Retries+1)
	if e.Bytes > alwaysFits {
		s += fmt.Sprintf("; no packet with %d bytes of payload has come through, the largest that has had %d: the path may drop large packets (compare the MTUs of its interfaces, or choose a smaller path MTU)", e.Bytes, e.Carried)
	}
	return s
}

// alwaysFits is what any path carries: the datagrams that have made the connection were larger.
const alwaysFits = 256

// Unwrap is verbs.ErrTimeout for a peer that is silent.
func (e *Exceeded) Unwrap() error {
	if e.RNR {
		return nil
	}
	return verbs.ErrTimeout
}

// NewRequester makes the machine for a queue pair with an empty send queue.
func NewRequester(qp *verbs.QP, cfg RequesterParams) *Requester {
	// Unwrapped PSNs begin one round up, so that the one before the first is a number.
	first := uint64(packet.PSNMask) + 1 + uint64(cfg.PSN)
	n := 1
	for n < qp.MaxSend {
		n *= 2
	}
	return &Requester{qp: qp, cfg: cfg, mtu: uint64(cfg.MTU.Bytes()), starts: make([]uint64, n), una: first, top: first, asked: first, window: newWindow(cfg.Window)}
}

// Err is why the connection is over.
func (r *Requester) Err() error { return r.err }

// Stats returns the counters.
func (r *Requester) Stats() RequesterStats { return r.stats }

// Window is how many packets may be in flight.
func (r *Requester) Window() int { return r.window.size() }

// RTT is the smoothed round-trip time; 0: not measured yet.
func (r *Requester) RTT() time.Duration { return r.rtt.srtt }

// Reads is the number of requests of READs and atomics in flight.
func (r *Requester) Reads() int { return r.reads }

// Answered grows with every packet that has been answered.
func (r *Requester) Answered() uint64 { return r.una }

// Idle says whether everything has been answered.
func (r *Requester) Idle() bool { return r.una == r.top }

func (r *Requester) start(i uint32) *uint64 { return &r.starts[i&uint32(len(r.starts)-1)] }

// packets is how many PSNs a request takes (§9.7.2).
func (r *Requester) packets(e *verbs.WQE) uint64 {
	if e.Op == verbs.OpFetchAdd || e.Op == verbs.OpCmpSwap {
		return 1
	}
	return max(1, (uint64(e.Length)+r.mtu-1)/r.mtu)
}

// Next makes o the next packet to send; false when there is none now. The caller sends
// it and calls Release, before anything else of the Requester.
func (r *Requester) Next(o *Outgoing, now time.Duration) bool {
	if r.err != nil || r.rnrEnd != 0 {
		return false
	}
	q := &r.qp.SQ
	if q.Head == q.Next {
		r.cur = position{i: q.Next} // the ring begins anew now and then
	}
	for r.cur.i != q.Tail {
		e := q.At(r.cur.i)
		if r.cur.i == q.Next && !r.begin(e) {
			return false
		}
		if e.Done { // without a packet
			r.cur.i++
			continue
		}
		psn := *r.start(r.cur.i) + r.cur.off/r.mtu
		if psn >= r.una+uint64(r.window.size()) || r.halt.err != nil && psn >= r.halt.from || r.rtt.probing && psn > r.una {
			return false
		}
		if psn == r.top && !r.room(e) {
			return false
		}
		if e.Op == verbs.OpRead && r.cur.off > 0 && psn == r.top {
			if r.reads >= r.cfg.Depth {
				return false
			}
			r.reads++ // the first piece was counted with the READ
		}
		if r.top == r.una {
			r.since = now
		}
		r.build(o, e, psn, now)
		return true
	}
	return false
}

// room says whether others leave room for a new packet of e.
func (r *Requester) room(e *verbs.WQE) bool {
	if e.Op == verbs.OpRead {
		return r.cfg.Intake == nil || r.cfg.Intake.allows(r.await)
	}
	return r.cfg.Path == nil || r.cfg.Path.allows(r.top-r.una-r.await)
}

// note tells the paths what is in flight.
func (r *Requester) note() {
	if w := r.cfg.Path; w != nil {
		out := r.top - r.una - r.await
		w.moved(r.noted[0], out)
		r.noted[0] = out
	}
	if in := r.cfg.Intake; in != nil {
		in.moved(r.noted[1], r.await)
		r.noted[1] = r.await
	}
}

// Leave takes what is in flight off the paths: the connection is over.
func (r *Requester) Leave() {
	r.una, r.await = r.top, 0
	r.note()
	r.cfg.Path, r.cfg.Intake = nil, nil
}

// begin starts the next entry of the queue; false when it has to wait.
func (r *Requester) begin(e *verbs.WQE) bool {
	q := &r.qp.SQ
	switch {
	case e.Op.Local() && q.Head != q.Next, e.Flags&verbs.FlagFence != 0 && r.reads > 0, e.Op.Answered() && r.reads > 0 && r.reads >= r.cfg.Depth:
		return false
	case !message.LocalKeys(r.qp, e.LKeys, e.Segs, e.Op.Answered()):
		r.stop(halt{e: e, from: r.top, status: verbs.StatusLocalProtection, err: message.ErrLKey})
		return false
	}
	first := r.top
	*r.start(q.Next) = first
	q.Next++
	if unserved := e.Op.Answered() && r.cfg.Depth == 0; unserved || e.Op.Local() {
		e.Status, e.Done, e.End = verbs.StatusUnsupported, true, first
		if !unserved {
			e.Status = r.cfg.Local(e)
		}
		r.qp.SweepLocked(r.una)
		return true
	}
	if e.Op.Answered() {
		r.reads++
	}
	e.End = first + r.packets(e)
	return true
}

// Unreadable says that the payload of the packet that Next has made last cannot be read:
// its request fails, and the connection is over, once all before it has been answered.
func (r *Requester) Unreadable(o *Outgoing) {
	psn := r.una + uint64(o.Packet.PSN.Sub(packet.PSN(r.una&packet.PSNMask)))
	q := &r.qp.SQ
	for i := q.Head; i != q.Next; i++ {
		if e := q.At(i); e.End > psn && !e.Done {
			r.stop(halt{e: e, from: *r.start(i), status: verbs.StatusLocalFault, err: errUnreadable})
			return
		}
	}
}

// halt is a request that cannot be sent, for a reason of this side. What lies before it
// is sent, repeated and completed, and then the connection ends.
type halt struct {
	e      *verbs.WQE
	from   uint64 // PSN of its first packet
	status verbs.Status
	err    error
}

func (r *Requester) stop(h halt) {
	if r.halt.err == nil {
		r.halt = h
		r.stopped()
	}
}

// stopped is called when more has been answered.
func (r *Requester) stopped() {
	if h := &r.halt; h.err != nil && r.err == nil && r.una >= h.from {
		h.e.Status, r.err = h.status, h.err
	}
}

var errUnreadable = errors.New("rdma: memory that was to be sent cannot be read")

// build makes the packet at r.cur, and moves on.
func (r *Requester) build(o *Outgoing, e *verbs.WQE, psn uint64, now time.Duration) {
	o.Packet = packet.Packet{BTH: packet.BTH{PKey: packet.DefaultPKey, QPN: r.cfg.RemoteQPN, PSN: packet.PSN(psn & packet.PSNMask)}}
	p, behind := &o.Packet, psn+1
	switch e.Op {
	case verbs.OpRead:
		p.Op, p.AckReq = packet.ReadRequest, true
		behind = r.pieceEnd(e, psn)
		p.RETH = packet.RETH{VA: e.Remote.TO + r.cur.off, RKey: e.Remote.STag, Len: uint32(min(uint64(e.Length)-r.cur.off, (behind-psn)*r.mtu))}
	case verbs.OpFetchAdd, verbs.OpCmpSwap:
		p.Op, p.AckReq = packet.FetchAdd, true
		p.AtomicETH = packet.AtomicETH{VA: e.Remote.TO, RKey: e.Remote.STag, SwapOrAdd: e.Atom.Data}
		if e.Op == verbs.OpCmpSwap {
			p.Op, p.AtomicETH.Compare = packet.CompareSwap, e.Atom.Compare
		}
	default:
		message.Segment(o, e, r.cur.off, int(r.mtu))
		p.AckReq = p.Op.Traits()&packet.Last != 0
	}
	r.stats.Packets++
	fresh := psn == r.top
	if !fresh {
		r.stats.Repeated++
	}
	if fresh && e.Op.Answered() {
		r.await += behind - psn
	}
	r.top = max(r.top, behind)
	if behind == e.End {
		r.cur = position{i: r.cur.i + 1}
	} else {
		r.cur.off += (behind - psn) * r.mtu
	}
	// An answer is asked for at the end of a message, and twice in a window.
	if behind-r.asked >= uint64(max(1, r.window.size()/2)) || r.rtt.probing {
		p.AckReq = true
	}
	if p.AckReq {
		r.asked = behind
		if fresh {
			r.rtt.begin(psn, now)
		}
	}
	r.note()
}

// pieceEnd is the PSN behind those that the READ request for psn of e asks for. Where a
// READ is cut depends on nothing but the place: what is asked for once more must lie
// within one request of before, or a responder does not know it again (§9.7.5.1.2).
func (r *Requester) pieceEnd(e *verbs.WQE, psn uint64) uint64 {
	if r.cfg.MaxRead == 0 {
		return e.End
	}
	first, n := e.End-r.packets(e), uint64(r.cfg.MaxRead)
	return min(e.End, psn+n-(psn-first)%n)
}
