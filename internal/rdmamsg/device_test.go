package rdmamsg

import (
	"errors"
	"testing"

	"softiser/rdma"
)

// Registered memory is found by its address; what is not registered travels too.
func TestRegions(t *testing.T) {
	e := newEnd(t, Config{})
	d := e.d
	mem := make([]byte, 8192)
	release, err := d.Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	in, all, out := d.key(mem[100:200]), d.key(mem), d.key(make([]byte, 10))
	if in != all || in == out || out != d.pd.LocalDMAKey() {
		t.Errorf("keys %#x %#x %#x", in, all, out)
	}
	if d.key(mem[8191:8192:8192]) != in {
		t.Error("the last byte is not of the region")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if d.key(mem) != d.pd.LocalDMAKey() {
		t.Error("still registered")
	}
	_ = e.l.QP.Close()
	e.l.Close(&e.w)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A device is not closed under its connections, nor while send buffers are in use.
func TestCloseBusy(t *testing.T) {
	e := newEnd(t, Config{})
	if err := e.d.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("with a connection: %v", err)
	}
	_ = e.l.QP.Close()
	m := e.p.Message(4000)
	e.p.Send(m)
	e.l.Close(&e.w)
	if err := e.d.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("with a send buffer: %v", err)
	}
	e.p.Purge(rdma.ErrClosed)
	if err := e.d.Close(); err != nil {
		t.Error(err)
	}
}

// When a third of the receive buffers is held, a connection that holds more than its
// share of them has to leave what it receives; fewReceives each may have in any case.
func TestShares(t *testing.T) {
	d := &Device{max: 300}
	d.links.Store(10)
	for _, c := range []struct {
		out, kept int64
		want      bool
	}{
		{100, 100, false}, {101, 10, false}, {101, 11, true}, {300, 10, false},
	} {
		if got := d.scarce(c.out, c.kept); got != c.want {
			t.Errorf("%d held, %d of them by one of ten: %v", c.out, c.kept, got)
		}
	}
	d.links.Store(1000)
	if d.scarce(200, fewReceives) || !d.scarce(200, fewReceives+1) {
		t.Error("of 1000 connections each may hold fewReceives")
	}
	d.links.Store(0)
	if d.scarce(101, 100) || !d.scarce(101, 101) {
		t.Error("one that is just leaving")
	}
}

// More messages than one chunk of receive buffers: the pool grows, up to its limit, and
// what is behind it is told to leave its buffer.
func TestReceivesGrow(t *testing.T) {
	client, server := pair(t, 1, Config{MaxReceives: 2 * chunkLen})
	server.mu.Lock()
	server.keep = true
	server.mu.Unlock()
	const n = 3 * chunkLen
	for range n {
		client.say("x", 0)
	}
	for range n {
		recv(t, "message", server.msgs)
	}
	server.mu.Lock()
	held, left := len(server.held), server.scarce
	server.mu.Unlock()
	if held != chunkLen || left != n-chunkLen { // a third of 3 * 64
		t.Errorf("%d held, %d left", held, left)
	}
	if kept, out := server.l.kept.Load(), server.d.out.Load(); kept != chunkLen || out != chunkLen {
		t.Errorf("%d are counted for the connection, %d for all", kept, out)
	}
	server.mu.Lock()
	for _, b := range server.held {
		b.Free()
	}
	server.held = nil
	server.mu.Unlock()
	if kept, out := server.l.kept.Load(), server.d.out.Load(); kept != 0 || out != 0 {
		t.Errorf("%d are still counted for the connection, %d for all", kept, out)
	}
	if err := grow(server.d); !errors.Is(err, rdma.ErrLimit) {
		for err == nil {
			err = grow(server.d)
		}
		if n := len(server.d.chunks); !errors.Is(err, rdma.ErrLimit) || n != 3 {
			t.Errorf("%d chunks: %v", n, err)
		}
	}
}

// grow posts another chunk though there are enough buffers.
func grow(d *Device) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.growLocked()
}

// Buffers that are done with are posted together; those that were kept are not counted any more.
func TestSpent(t *testing.T) {
	e := newEnd(t, Config{})
	left := e.d.srq.Len()
	var s Spent
	for id := range uint64(3) {
		b := e.l.Received(&rdma.WC{ID: id})
		if id == 1 && e.l.Keep(b) {
			t.Error("one buffer is too much")
		}
		s.Put(b)
	}
	if out, kept, n := e.d.ReceivesOut(), e.l.kept.Load(), e.d.srq.Len(); out != 1 || kept != 1 || n != left {
		t.Errorf("before: %d held, %d by the connection, %d posted", out, kept, n-left)
	}
	s.Free()
	s.Free()
	if out, kept, n := e.d.ReceivesOut(), e.l.kept.Load(), e.d.srq.Len(); out != 0 || kept != 0 || n != left+3 {
		t.Errorf("behind: %d held, %d by the connection, %d posted", out, kept, n-left)
	}
	_ = e.l.QP.Close()
	e.l.Close(&e.w)
}
