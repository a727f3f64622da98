package rc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// fate is what becomes of one packet.
type fate int

const (
	arrives fate = iota
	isLost
	comesTwice
	comesAgain // once more, when it is late
	isLate
)

func (f fate) String() string {
	return [...]string{"arrives", "is lost", "comes twice", "comes again", "is late"}[f]
}

const onTheWay = 100 * time.Microsecond

// job is one request of an exchange.
type job struct {
	op   byte // s: SEND, w: WRITE, i: with immediate data, r: READ, a: FetchAdd
	at   int  // in the memory of the one who serves
	data []byte
}

const (
	jobLen    = 1100 // at most
	jobMemory = 32 << 10
)

// jobsOf are those of one exchange: the letters are operations, each before the number of its
// bytes. WRITEs have places of their own, READs are of what nobody writes, atomics of word 0.
func jobsOf(t testing.TB, exchange string) (jobs []job) {
	for k, f := range strings.Fields(exchange) {
		j, n := job{op: f[0], at: 8 + k*jobLen}, 0
		if _, err := fmt.Sscan(f[1:], &n); err != nil || j.at+jobLen > jobMemory/2 {
			t.Fatal(exchange, err)
		}
		j.data = make([]byte, n)
		if j.op != 'r' && j.op != 'a' {
			j.at += jobMemory / 2
			for i := range j.data {
				j.data[i] = byte(i*3 + i>>8*7 + k)
			}
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// asking is an end that has jobs done, serving the one that does them. fault is what may not be
// and has been.
type asking interface {
	requests(now time.Duration) []packet.Packet
	answer(p *packet.Packet, now time.Duration)
	deadline() (time.Duration, bool)
	tick(now time.Duration)
	done() (jobs int)
	fault() string
}

type serving interface {
	request(p *packet.Packet)
	answers() []packet.Packet
	post()              // gives a receive buffer
	messages() []string // in the order in which they have come
	memory() []byte
	key() uint32 // of memory
	fault() string
}

// exchange is what two ends do, over a network with a fate for each packet.
type exchange struct {
	jobs  []job
	c     asking
	s     serving
	fates map[int]fate
	late  time.Duration

	now   time.Duration
	sent  int
	queue []travel
	trace []string
}

// travel is a packet on its way.
type travel struct {
	at time.Duration
	up bool // it is a request
	p  packet.Packet
}

func (x *exchange) send(up bool, p packet.Packet) {
	f := x.fates[x.sent]
	x.trace = append(x.trace, fmt.Sprintf("%v: packet %d, %v with PSN %06x and %d bytes, %v", x.now, x.sent, p.Op, uint32(p.PSN), len(p.Payload), f))
	x.sent++
	var at []time.Duration
	switch f {
	case arrives:
		at = []time.Duration{0}
	case comesTwice:
		at = []time.Duration{0, 0}
	case comesAgain:
		at = []time.Duration{0, x.late}
	case isLate:
		at = []time.Duration{x.late}
	}
	for _, d := range at {
		v := travel{x.now + onTheWay + d, up, p}
		i, _ := slices.BinarySearchFunc(x.queue, v.at+1, func(o travel, at time.Duration) int { return int(o.at - at) })
		x.queue = slices.Insert(x.queue, i, v)
	}
}

// run is the exchange until nothing will happen any more; what is wrong with how that ended.
func (x *exchange) run(scarce bool) string {
	for range 5000 {
		for _, p := range x.c.requests(x.now) {
			x.send(true, p)
		}
		if len(x.queue) == 0 || !x.queue[0].up || x.queue[0].at > x.now { // those that came at once are answered together
			for _, p := range x.s.answers() {
				x.send(false, p)
			}
		}
		if f := x.c.fault() + x.s.fault(); f != "" {
			return f
		}
		at, ok := x.c.deadline()
		if len(x.queue) > 0 && (!ok || x.queue[0].at <= at) {
			v := x.queue[0]
			x.queue = x.queue[1:]
			x.now = max(x.now, v.at)
			if !v.up {
				x.c.answer(&v.p, x.now)
				continue
			}
			got := len(x.s.messages())
			x.s.request(&v.p)
			// Where buffers are scarce there is none for a packet that comes at once with the last one.
			if !scarce && len(x.s.messages()) > got {
				x.s.post()
			}
			continue
		}
		if !ok {
			return x.result()
		}
		if scarce {
			x.s.post()
		}
		x.now = at
		x.c.tick(x.now)
	}
	return "no end"
}

func (x *exchange) result() string {
	if n := x.c.done(); n != len(x.jobs) {
		return fmt.Sprintf("%d of %d requests are done", n, len(x.jobs))
	}
	var want []string
	atomics := uint64(0)
	for k, j := range x.jobs {
		there := x.s.memory()[j.at : j.at+len(j.data)]
		switch j.op {
		case 's':
			want = append(want, fmt.Sprintf("%x", j.data))
		case 'a':
			if got := binary.NativeEndian.Uint64(j.data); got != atomics {
				return fmt.Sprintf("FetchAdd %d has found %d", k, got)
			}
			atomics++
			continue
		case 'i':
			want = append(want, written(len(j.data)))
		}
		if j.op != 's' && !bytes.Equal(there, j.data) {
			return fmt.Sprintf("request %d, %c: other bytes", k, j.op)
		}
	}
	if got := x.s.messages(); !slices.Equal(got, want) {
		return fmt.Sprintf("%d messages have come of %d, or others", len(got), len(want))
	}
	return ""
}

const eachPSN = packet.PSN(0xfffffd) // numbers wrap soon

// Each packet of an exchange in turn is lost, comes twice, at once or long after, or is late: by
// a round trip, or by more than the time-out; and then one behind it is lost, too. Both ends are
// ours, or one does what Linux's does.
func TestEachPacket(t *testing.T) {
	for name, ends := range map[string]struct {
		asking  func(t testing.TB, jobs []job, key uint32) asking
		serving func(testing.TB) serving
	}{"ours": {newOurAsking, newOurServing}, "Linux asks": {newLinuxAsking, newOurServing}, "Linux serves": {newOurAsking, newLinuxServing}} {
		for _, e := range []string{
			"s1 s1 s1", "s1 w0 s1024", "w600 i257", "r700 r1 r1024", "s300 r600 s1 s1", "a8 r300 a8 s1 r300 w1", "r0 s0 r256 i0",
		} {
			t.Run(name+"/"+e, func(t *testing.T) {
				try := func(fates map[int]fate, late time.Duration, scarce bool) int {
					jobs, s := jobsOf(t, e), ends.serving(t)
					x := &exchange{jobs: jobs, c: ends.asking(t, jobs, s.key()), s: s, fates: fates, late: late}
					x.s.post()
					if wrong := x.run(scarce); wrong != "" {
						t.Fatalf("late by %v, few receive buffers %v: %s\n%s", late, scarce, wrong, strings.Join(x.trace, "\n"))
					}
					return x.sent
				}
				for _, scarce := range []bool{false, true} {
					n := try(nil, 0, scarce)
					for i := range n {
						for f := isLost; f <= isLate; f++ {
							for _, late := range []time.Duration{onTheWay * 5 / 2, 3 * time.Second} {
								try(map[int]fate{i: f}, late, scarce)
								try(map[int]fate{i: f, i + 1 + i%5: isLost}, late, scarce)
								if f == isLost || f == comesTwice {
									break
								}
							}
						}
					}
				}
			})
		}
	}
}

// ourAsking is our requester.
type ourAsking struct {
	*asker
	t   testing.TB
	ids int
}

func newOurAsking(t testing.TB, jobs []job, key uint32) asking {
	g := newRigOf(t, Params{MTU: packet.MTU256}, 16)
	a := &ourAsking{t: t, asker: &asker{rig: g, req: NewRequester(g.qp, RequesterParams{
		MTU: packet.MTU256, PSN: eachPSN, Depth: 2, Window: 64, MaxRead: 3, AckTimeout: 500 * time.Millisecond, Retries: 7, RNRRetries: Forever,
		Path: NewPath(packet.MTU256.Bytes()), Intake: NewIntake(packet.MTU256.Bytes(), 64<<10),
	})}}
	connect(t, g.qp)
	a.qp.Mu.Lock()
	defer a.qp.Mu.Unlock()
	for i, j := range jobs {
		q, err := a.qp.PostLocked(uint64(i), map[byte]verbs.Opcode{'s': verbs.OpSend, 'w': verbs.OpWrite, 'i': verbs.OpWriteImm, 'r': verbs.OpRead, 'a': verbs.OpFetchAdd}[j.op])
		if err != nil {
			t.Fatal(err)
		}
		q.Add(j.data, mem.LocalKey)
		q.Flags, q.Length, q.Remote, q.Atom = 0, uint32(len(j.data)), verbs.RemoteAddr{TO: uint64(j.at), STag: key}, verbs.Atomic{Data: 1}
		if j.op == 'a' {
			q.Remote.TO = 0
		}
	}
	return a
}

func (a *ourAsking) requests(now time.Duration) (ps []packet.Packet) {
	for a.req.Next(&a.out, now) {
		p := a.out.Packet
		p.Payload = bytes.Join(a.out.Payload, nil)
		a.out.Release()
		ps = append(ps, p)
	}
	return ps
}

func (a *ourAsking) answer(p *packet.Packet, now time.Duration) { a.req.Receive(p, now) }
func (a *ourAsking) deadline() (time.Duration, bool)            { return a.req.Deadline() }
func (a *ourAsking) tick(now time.Duration)                     { a.req.Tick(now) }

func (a *ourAsking) done() int {
	for _, st := range a.ends() {
		if a.ids++; st != ok {
			a.t.Errorf("completion %d: %v", a.ids, st)
		}
	}
	if in := a.req.cfg.Path.Stats().InFlight + a.req.cfg.Intake.Stats().InFlight; in != 0 || !a.req.Idle() || a.req.Reads() != 0 {
		a.t.Errorf("%d bytes in flight at the end, idle %v, %d READs", in, a.req.Idle(), a.req.Reads())
	}
	return a.ids
}

func (a *ourAsking) fault() string {
	if err := a.req.Err(); err != nil {
		return err.Error()
	}
	return ""
}

// ourServing is our responder.
type ourServing struct {
	*rig
	t    testing.TB
	bufs [][]byte
	got  []string
}

func newOurServing(t testing.TB) serving {
	s := &ourServing{rig: newRigOf(t, Params{RemoteQPN: 1, MTU: packet.MTU256, PSN: eachPSN, Resources: 2, MinRNR: 12}, jobMemory), t: t}
	fillServed(s.mem)
	return s
}

// fillServed makes memory in which each place is known, and a word for atomics.
func fillServed(p []byte) {
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	clear(p[:8])
}

func (s *ourServing) key() uint32    { return s.rig.key }
func (s *ourServing) memory() []byte { return s.mem }
func (s *ourServing) post()          { s.bufs = append(s.bufs, s.rig.post(s.t, jobLen)) }

func (s *ourServing) request(p *packet.Packet) {
	s.Receive(p)
	for _, wc := range s.TakeWCs(nil) {
		switch {
		case wc.Status != verbs.StatusSuccess:
			s.got = append(s.got, wc.Status.String())
		case wc.Opcode == verbs.WCRecvImm:
			s.got = append(s.got, written(int(wc.ByteLen)))
		default:
			s.got = append(s.got, fmt.Sprintf("%x", s.bufs[wc.ID-1][:wc.ByteLen]))
		}
	}
}

func (s *ourServing) answers() (ps []packet.Packet) {
	for _, r := range s.drain() {
		r.Packet.Payload = r.data
		ps = append(ps, r.Packet)
	}
	return ps
}

func (s *ourServing) messages() []string { return s.got }

func (s *ourServing) fault() string {
	if err := s.Err(); err != nil {
		return err.Error()
	}
	return ""
}

// written is a WRITE with immediate data among the messages.
func written(n int) string { return fmt.Sprintf("%d bytes are written", n) }
