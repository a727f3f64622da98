package rc

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// link is two ends and a network between them that loses, doubles, delays and damages
// packets, by a seed, in a time of its own.
type link struct {
	t         testing.TB
	rnd       *rand.Rand
	faults    faults
	now       time.Duration
	pace      float64          // bytes per second of each direction; 0: no bound
	free      [2]time.Duration // when a direction has sent what it was given
	flows     [2]*packet.Flow  // of the packets to each end
	damaged   int              // packets dropped for their ICRC
	ends      [2]*end
	inFlight  network
	delivered int
}

// faults are the shares of packets to which something happens.
type faults struct{ lost, twice, late, damaged float64 }

// all is every fault as often.
func all(share float64) faults { return faults{share, share, share, share} }

// end is a queue pair with both machines.
type end struct {
	*rig
	req *Requester
	out Outgoing

	want, got  []string // sent and received messages
	bufs       [][]byte // receive buffers, in the order in which they were posted
	ids        []uint64 // completions of the send queue
	posted     uint64
	reads      []func() // checks of what READs and atomics brought
	recvs      int
	atomics    uint64 // that the other end has posted
	bufferless bool   // receive buffers are scarce
}

const (
	linkDelay   = 100 * time.Microsecond
	linkTimeout = 10 * time.Millisecond
)

func newLink(t testing.TB, seed uint64, f faults) *link {
	return newLinkWith(t, seed, f, RequesterParams{MTU: packet.MTU256, Window: 100, AckTimeout: linkTimeout, Retries: 20})
}

func newLinkWith(t testing.TB, seed uint64, f faults, cfg RequesterParams) *link {
	l := &link{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), faults: f}
	maxRead := int(seed%3) * 2                                                            // of some, READs go in pieces, more than may be outstanding
	psn := [2]packet.PSN{packet.PSN(l.rnd.Uint32() & packet.PSNMask), packet.PSNMask - 5} // one wraps soon
	for i := range l.ends {
		g := newRig(t, Params{RemoteQPN: 1, MTU: cfg.MTU, PSN: psn[1-i], Resources: 4, MinRNR: 12})
		for j := range g.mem {
			g.mem[j] = byte(j * (i + 3))
		}
		cfg.RemoteQPN, cfg.PSN, cfg.Depth, cfg.MaxRead, cfg.RNRRetries = 1, psn[i], 4, maxRead, Forever
		cfg.Way, cfg.Intake = NewPath(cfg.MTU.Bytes()), NewIntake(cfg.MTU.Bytes(), 64<<10)
		l.ends[i] = &end{rig: g, req: NewRequester(g.qp, cfg)}
		// Over IPv6 the ICRC lets nothing through that was damaged.
		l.flows[i] = packet.NewFlow(netip.MustParseAddrPort("[fe80::1]:50000"), netip.MustParseAddrPort("[fe80::2]:4791"))
		connect(t, g.qp)
	}
	return l
}

// connect makes a queue pair take requests.
func connect(t testing.TB, qp *verbs.QP) {
	t.Helper()
	qp.SignalAll = true
	qp.Mu.Lock()
	qp.SetState(verbs.StateRTS)
	qp.Mu.Unlock()
}

// flight is a packet on its way.
type flight struct {
	at time.Duration
	n  int // keeps the order of those with one time
	to int
	b  []byte
}

type network []flight

func (q network) Len() int { return len(q) }
func (q network) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q network) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *network) Push(x any)   { *q = append(*q, x.(flight)) }
func (q *network) Pop() any {
	l := len(*q) - 1
	f := (*q)[l]
	*q = (*q)[:l]
	return f
}

// send puts a packet onto the network.
func (l *link) send(to int, o *Outgoing) {
	b := packet.Append(nil, &o.Packet, o.N)
	for _, p := range o.Payload {
		b = append(b, p...)
	}
	b = l.flows[to].Begin(b, o.Packet.Op.Len(o.N), 0).AppendTrailer(b, o.N)
	o.Release()
	copies := 1
	if l.rnd.Float64() < l.faults.lost {
		copies = 0
	} else if l.rnd.Float64() < l.faults.twice {
		copies = 2
	}
	if l.rnd.Float64() < l.faults.damaged {
		b[l.rnd.IntN(len(b))] ^= 1 << l.rnd.IntN(8)
	}
	at := l.now
	if l.pace > 0 {
		l.free[to] = max(l.free[to], l.now) + time.Duration(float64(len(b)+48)/l.pace*float64(time.Second))
		at = l.free[to]
	}
	for range copies {
		delay := linkDelay
		if l.rnd.Float64() < l.faults.late {
			delay += time.Duration(l.rnd.Int64N(int64(linkTimeout / 4)))
		}
		l.delivered++
		heap.Push(&l.inFlight, flight{at + delay, l.delivered, to, b})
	}
}

