package rdma_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

func checkTerminate(t *testing.T, err error, remote bool, want wire.Cause) {
	t.Helper()
	var te *rdma.TerminateError
	if !errors.As(err, &te) || te.Remote != remote || wire.MakeCause(wire.Layer(te.Layer), te.EType, te.Code) != want {
		t.Errorf("ended by: %v; want %v, remote %v", err, want, remote)
	}
}

// checkRefused: a connection has ended for a key that names nothing.
func checkRefused(t *testing.T, o *rdmatest.Options, err error, remote bool) {
	t.Helper()
	if o.Device.Provider == rdma.ProviderIWARP {
		checkTerminate(t, err, remote, wire.CauseSTag)
		return
	}
	var nak *rdma.NAKError
	if !errors.As(err, &nak) || nak.Remote != remote || nak.Code != 2 {
		t.Errorf("ended by: %v; want a NAK for remote access, remote %v", err, remote)
	}
}

// After DiscardRead the sink is left alone, also in the middle of a response, and
// the Read still completes, so that nothing that comes later is misplaced.
func TestDiscardRead(t *testing.T) {
	p, e := rawToClient(t, nil)
	sink, next := make([]byte, 9000), make([]byte, 50)
	if err := e.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(sink)}},
		rdma.SendWR{ID: 2, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(next)}}); err != nil {
		t.Fatal(err)
	}
	var r, r2 wire.ReadReq
	r.Parse(p.recv()[wire.UntaggedLen:])
	r2.Parse(p.recv()[wire.UntaggedLen:])
	data := bytes.Repeat([]byte{7}, 9000)
	half := p.fpdu(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, false, data[:8000]))
	p.write(half[:4016]) // 4000 bytes of payload
	waitWire(t, e, 4016)
	if !e.QP.DiscardRead(1) {
		t.Fatal("the Read is not known")
	}
	copied := bytes.Clone(sink)
	p.write(half[4016:])
	p.send(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO+8000, true, data[8000:]))
	p.send(taggedMsg(wire.ReadResponse, r2.SinkSTag, r2.SinkTO, true, data[:50]))
	e.Want(t, 1, rdma.WCRead, rdma.StatusDiscarded)
	e.Want(t, 2, rdma.WCRead, rdma.StatusSuccess)
	if !bytes.Equal(sink, copied) {
		t.Error("the sink was touched after DiscardRead")
	}
	if !bytes.Equal(next, data[:50]) {
		t.Error("the next Read has wrong data")
	}
	if e.QP.DiscardRead(1) || e.QP.DiscardRead(99) {
		t.Error("a Read that has ended can be discarded")
	}
}

// A Read that is discarded before it has been sent.
func TestDiscardQueuedRead(t *testing.T) {
	p, e := rawToClient(t, &rdmatest.Options{Client: rdma.ConnParams{ORD: 1}})
	sink := make([]byte, 50)
	for id := range 2 {
		e.Post(t, rdma.SendWR{ID: uint64(id), Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(sink)}})
	}
	if !e.QP.DiscardRead(1) {
		t.Fatal("the Read is not known")
	}
	for id, st := range []rdma.WCStatus{rdma.StatusSuccess, rdma.StatusDiscarded} {
		var r wire.ReadReq
		r.Parse(p.recv()[wire.UntaggedLen:])
		p.send(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, true, bytes.Repeat([]byte{byte(id + 1)}, 50)))
		e.Want(t, uint64(id), rdma.WCRead, st)
	}
	if sink[0] != 1 {
		t.Errorf("the sink holds %d", sink[0])
	}
}

// Each Bind gives a new STag, and the old one is dead.
func TestWindowKeys(t *testing.T) { forEach(t, windowKeys) }

func windowKeys(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	w, err := b.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mem := make([]byte, 64)
	old, base, err := w.Bind(b.QP, [][]byte{mem}, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		stag, _, err := w.Bind(b.QP, [][]byte{mem}, rdma.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if stag == old || stag>>8 != old>>8 || stag>>8 == 0 {
			t.Fatalf("STag %#x after %#x", stag, old)
		}
		old = stag
	}
	w.Invalidate()
	w.Invalidate()
	a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(mem)}, Remote: rdma.RemoteAddr{TO: base, STag: old}})
	checkRefused(t, o, b.WaitDone(t), false)
	checkRefused(t, o, a.WaitDone(t), true)
	if _, _, err := w.Bind(a.QP, nil, 0); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("bind to a queue pair of another domain: %v", err)
	}
}

// Invalidate waits for placements in progress and then keeps the memory quiet,
// however hard the peer writes.
func TestInvalidateUnderFire(t *testing.T) { forEach(t, invalidateUnderFire) }

