package iwarp

import (
	"bytes"
	"errors"
	"testing"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// A receiver has a room while part of a header waits in it for the rest, and only then;
// what another one has read into the same room meanwhile changes nothing.
func TestRoomsOfReceivers(t *testing.T) {
	a, b := newRig(t, true), newRig(t, true)
	long := fill(300, 1)
	for _, cut := range []int{1, 3, 10} {
		x, y := a.send(long, 0), b.send(fill(300, 2), 0)
		a.feed(x[:cut])
		if a.qp.rx.in.room == nil {
			t.Fatalf("%d bytes of a header are kept nowhere", cut)
		}
		b.feed(y)
		if b.qp.rx.in.room != nil || b.qp.rx.in.buf != nil || b.qp.rx.in.vec != nil {
			t.Error("a receiver with nothing to remember has a room")
		}
		a.feed(x[cut:])
		if a.qp.rx.in.room != nil {
			t.Error("the room has not been given back")
		}
		if got := a.poll(); len(got) != 1 || !bytes.Equal(got[0], long) {
			t.Fatalf("cut at %d: %d Sends, or another one", cut, len(got))
		}
		b.poll()
	}
}

// The room that a receiver leaves for a deep one is of the size that its pool is for, and
// what was in it goes along.
func TestRoomGoesDeep(t *testing.T) {
	r := newRig(t, true)
	in := &r.qp.rx.in
	in.take()
	in.r, in.w = 5, 5+copy(in.buf[5:], "left over")
	in.goDeep()
	if len(in.buf) != rxDeep || string(in.buf[in.r:in.w]) != "left over" {
		t.Errorf("%d bytes of room with %q in them", len(in.buf), in.buf[in.r:in.w])
	}
	in.drop()
	for range 4 {
		in.take()
		if len(in.buf) != rxDeep {
			t.Fatalf("a deep receiver got %d bytes", len(in.buf))
		}
		in.drop()
	}
	in.deep = false
	if in.take(); len(in.buf) != rxBuf {
		t.Errorf("another one got %d bytes", len(in.buf))
	}
}

// Sinks come as Reads are in flight. Without an STag for another one a Read waits for those
// before it, and is never stuck.
func TestSinksAsNeeded(t *testing.T) {
	r := newRig(t, false)
	qp := r.qp
	q := &qp.reads
	if len(q.sinks) != 1 {
		t.Fatalf("%d sinks before the first Read", len(q.sinks))
	}
	send := func(want int) {
		t.Helper()
		n := 0
		for q.roomLocked() {
			q.sentLocked(&verbs.WQE{Op: verbs.OpRead}).Open(&qp.Mem, [][]byte{make([]byte, 8)}, mem.Sink)
			n++
		}
		if n != want {
			t.Errorf("%d Reads can be in flight, want %d", n, want)
		}
	}
	answer := func(n int) {
		for range n {
			q.answeredLocked(verbs.StatusSuccess)
		}
	}
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	for range 5 {
		q.roomLocked()
		q.sentLocked(&verbs.WQE{Op: verbs.OpRead}).Open(&qp.Mem, [][]byte{make([]byte, 8)}, mem.Sink)
		answer(1)
	}
	if len(q.sinks) != 1 {
		t.Errorf("%d sinks for one Read at a time", len(q.sinks))
	}
	qp.Dev.Table.Limit(qp.Dev.Table.Count() + 2)
	send(3)
	answer(1)
	send(0) // the next slot has no sink
	answer(2)
	send(3)
	answer(3)
	qp.Dev.Table.Limit(1 << 10)
	send(len(q.orq))
	if len(q.sinks) != len(q.orq) {
		t.Errorf("%d sinks for %d Reads", len(q.sinks), len(q.orq))
	}
	answer(len(q.orq))
	if _, err := func() (*mem.Region, error) { qp.Dev.Table.Limit(0); return q.makeSink() }(); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("a sink without room for it: %v", err)
	}
}

// A round's room is kept while the socket has not taken it all, and given back then.
func TestRoomOfRound(t *testing.T) {
	r := newRig(t, true)
	tx := &r.qp.tx
	w, stag, base := r.window(fill(1000, 3), mem.RemoteRead)
	defer w.close()
	tx.allowed = true
	r.qp.asked.putLocked(irqEntry{size: 1000, sinkSTag: 1, srcSTag: stag, srcTO: base})
	tx.io.Lock()
	defer tx.io.Unlock()
	tx.buildRound()
	if tx.round.room == nil || len(tx.round.iov) == 0 {
		t.Fatal("nothing was built")
	}
	tx.round.taken(tx.round.bytes - wire.CRCLen)
	if len(tx.round.iov) != 1 || tx.round.iov[0].Len != wire.CRCLen {
		t.Errorf("left to send: %v", tx.round.iov)
	}
	tx.round.taken(wire.CRCLen)
	tx.round.rest(&r.qp.zc)
	if tx.round.room != nil || tx.round.vec != nil || tx.round.hdr != nil {
		t.Error("the room has not been given back")
	}
}

// A header buffer that the kernel may need goes back when the last call that named it is
// over, and not before; the transmitter has another one meanwhile.
func TestHeadersOnTheirWay(t *testing.T) {
	r := newRig(t, true)
	tx, z := &r.qp.tx, &r.qp.zc
	ref := func(change func(*hdrBuf), b *hdrBuf) {
		r.qp.Mu.Lock()
		change(b)
		r.qp.Mu.Unlock()
	}
	tx.round.enter()
	b := tx.round.room.hdr
	tx.round.byRef = true
	ref(z.refLocked, b)
	ref(z.refLocked, b)
	tx.round.rest(&r.qp.zc)
	for range 3 {
		tx.round.enter()
		if tx.round.room.hdr == b {
			t.Fatal("the transmitter builds where the kernel may be reading")
		}
		tx.round.rest(&r.qp.zc)
	}
	if !b.left || z.busy != 1 {
		t.Errorf("left: %v, %d buffers on their way", b.left, z.busy)
	}
	ref(z.unrefLocked, b)
	if !b.left || b.refs != 1 {
		t.Errorf("left: %v, %d calls", b.left, b.refs)
	}
	ref(z.unrefLocked, b)
	if b.left || z.busy != 0 {
		t.Errorf("after the last call: %v, %d buffers on their way", b.left, z.busy)
	}
}