// run runs until all is done, or the connection is over.
func (l *link) run() {
	for round := 0; ; round++ {
		if round > 1e6 {
			l.t.Fatalf("no end after %v: %d in flight", l.now, len(l.inFlight))
		}
		for i, e := range l.ends {
			for e.req.Next(&e.out, l.now) {
				l.send(1-i, &e.out)
			}
			for e.Next(&e.out) {
				l.send(1-i, &e.out)
			}
		}
		if !l.step() {
			return
		}
	}
}

// step delivers a packet, or lets time pass; false when nothing will happen any more.
func (l *link) step() bool {
	next, due := time.Duration(1<<62), -1
	for i, e := range l.ends {
		if at, ok := e.req.Deadline(); ok && at < next {
			next, due = at, i
		}
	}
	if len(l.inFlight) > 0 && l.inFlight[0].at <= next {
		f := heap.Pop(&l.inFlight).(flight)
		l.now = max(l.now, f.at)
		if _, ok := l.flows[f.to].Check(f.b, 0); !ok {
			// A byte with FECN, BECN and reserved bits is not covered, and means nothing here.
			l.damaged++
			return true
		}
		p, err := packet.Parse(f.b)
		if err != nil {
			l.t.Fatal(err)
		}
		e := l.ends[f.to]
		if p.Op.Traits()&packet.Response != 0 {
			e.req.Receive(&p, l.now)
		} else {
			e.Receive(&p)
		}
		e.collect(l)
		return true
	}
	if due < 0 {
		return false
	}
	l.now = next
	l.ends[due].req.Tick(l.now)
	l.ends[due].collect(l)
	return true
}

// collect takes completions, and posts the receive buffers that they have used.
func (e *end) collect(l *link) {
	for _, wc := range e.TakeWCs(nil) {
		buf := e.bufs[wc.ID-1]
		switch {
		case wc.Status != verbs.StatusSuccess:
			e.got = append(e.got, wc.Status.String())
		case wc.Opcode == verbs.WCRecvImm:
			e.got = append(e.got, fmt.Sprintf("imm %d len %d", wc.Imm, wc.ByteLen))
		default:
			e.got = append(e.got, fmt.Sprintf("send %x imm %d %v", buf[:wc.ByteLen], wc.Imm, wc.Flags&verbs.WCWithImm != 0))
		}
		e.recvs--
	}
	for e.recvs < 1 || !e.bufferless && e.recvs < 40 {
		if e.bufferless && l.rnd.IntN(3) != 0 {
			break
		}
		e.bufs = append(e.bufs, e.post(l.t, 6000))
		e.recvs++
	}
	cq := e.qp.SendCQ
	cq.Lock()
	for wc := cq.NextLocked(); wc != nil; wc = cq.NextLocked() {
		if wc.Status != verbs.StatusSuccess {
			l.t.Errorf("request %d: %v", wc.ID, wc.Status)
		}
		e.ids = append(e.ids, wc.ID)
	}
	cq.Unlock()
}

// queue posts a request, and says whether there was room.
func (e *end) queue(op verbs.Opcode, fill func(*verbs.WQE)) bool {
	e.qp.Mu.Lock()
	defer e.qp.Mu.Unlock()
	q, err := e.qp.PostLocked(e.posted+1, op)
	if err != nil {
		return false
	}
	e.posted++
	q.Flags, q.Length, q.Remote = 0, 0, verbs.RemoteAddr{}
	fill(q)
	for _, s := range q.Segs {
		q.Length += uint32(len(s))
	}
	return true
}

// random posts a request of any kind to the other end. Each WRITE has a place of its own
// in the upper half of the memory, READs are of the lower half, which nobody writes but
// the atomics, to word 0.
func (e *end) random(l *link, other *end, place int) bool {
	n := l.rnd.IntN(3) * l.rnd.IntN(2000)
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(l.rnd.Uint32())
	}
	at := rigMemory/2 + place*6000
	switch l.rnd.IntN(7) {
	case 6:
		return e.queue(verbs.OpSendImm, func(q *verbs.WQE) {
			q.Add(data, mem.LocalKey)
			q.Imm = uint64(place)
			other.want = append(other.want, fmt.Sprintf("send %x imm %d true", data, place))
		})
	case 0:
		return e.queue(verbs.OpSend, func(q *verbs.WQE) {
			q.Add(data, mem.LocalKey)
			other.want = append(other.want, fmt.Sprintf("send %x imm 0 false", data))
		})
	case 1, 2:
		return e.queue(verbs.OpWrite, func(q *verbs.WQE) {
			q.Add(data[:n/2], mem.LocalKey)
			q.Add(data[n/2:], mem.LocalKey)
			q.Remote = verbs.RemoteAddr{TO: uint64(at), STag: other.key}
			e.reads = append(e.reads, func() {
				if !bytes.Equal(other.mem[at:at+n], data) {
					l.t.Errorf("WRITE of %d bytes to %#x: other bytes", n, at)
				}
			})
		})
	case 3:
		return e.queue(verbs.OpWriteImm, func(q *verbs.WQE) {
			q.Add(data, mem.LocalKey)
			q.Remote, q.Imm = verbs.RemoteAddr{TO: uint64(at), STag: other.key}, uint64(place)
			other.want = append(other.want, fmt.Sprintf("imm %d len %d", place, n))
		})
	case 4:
		from := 8 + l.rnd.IntN(rigMemory/2-6008)
		return e.queue(verbs.OpRead, func(q *verbs.WQE) {
			q.Add(data[:n/3], mem.LocalKey)
			q.Add(data[n/3:], mem.LocalKey)
			q.Remote = verbs.RemoteAddr{TO: uint64(from), STag: other.key}
			if l.rnd.IntN(3) == 0 {
				q.Flags = verbs.FlagFence
			}
			e.reads = append(e.reads, func() {
				if !bytes.Equal(other.mem[from:from+n], data) {
					l.t.Errorf("READ of %d bytes from %#x: other bytes", n, from)
				}
			})
		})
	}
	word := make([]byte, 8)
	before := uint64(0)
	return e.queue(verbs.OpFetchAdd, func(q *verbs.WQE) {
		q.Add(word, mem.LocalKey)
		q.Remote, q.Atom = verbs.RemoteAddr{STag: other.key}, verbs.Atomic{Data: 1}
		before, other.atomics = other.atomics, other.atomics+1
		e.reads = append(e.reads, func() {
			if got := binary.NativeEndian.Uint64(word); got != before {
				l.t.Errorf("FetchAdd number %d found %d", before, got)
			}
		})
	})
}