func invalidateUnderFire(t *testing.T, o *rdmatest.Options) {
	rounds := 30
	for range rounds {
		a, b := rdmatest.NewPair(t, o)
		w, err := b.PD.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		mem := make([]byte, 256<<10)
		stag, base, err := w.Bind(b.QP, [][]byte{mem}, rdma.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		src := bytes.Repeat([]byte{0xff}, len(mem))
		for range 20 {
			if err := a.QP.Enqueue(&rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(src)}, Remote: rdma.RemoteAddr{TO: base, STag: stag}}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		wg.Add(1)
		go func() { defer wg.Done(); a.QP.Push() }()
		waitWire(t, b, 100<<10)
		w.Invalidate()
		clear(mem) // a placement now would also be a data race
		a.Post(t, rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(src)}, Remote: rdma.RemoteAddr{TO: base, STag: stag}})
		checkRefused(t, o, b.WaitDone(t), false)
		for i, v := range mem {
			if v != 0 {
				t.Fatalf("byte %d was written after Invalidate", i)
			}
		}
		wg.Wait()
		a.WaitDone(t)
		w.Close()
		a.QP.Close()
		b.QP.Close()
	}
}

// The peer learns that memory was taken away while it was writing to it, and nothing of the
// rest of its message is placed.
func TestInvalidateInsideWrite(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	w, err := e.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mem := make([]byte, 8<<10)
	stag, base, err := w.Bind(e.QP, [][]byte{mem}, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	b := p.fpdu(taggedMsg(wire.Write, stag, base, true, bytes.Repeat([]byte{0xff}, len(mem))))
	half := len(b) / 2
	p.write(b[:half])
	waitWire(t, e, half)
	w.Invalidate()
	clear(mem)
	p.write(b[half:])
	if term := p.terminate(); term.Cause != wire.CauseSTag {
		t.Errorf("Terminate says %v", term.Cause)
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("memory was written to after Invalidate")
	}
}

// The peer reads from memory that is taken away: that connection ends, and the
// memory is not read any more once Invalidate has returned.
func TestInvalidateWhileRead(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	w, err := e.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mem := make([]byte, 32<<20) // more than the socket takes
	stag, base, err := w.Bind(e.QP, [][]byte{mem}, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	p.send(readMsg(1, wire.ReadReq{SinkSTag: 3, Size: uint32(len(mem)), SrcSTag: stag, SrcTO: base}))
	if u := p.recv(); len(u) == 0 {
		t.Fatal("no response")
	}
	w.Invalidate()
	for i := range mem {
		mem[i] = 0xff // would be seen by the peer, and by the race detector
	}
	p.crc = false
	for {
		u := p.recvUntilEnd()
		if u == nil {
			break
		}
		if wire.Control(uint16(u[0])<<8|uint16(u[1])).Op() != wire.ReadResponse {
			continue
		}
		if bytes.IndexByte(u[wire.TaggedLen:], 0xff) >= 0 {
			t.Fatal("memory was sent after Invalidate")
		}
	}
	if err := e.WaitDone(t); err == nil {
		t.Error("no reason for the end")
	}
}

// A response may be invalidated as soon as the peer has it all, although the same
// round goes on with another one and waits for room: a peer that works at depth takes
// back what it has been answered for.
func TestInvalidateBehindRead(t *testing.T) {
	const size, next = 40 << 10, 8 << 20
	o := &rdmatest.Options{}
	o.Server.SndBuf = 16 << 10 // much less than a round
	p, e := rawToServer(t, o, nil)
	if err := p.nc.SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	bind := func(n int) (*rdma.Window, wire.ReadReq) {
		w, err := e.PD.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		stag, base, err := w.Bind(e.QP, [][]byte{make([]byte, n)}, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		return w, wire.ReadReq{SinkSTag: 3, Size: uint32(n), SrcSTag: stag, SrcTO: base}
	}
	first, one := bind(size)
	defer first.Close()
	second, two := bind(next)
	defer second.Close()
	p.send(readMsg(1, one), readMsg(2, two))
	if u := p.recv(); len(u) != wire.TaggedLen+size {
		t.Fatalf("a response of %d bytes", len(u))
	}
	first.Invalidate()
	for got := 0; got < next; {
		u := p.recv()
		if op := wire.Control(uint16(u[0])<<8 | uint16(u[1])).Op(); op != wire.ReadResponse {
			t.Fatalf("%v instead of the second response", op)
		}
		got += len(u) - wire.TaggedLen
	}
	if st := e.QP.State(); st != rdma.StateRTS {
		t.Errorf("the queue pair is in state %v", st)
	}
}
