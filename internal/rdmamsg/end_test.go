package rdmamsg

import (
	"context"
	"sync"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/rdma"
)

const deadline = time.Minute

// end is one side of a connection: the smallest protocol above a pump.
type end struct {
	t    testing.TB
	d    *Device
	l    *Link
	w    Windows
	msgs chan string // received
	over chan result // Moved
	done chan struct{}

	mu     sync.Mutex
	p      Pump
	costs  []int // Sent
	reaped int   // completions of the send queue
	failed error
	keep   bool    // received messages are not given back
	held   []*Recv // with keep
	scarce int     // messages that had to be left
}

// result is how a Put or Get ended.
type result struct {
	user any
	err  error
	out  int // work requests outstanding then
}

func newEnd(t testing.TB, cfg Config) *end {
	t.Helper()
	if cfg.RecvLen == 0 {
		cfg.RecvLen, cfg.SendLen = 4096, 4096
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, d: d, msgs: make(chan string, 1024), over: make(chan result, 64), done: make(chan struct{})}
	e.l, err = d.NewLink(LinkConfig{Sent: e.sent, Received: e.received, Disconnected: func() { close(e.done) }})
	if err != nil {
		t.Fatal(err)
	}
	e.w = e.l.Windows()
	e.p.Init(e.l, e)
	return e
}

func (e *end) Moved(user any, err error) { e.over <- result{user, err, e.p.out} }
func (e *end) Sent(cost int)             { e.costs = append(e.costs, cost) }
func (e *end) Fail(err error)            { e.failed = err; e.l.QP.Abort(err) }

func (e *end) sent(cq *rdma.CQ) {
	var wcs [8]rdma.WC
	for more := true; more; {
		clear(wcs[:])
		e.mu.Lock()
		more = e.p.Reap(cq, wcs[:])
		for i := range wcs {
			if wcs[i].QP != nil {
				e.reaped++
			}
		}
		e.mu.Unlock()
		e.push()
	}
}

func (e *end) received(cq *rdma.CQ) {
	var wcs [8]rdma.WC
	for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
		for i := range wcs[:n] {
			b := e.l.Received(&wcs[i])
			if wcs[i].Status != rdma.StatusSuccess {
				b.Free()
				continue
			}
			msg := string(b.Msg(wcs[i].ByteLen))
			scarce := e.l.Keep(b)
			e.mu.Lock()
			if scarce {
				e.scarce++
			}
			if e.keep && !scarce {
				e.held = append(e.held, b)
			} else {
				b.Free()
			}
			e.mu.Unlock()
			e.msgs <- msg
		}
	}
}

// push moves what is queued and transmits it.
func (e *end) push() {
	e.mu.Lock()
	e.p.Pump(true)
	e.mu.Unlock()
	e.l.QP.Push()
}

// do runs f under the lock, then pushes.
func (e *end) do(f func(p *Pump)) {
	e.mu.Lock()
	f(&e.p)
	e.mu.Unlock()
	e.push()
}

// say sends a message.
func (e *end) say(s string, cost int) {
	e.do(func(p *Pump) {
		m := p.Message(len(s))
		m.Buf, m.Tag = append(m.Buf, s...), cost
		p.Send(m)
	})
}

func recv[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(deadline):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// stop ends the connection, if there is one, and checks that nothing is left.
func (e *end) stop() {
	e.l.QP.Abort(nil)
	recv(e.t, "the end", e.done)
	<-e.l.QP.Done()
	e.sent(e.l.SendCQ)
	e.received(e.l.RecvCQ)
	e.mu.Lock()
	e.p.Purge(rdma.ErrClosed)
	if n := &e.p.ops; n.used != 0 || len(n.pieces) != 0 || len(e.p.freeG) != len(e.p.gets) {
		e.t.Errorf("%d send slots in %d pieces are in use, and %d of %d Gets are free", n.used, len(n.pieces), len(e.p.freeG), len(e.p.gets))
	}
	for _, b := range e.held {
		b.Free()
	}
	e.held = nil
	e.mu.Unlock()
	_ = e.l.QP.Close()
	e.l.Close(&e.w)
	if n := e.d.ReceivesOut(); n != 0 {
		e.t.Errorf("%d receive buffers were not given back", n)
	}
	if err := e.d.Close(); err != nil {
		e.t.Errorf("close the device: %v", err)
	}
}

// pair connects two ends; ird is how many Reads the first one serves.
func pair(t testing.TB, ird int, cfg Config) (client, server *end) {
	t.Helper()
	client, server = newEnd(t, cfg), newEnd(t, cfg)
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	ch := make(chan error, 1)
	go func() {
		req, err := rdma.Server(ctx, b, nil)
		if err == nil {
			err = req.Accept(ctx, server.l.QP, &rdma.ConnParams{ORD: 16})
		}
		ch <- err
	}()
	if _, err := rdma.Client(ctx, a, client.l.QP, &rdma.ConnParams{IRD: ird}); err != nil {
		t.Fatal(err)
	}
	if err := <-ch; err != nil {
		t.Fatal(err)
	}
	server.mu.Lock()
	server.p.ORD = server.l.QP.Info().ORD
	server.mu.Unlock()
	t.Cleanup(func() { client.stop(); server.stop() })
	// A responder may send only when it has heard of the initiator.
	client.say("hello", 0)
	recv(t, "hello", server.msgs)
	return client, server
}

// open gives the peer a window over mem.
func (e *end) open(mem []byte, from uint32, a rdma.Access) (*rdma.Window, rdma.RemoteAddr) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	w, stag, base, err := e.w.Open([][]byte{mem}, from, a)
	if err != nil {
		e.t.Fatal(err)
	}
	return w, rdma.RemoteAddr{STag: stag, TO: base}
}