// Whatever the network does, every request of both ends is executed once, in order, and
// completes in order.
func TestLossyNetwork(t *testing.T) {
	for _, loss := range []float64{0, 0.01, 0.05, 0.2} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%v/%d", loss, seed), func(t *testing.T) {
				l := newLink(t, seed, faults{loss, loss, loss, 0})
				l.exercise(seed%2 == 1)
			})
		}
	}
}

// The same of each kind of fault by itself, from rare ones to one packet in twenty.
func TestFaults(t *testing.T) {
	for name, of := range map[string]func(share float64) faults{
		"lost":    func(s float64) faults { return faults{lost: s} },
		"twice":   func(s float64) faults { return faults{twice: s} },
		"late":    func(s float64) faults { return faults{late: s} },
		"damaged": func(s float64) faults { return faults{damaged: s} },
		"all":     all,
	} {
		for i, share := range []float64{0.0001, 0.01, 0.05} {
			t.Run(fmt.Sprintf("%s/%v", name, share), func(t *testing.T) {
				l := newLink(t, uint64(100+i), of(share))
				l.exercise(false)
				if l.faults.damaged >= 0.05 && l.damaged == 0 {
					t.Error("nothing was damaged")
				}
			})
		}
	}
}

// exercise has both ends post random requests, and looks at what has come of them.
func (l *link) exercise(bufferless bool) {
	for i, e := range l.ends {
		binary.NativeEndian.PutUint64(e.mem, 0)
		e.bufferless = bufferless && i == 0
		e.collect(l)
	}
	const rounds, each = 6, 12
	for round := range rounds {
		for i, e := range l.ends {
			for j := range each {
				if !e.random(l, l.ends[1-i], round*each+j) {
					break
				}
			}
		}
		l.run()
	}
	for i, e := range l.ends {
		l.check(i, e)
	}
}

func (l *link) check(i int, e *end) {
	t := l.t
	if in := e.req.cfg.Way.Stats().InFlight + e.req.cfg.Intake.Stats().InFlight; in != 0 {
		t.Errorf("end %d: %d bytes are still in flight", i, in)
	}
	if e.req.Err() != nil || e.Err() != nil || !e.req.Idle() || e.req.Reads() != 0 {
		o := l.ends[1-i]
		t.Fatalf("end %d: requester %v, responder %v, idle %v, %d READs, %+v\nother end: responder %v, %+v", i, e.req.Err(), e.Err(), e.req.Idle(), e.req.Reads(), e.req.Stats(), o.Err(), o.Stats())
	}
	if uint64(len(e.ids)) != e.posted || e.posted < 20 {
		t.Errorf("end %d: %d completions of %d requests", i, len(e.ids), e.posted)
	}
	for j, id := range e.ids {
		if id != uint64(j+1) {
			t.Fatalf("end %d: completion %d is of request %d", i, j, id)
		}
	}
	for j := range max(len(e.want), len(e.got)) {
		if j >= len(e.got) || j >= len(e.want) || e.got[j] != e.want[j] {
			t.Fatalf("end %d: %d messages received, %d sent; they differ from %d on", i, len(e.got), len(e.want), j)
		}
	}
	for _, check := range e.reads {
		check()
	}
	if st := e.req.Stats(); l.faults == (faults{}) && !e.bufferless && !l.ends[1-i].bufferless && st.Repeated != 0 {
		t.Errorf("end %d: nothing was lost, and yet: %+v", i, st)
	} else if l.faults.lost >= 0.05 && (st.Repeated == 0 || e.Stats().Duplicates == 0) {
		t.Errorf("end %d: loss without a trace: %+v, %+v", i, st, e.Stats())
	}
}
