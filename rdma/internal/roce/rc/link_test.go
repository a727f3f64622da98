package rc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// link is two ends and a network between them.
type link struct {
	*lossy.Network
	t    testing.TB
	ends [2]*end
}

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

const linkTimeout = 4 * lossy.Late

func newLink(t testing.TB, seed uint64, f lossy.Faults) *link {
	return newLinkWith(t, seed, f, RequesterParams{MTU: packet.MTU256, Window: 100, AckTimeout: linkTimeout, Retries: 20})
}

func newLinkWith(t testing.TB, seed uint64, f lossy.Faults, cfg RequesterParams) *link {
	l := &link{Network: lossy.New(t, seed, f), t: t}
	maxRead := int(seed%3) * 2                                                             // of some, READs go in pieces, more than may be outstanding
	psn := [2]packet.PSN{packet.PSN(l.Rand.Uint32() & packet.PSNMask), packet.PSNMask - 5} // one wraps soon
	for i := range l.ends {
		g := newRig(t, Params{RemoteQPN: 1, MTU: cfg.MTU, PSN: psn[1-i], Resources: 4, MinRNR: 12})
		for j := range g.mem {
			g.mem[j] = byte(j * (i + 3))
		}
		cfg.RemoteQPN, cfg.PSN, cfg.Depth, cfg.MaxRead, cfg.RNRRetries = 1, psn[i], 4, maxRead, Forever
		cfg.Path, cfg.Intake = NewPath(cfg.MTU.Bytes()), NewIntake(cfg.MTU.Bytes(), 64<<10)
		l.ends[i] = &end{rig: g, req: NewRequester(g.qp, cfg)}
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

// run runs until all is done, or the connection is over.
func (l *link) run() {
	for round := 0; ; round++ {
		if round > 1e6 {
			l.t.Fatalf("no end after %v: %d in flight", l.Now, l.InFlight())
		}
		for i, e := range l.ends {
			for e.req.Next(&e.out, l.Now) {
				l.Send(1-i, &e.out)
			}
			for e.Next(&e.out) {
				l.Send(1-i, &e.out)
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
	if at, ok := l.Next(); ok && at <= next {
		to, p, whole := l.Take()
		if !whole {
			return true
		}
		e := l.ends[to]
		if p.Op.Traits()&packet.Response != 0 {
			e.req.Receive(&p, l.Now)
		} else {
			e.Receive(&p)
		}
		e.collect(l)
		return true
	}
	if due < 0 {
		return false
	}
	l.Now = next
	l.ends[due].req.Tick(l.Now)
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
		if e.bufferless && l.Rand.IntN(3) != 0 {
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
	n := l.Rand.IntN(3) * l.Rand.IntN(2000)
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(l.Rand.Uint32())
	}
	at := rigMemory/2 + place*6000
	switch l.Rand.IntN(7) {
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
		from := 8 + l.Rand.IntN(rigMemory/2-6008)
		return e.queue(verbs.OpRead, func(q *verbs.WQE) {
			q.Add(data[:n/3], mem.LocalKey)
			q.Add(data[n/3:], mem.LocalKey)
			q.Remote = verbs.RemoteAddr{TO: uint64(from), STag: other.key}
			if l.Rand.IntN(3) == 0 {
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
				l := newLink(t, seed, lossy.Faults{Lost: loss, Twice: loss, Late: loss})
				l.exercise(seed%2 == 1)
			})
		}
	}
}

// The same of each kind of fault by itself, from rare ones to one packet in twenty.
func TestFaults(t *testing.T) {
	for name, of := range lossy.Each {
		for i, share := range []float64{0.0001, 0.01, 0.05} {
			t.Run(fmt.Sprintf("%s/%v", name, share), func(t *testing.T) {
				l := newLink(t, uint64(100+i), of(share))
				l.exercise(false)
				if l.Faults.Damaged >= 0.05 && l.Damaged == 0 {
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
	if in := e.req.cfg.Path.Stats().InFlight + e.req.cfg.Intake.Stats().InFlight; in != 0 {
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
	if st := e.req.Stats(); l.Faults == (lossy.Faults{}) && !e.bufferless && !l.ends[1-i].bufferless && st.Repeated != 0 {
		t.Errorf("end %d: nothing was lost, and yet: %+v", i, st)
	} else if l.Faults.Lost >= 0.05 && (st.Repeated == 0 || e.Stats().Duplicates == 0) {
		t.Errorf("end %d: loss without a trace: %+v, %+v", i, st, e.Stats())
	}
}
