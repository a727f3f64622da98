package iwarp

import (
	"net"
	"testing"

	"softiser/internal/sockio"
)

// A look finds what has come, ends in vain in time, and makes way for others.
func TestLook(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := sockio.New(nc, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	qp, _ := newPair(t, 1)
	qp.conn = conn
	p, stats := &qp.wait.auto, &qp.rx.stats
	qp.dev.awake.Store(1)

	p.to(pollLooking)
	if qp.wait.look(clock()) {
		t.Error("it found bytes in an empty socket")
	}
	if p.state != pollResting || stats.PollCalls == 0 || stats.Polled != 0 {
		t.Errorf("after an unpaid look in vain: %v, %d calls, %d hits", p.state, stats.PollCalls, stats.Polled)
	}

	*p = autoPoll{}
	p.to(pollLooking)
	qp.dev.awake.Store(2)
	calls := stats.PollCalls
	if qp.wait.look(clock()) || p.state != pollResting || stats.PollCalls != calls {
		t.Errorf("beside another queue pair at work: %v, %d calls", p.state, stats.PollCalls-calls)
	}

	qp.dev.awake.Store(1)
	p.to(pollLooking)
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := conn.ReadLoop(func(uintptr) bool { return conn.Readable() }); err != nil {
		t.Fatal(err)
	}
	if !qp.wait.look(clock()) || stats.Polled != 1 || p.credit != pollWorth {
		t.Errorf("bytes in the socket were not found: %d hits, %v earned", stats.Polled, p.credit)
	}
}
