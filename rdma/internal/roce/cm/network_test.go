package cm

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"softiser/rdma/internal/roce/mad"
)

// network carries MADs between managers in the time of a bubble: some late, some
// twice, some never, as a seed says.
type network struct {
	loss, twice float64
	latest      time.Duration // of the delay; the earliest is 1 ms

	mu       sync.Mutex // guards what follows; below Manager.mu
	managers map[netip.Addr]*Manager
	lose     func(s *sentMAD) bool
	rng      *rand.Rand
	sent     []*sentMAD
}

type sentMAD struct {
	from, to netip.Addr
	b        []byte
	attr     mad.Attr
}

func newNetwork(seed uint64) *network {
	return &network{rng: rand.New(rand.NewPCG(seed, 17)), latest: 2 * time.Millisecond, managers: map[netip.Addr]*Manager{}}
}

// manager adds a Manager.
func (n *network) manager(addr string, lim Limits) *Manager {
	a := netip.MustParseAddr(addr)
	m := New(Config{Local: a, GUID: NewGUID(), Limits: lim, Send: func(to netip.Addr, b []byte) { n.send(a, to, b) }})
	n.mu.Lock()
	n.managers[a] = m
	n.mu.Unlock()
	return m
}

func (n *network) send(from, to netip.Addr, b []byte) {
	_, msg, err := mad.Parse(b)
	if err != nil {
		panic(err)
	}
	s := &sentMAD{from, to, bytes.Clone(b), msg.Attr()}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, s)
	if n.lose != nil && n.lose(s) || n.rng.Float64() < n.loss {
		return
	}
	times := 1
	if n.rng.Float64() < n.twice {
		times = 2
	}
	for range times {
		time.AfterFunc(time.Millisecond+time.Duration(n.rng.Int64N(int64(n.latest))), func() {
			n.mu.Lock()
			m := n.managers[to]
			n.mu.Unlock()
			if m != nil {
				m.Receive(from, s.b)
			}
		})
	}
}

// count is how many messages of a kind have been sent to an address.
func (n *network) count(a mad.Attr, to string) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sent {
		if s.attr == a && s.to == netip.MustParseAddr(to) {
			c++
		}
	}
	return c
}

// losing sets which messages are lost; nil: by chance alone.
func (n *network) losing(f func(s *sentMAD) bool) {
	n.mu.Lock()
	n.lose = f
	n.mu.Unlock()
}

// since is what has been sent behind the first so many messages.
func (n *network) since(total int) []*sentMAD {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent[total:]
}

// total is how many messages have been sent.
func (n *network) total() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.sent)
}

func (n *network) close() {
	for _, m := range n.managers {
		m.Close()
	}
}

const (
	addrA, addrB = "10.0.0.1", "10.0.0.2"
	bound        = time.Minute // of what may wait; a bubble's time
)

var service = mad.ServiceOf(mad.ProtocolTCP, 7174)

// request is a REQ for service; numbers of queue pairs count up from qpn.
func request(qpn uint32) *Request {
	return &Request{Service: service, SrcPort: 33000, QPN: qpn, PSN: 0x123456, ResponderResources: 4, InitiatorDepth: 3, RetryCount: 7, RNRRetry: 7, MTU: 3, Private: []byte("hello")}
}

// events collects the calls of hooks.
type events struct {
	established, gone chan struct{}
	ended             chan error
}

func newEvents() *events {
	return &events{make(chan struct{}, 1), make(chan struct{}, 1), make(chan error, 1)}
}

func (e *events) hooks() Hooks {
	return Hooks{
		Established: func() { e.established <- struct{}{} },
		Ended:       func(err error) { e.ended <- err },
		Gone:        func() { e.gone <- struct{}{} },
	}
}

// wait takes a value from a channel, in time.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(bound):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// pair is two managers with a listener at b.
type pair struct {
	n    *network
	a, b *Manager
	l    *Listener
}

func newPair(t *testing.T, seed uint64) *pair {
	t.Helper()
	p := &pair{n: newNetwork(seed)}
	p.a, p.b = p.n.manager(addrA, Limits{}), p.n.manager(addrB, Limits{})
	l, err := p.b.Listen(service, 16)
	if err != nil {
		t.Fatal(err)
	}
	p.l = l
	return p
}

// connect opens a connection from a to b; qpn is both sides' queue pair.
func (p *pair) connect(t *testing.T, qpn uint32) (active, passive *Conn, ea, ep *events) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	ea, ep = newEvents(), newEvents()
	type result struct {
		c   *Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		in, err := p.l.Accept(ctx)
		if err != nil {
			done <- result{nil, err}
			return
		}
		c, err := in.Accept(&Reply{QPN: qpn, PSN: 0x654321, ResponderResources: 3, InitiatorDepth: 4, RNRRetry: 6, Private: []byte("welcome")}, ep.hooks())
		done <- result{c, err}
	}()
	active, err := p.a.Connect(ctx, p.b.cfg.Local, request(qpn), ea.hooks())
	if err != nil {
		t.Fatal(err)
	}
	r := wait(t, "the passive side", done)
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := active.Establish(); err != nil {
		t.Fatal(err)
	}
	wait(t, "Established", ep.established)
	return active, r.c, ea, ep
}
