package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/await"
	"softiser/internal/race"
	"softiser/rdma"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// Unsignalled requests complete silently, in order, with the next signalled one.
func TestUnsignalled(t *testing.T) { forEach(t, unsignalled) }

func unsignalled(t *testing.T, o *rdmatest.Options) {
	o.QP = rdma.QPConfig{MaxSend: 8, MaxRecv: 64}
	a, b := rdmatest.NewPair(t, o)
	for i := range 40 {
		b.Recv(t, uint64(i), make([]byte, 8))
	}
	for i := range 40 {
		wr := rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE([]byte{byte(i)})}}
		if i == 39 {
			wr.Flags = rdma.FlagSignaled
		}
		var err error
		await.True(t, "the transmit goroutine has made room", func() bool {
			err = a.QP.PostSend(wr)
			return !errors.Is(err, rdma.ErrQueueFull)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	a.Want(t, 39, rdma.WCSend, rdma.StatusSuccess)
	for i, wc := range b.Poll(t, 40) {
		if wc.ID != uint64(i) || wc.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	if n := a.CQ.Len(); n != 0 {
		t.Errorf("%d more completions", n)
	}
}

func TestQueueLimits(t *testing.T) { forEach(t, queueLimits) }

func queueLimits(t *testing.T, o *rdmatest.Options) {
	o.QP = rdma.QPConfig{MaxSend: 3, MaxRecv: 2, MaxSGE: 2, MaxInline: 16}
	a, _ := rdmatest.NewPair(t, o)
	send := rdma.SendWR{Op: rdma.OpSend}
	for range 3 {
		if err := a.QP.Enqueue(&send); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.QP.Enqueue(&send); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("fourth of three: %v", err)
	}
	recv := rdma.RecvWR{}
	if err := a.QP.PostRecv(recv, recv); err != nil {
		t.Fatal(err)
	}
	if err := a.QP.PostRecv(recv); !errors.Is(err, rdma.ErrQueueFull) {
		t.Errorf("third of two: %v", err)
	}
	s := a.SGE(make([]byte, 8))
	for name, wr := range map[string]rdma.SendWR{
		"no operation":      {},
		"unknown operation": {Op: 77},
		"unknown flag":      {Op: rdma.OpSend, Flags: 1 << 5}, // the engine's own, for requests that do not complete
		"too many pieces":   {Op: rdma.OpSend, SGL: []rdma.SGE{s, s, s}},
		"inline too long":   {Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: []rdma.SGE{a.SGE(make([]byte, 17))}},
		"inline Read":       {Op: rdma.OpRead, Flags: rdma.FlagInline, SGL: []rdma.SGE{s}},
		"atomic of 4 bytes": {Op: rdma.OpFetchAdd, SGL: []rdma.SGE{a.SGE(make([]byte, 4))}},
		"atomic unaligned":  {Op: rdma.OpCmpSwap, SGL: []rdma.SGE{s}, Remote: rdma.RemoteAddr{TO: 4}},
		"Imm with payload":  {Op: rdma.OpImm, SGL: []rdma.SGE{s}},
		"RegMR without MR":  {Op: rdma.OpRegMR, SGL: []rdma.SGE{s}},
		"BindMW without":    {Op: rdma.OpBindMW},
	} {
		if err := a.QP.Enqueue(&wr); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.QP.PostRecv(rdma.RecvWR{SGL: []rdma.SGE{s, s, s}}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("receive with too many pieces: %v", err)
	}
}

// Inline data may be changed as soon as it is queued.
func TestInline(t *testing.T) { forEach(t, inline) }

func inline(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	got := make([]byte, 16)
	b.Recv(t, 1, got)
	mem := []byte("before")
	if err := a.QP.Enqueue(&rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: []rdma.SGE{{Mem: mem[:3]}, {Mem: mem[3:]}}}); err != nil {
		t.Fatal(err)
	}
	copy(mem, "after!")
	a.QP.Push()
	b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	if string(got[:6]) != "before" {
		t.Errorf("%q arrived", got[:6])
	}
}

// A fenced request does not start before the Reads ahead of it have ended.
func TestFence(t *testing.T) {
	p, e := rawToClient(t, nil)
	if err := e.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(make([]byte, 4))}},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, Flags: rdma.FlagSignaled | rdma.FlagFence},
	); err != nil {
		t.Fatal(err)
	}
	var r wire.ReadReq
	r.Parse(p.recv()[wire.UntaggedLen:])
	if s := e.QP.Stats(); s.SendsOut != 0 {
		t.Fatal("the fenced Send is out before the Read has ended")
	}
	p.send(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, true, make([]byte, 4)))
	e.Want(t, 1, rdma.WCRead, rdma.StatusSuccess)
	e.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	if u := p.recv(); wire.Control(uint16(u[0])<<8|uint16(u[1])).Op() != wire.Send {
		t.Errorf("%x instead of the Send", u)
	}
}

// No more Reads are outstanding than ORD; the others wait for their turn.
func TestORDLimit(t *testing.T) {
	p, e := rawToClient(t, &rdmatest.Options{Client: rdma.ConnParams{ORD: 2}})
	for i := range 5 {
		if err := e.QP.Enqueue(&rdma.SendWR{ID: uint64(i), Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(make([]byte, 4))}}); err != nil {
			t.Fatal(err)
		}
	}
	e.QP.Push()
	request := func() (r wire.ReadReq) {
		r.Parse(p.recv()[wire.UntaggedLen:])
		return r
	}
	open := []wire.ReadReq{request(), request()}
	for i := range 5 {
		want := min(i+2, 5)
		// The request may be here before the call that sent it has returned there.
		await.True(t, "the Read Requests are sent", func() bool { return e.QP.Stats().ReadRequestsOut >= uint64(want) })
		if n := e.QP.Stats().ReadRequestsOut; n != uint64(want) {
			t.Fatalf("%d Read Requests out after %d answers, ORD is 2", n, i)
		}
		if got := e.QP.Attr().ReadsInFlight; got != want-i {
			t.Errorf("%d Reads in flight after %d answers", got, i)
		}
		p.send(taggedMsg(wire.ReadResponse, open[0].SinkSTag, open[0].SinkTO, true, make([]byte, 4)))
		e.Want(t, uint64(i), rdma.WCRead, rdma.StatusSuccess)
		if open = open[1:]; want < 5 {
			open = append(open, request())
		}
	}
}

// In the error state, what is posted completes at once as flushed; the handler
// does not run inside Enqueue or PostRecv.
func TestFlushOnError(t *testing.T) { forEach(t, flushOnError) }

func flushOnError(t *testing.T, o *rdmatest.Options) {
	var inside atomic.Bool
	var bad atomic.Bool
	h := func(cq *rdma.CQ) {
		if inside.Load() {
			bad.Store(true)
		}
	}
	o.CQ = rdma.CQConfig{Handler: h}
	a, _ := rdmatest.NewPair(t, o)
	a.Recv(t, 1, make([]byte, 8))
	a.Recv(t, 2, make([]byte, 8))
	cause := errors.New("for the test")
	a.QP.Abort(cause)
	if err := a.WaitDone(t); !errors.Is(err, cause) {
		t.Errorf("ended by: %v", err)
	}
	a.Want(t, 1, rdma.WCRecv, rdma.StatusFlushed)
	a.Want(t, 2, rdma.WCRecv, rdma.StatusFlushed)
	inside.Store(true)
	if err := a.QP.Enqueue(&rdma.SendWR{ID: 3, Op: rdma.OpWrite}); err != nil {
		t.Fatal(err)
	}
	inside.Store(false)
	a.QP.Push()
	a.Want(t, 3, rdma.WCWrite, rdma.StatusFlushed)
	a.Recv(t, 4, nil)
	a.Want(t, 4, rdma.WCRecv, rdma.StatusFlushed)
	if bad.Load() {
		t.Error("the handler ran inside Enqueue")
	}
	if err := a.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.QP.Enqueue(&rdma.SendWR{Op: rdma.OpSend}); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("post after Close: %v", err)
	}
}

// Disconnect finishes what is queued: all of a long queue arrives before FIN.
func TestDisconnectDrains(t *testing.T) { forEach(t, disconnectDrains) }

func disconnectDrains(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	mem := make([]byte, 8<<20)
	mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	data := pattern(1<<20, 3)
	b.Recv(t, 1, nil)
	for i := range 8 {
		if err := a.QP.Enqueue(&rdma.SendWR{Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(data)}, Remote: rdma.RemoteAddr{TO: mr.Addr() + uint64(i)<<20, STag: mr.RKey()}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.QP.PostSend(rdma.SendWR{Op: rdma.OpSend}); err != nil {
		t.Fatal(err)
	}
	a.QP.Disconnect()
	if err := a.QP.PostSend(rdma.SendWR{Op: rdma.OpSend}); !errors.Is(err, rdma.ErrState) && err != nil {
		t.Errorf("post after Disconnect: %v", err)
	}
	b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	for i := range 8 {
		if !bytes.Equal(mem[i<<20:(i+1)<<20], data) {
			t.Errorf("Write %d has not arrived as a whole", i)
		}
	}
	if err := a.WaitDone(t); err != nil {
		t.Error(err)
	}
}

// What the beginning of a connection owes is sent while it is being closed too, as long as something
// is waited for, and not behind FIN.
func TestDisconnectAtTheBeginning(t *testing.T) {
	fin := func(t *testing.T, p *rawPeer, e *rdmatest.End) {
		t.Helper()
		if u := p.recv(); u != nil {
			t.Errorf("%x instead of FIN", u)
		}
		p.nc.Close()
		if err := e.WaitDone(t); err != nil {
			t.Error(err)
		}
	}
	t.Run("a peer that sleeps is woken up", func(t *testing.T) {
		p, e := silentToClient(t, nil)
		e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(make([]byte, 4))}})
		var r wire.ReadReq
		r.Parse(p.recv()[wire.UntaggedLen:])
		e.QP.Disconnect()
		for range 4 { // the first may have been sent before
			if u := p.recv(); !bytes.Equal(u, taggedMsg(wire.Write, 1, 0, true, nil)) {
				t.Fatalf("the nudge is %x", u)
			}
		}
		p.send(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, true, make([]byte, 4)))
		e.Want(t, 1, rdma.WCRead, rdma.StatusSuccess)
		fin(t, p, e)
	})
	t.Run("a responder that may speak first", func(t *testing.T) {
		p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{MPA: rdma.MPAParams{SpeakFirst: 100 * time.Millisecond}}}, nil)
		e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
		e.QP.Disconnect()
		if u := p.recv(); !bytes.Equal(u, sendMsg(1, nil)) {
			t.Errorf("%x instead of what was queued", u)
		}
		e.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
		fin(t, p, e)
	})
	t.Run("no announcement behind FIN", func(t *testing.T) {
		p, e := rawToServer(t, &rdmatest.Options{Server: rdma.ConnParams{Extensions: true}}, nil)
		e.QP.Disconnect()
		if u := p.recv(); u != nil {
			t.Errorf("%x instead of FIN", u)
		}
		p.send(taggedMsg(wire.Write, 0x7306, 0x736f667469736572, true, nil)) // the peer's announcement
		fin(t, p, e)
	})
}

// A peer that takes nothing does not keep the connection: the end waits for it, but not for ever.
func TestDisconnectOfOneWhoDoesNotRead(t *testing.T) {
	t.Parallel() // it waits by the clock
	_, e := rawToClient(t, nil)
	data := e.SGE(make([]byte, 1<<20))
	for i := range uint64(16) { // more than sockets hold
		if err := e.QP.Enqueue(&rdma.SendWR{ID: i, Op: rdma.OpWrite, SGL: []rdma.SGE{data}, Remote: rdma.RemoteAddr{STag: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	e.QP.Push()
	e.QP.Disconnect()
	if err := e.WaitDone(t); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("the connection has ended with %v", err)
	}
}

// An outstanding Read is waited for.
func TestDisconnectWaitsForRead(t *testing.T) {
	p, e := rawToClient(t, nil)
	e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(make([]byte, 4))}})
	var r wire.ReadReq
	r.Parse(p.recv()[wire.UntaggedLen:])
	e.QP.Disconnect()
	p.send(taggedMsg(wire.ReadResponse, r.SinkSTag, r.SinkTO, true, make([]byte, 4)))
	e.Want(t, 1, rdma.WCRead, rdma.StatusSuccess)
	if u := p.recv(); u != nil {
		t.Errorf("%x instead of FIN", u)
	}
	p.nc.Close()
	if err := e.WaitDone(t); err != nil {
		t.Error(err)
	}
}

// Objects refuse to go while others depend on them, and limits hold.
func TestLifetimesAndLimits(t *testing.T) {
	forEach(t, lifetimes)
}

func lifetimes(t *testing.T, o *rdmatest.Options) {
	d, err := rdma.Open(&rdma.DeviceConfig{Provider: o.Device.Provider, MaxQP: 1, MaxCQ: 1, MaxPD: 1, MaxMR: 1, MaxSRQ: 1})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(rdma.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.RegMR(make([]byte, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	srq, err := pd.CreateSRQ(rdma.SRQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"QP":  func() error { _, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq}); return err },
		"CQ":  func() error { _, err := d.CreateCQ(rdma.CQConfig{}); return err },
		"PD":  func() error { _, err := d.AllocPD(); return err },
		"MR":  func() error { _, err := pd.RegMR(nil, 0); return err },
		"MW":  func() error { _, err := pd.AllocWindow(); return err },
		"SRQ": func() error { _, err := pd.CreateSRQ(rdma.SRQConfig{}); return err },
	} {
		if err := f(); !errors.Is(err, rdma.ErrLimit) {
			t.Errorf("one %s too many: %v", name, err)
		}
	}
	if _, err := pd.RegMR(nil, rdma.AccessRemoteWrite); !errors.Is(err, rdma.ErrInvalid) && !errors.Is(err, rdma.ErrLimit) {
		t.Errorf("remote write without local write: %v", err)
	}
	for name, f := range map[string]func() error{"device": d.Close, "PD": pd.Dealloc, "CQ": cq.Close} {
		if err := f(); !errors.Is(err, rdma.ErrBusy) {
			t.Errorf("close of a %s in use: %v", name, err)
		}
	}
	st := d.Stats()
	if st.QPs != 1 || st.MRs != 1 || st.PDs != 1 || st.CQs != 1 || st.SRQs != 1 {
		t.Errorf("%+v", st)
	}
	for _, f := range []func() error{qp.Close, mr.Dereg, mr.Dereg, srq.Close, cq.Close, pd.Dealloc, d.Close, d.Close} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.AllocPD(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("use of a closed device: %v", err)
	}
}

// Fast registration: regions and windows are aimed, used and invalidated by work
// requests, in the order of the send queue.
func TestMemoryWorkRequests(t *testing.T) { forEach(t, memoryWorkRequests) }

func memoryWorkRequests(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	mr, err := b.PD.AllocMR()
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	w, err := b.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range 4 {
		a.Recv(t, uint64(i), make([]byte, 8))
		b.Recv(t, uint64(i), nil)
	}
	a.Post(t, rdma.SendWR{Op: rdma.OpSend}) // so that b may send
	a.Want(t, 0, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
	mem := make([]byte, 64)
	rights := rdma.AccessLocalWrite | rdma.AccessRemoteWrite
	if err := b.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpRegMR, Flags: rdma.FlagSignaled, MR: mr, Key: 0x5a, Access: rights, SGL: []rdma.SGE{b.SGE(mem[:32])}},
		rdma.SendWR{ID: 2, Op: rdma.OpBindMW, Flags: rdma.FlagSignaled, Window: w, Key: 0xa5, Access: rights, SGL: []rdma.SGE{b.SGE(mem[32:])}},
		rdma.SendWR{ID: 3, Op: rdma.OpSend, Flags: rdma.FlagSignaled},
	); err != nil {
		t.Fatal(err)
	}
	b.Want(t, 1, rdma.WCRegMR, rdma.StatusSuccess)
	b.Want(t, 2, rdma.WCBindMW, rdma.StatusSuccess)
	b.Want(t, 3, rdma.WCSend, rdma.StatusSuccess)
	a.Want(t, 0, rdma.WCRecv, rdma.StatusSuccess)
	if mr.RKey()&0xff != 0x5a || w.STag()&0xff != 0xa5 {
		t.Errorf("keys %#x and %#x", mr.RKey(), w.STag())
	}
	if err := a.QP.PostSend(
		rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.FlagInline, SGL: []rdma.SGE{{Mem: []byte("one")}}, Remote: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}},
		rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.FlagInline, SGL: []rdma.SGE{{Mem: []byte("two")}}, Remote: rdma.RemoteAddr{TO: mr.Addr() + 32, STag: w.STag()}},
		rdma.SendWR{ID: 4, Op: rdma.OpSendInv, Flags: rdma.FlagSignaled, InvSTag: mr.RKey()},
	); err != nil {
		t.Fatal(err)
	}
	a.Want(t, 4, rdma.WCSend, rdma.StatusSuccess)
	if wc := b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess); wc.InvSTag != mr.RKey() {
		t.Errorf("%+v", wc)
	}
	if string(mem[:3]) != "one" || string(mem[32:35]) != "two" {
		t.Errorf("memory %q", mem)
	}
	b.Post(t, rdma.SendWR{ID: 5, Op: rdma.OpLocalInv, InvSTag: w.STag()})
	b.Want(t, 5, rdma.WCLocalInv, rdma.StatusSuccess)
	if w.Valid() {
		t.Error("the window is still valid")
	}
	b.Post(t, rdma.SendWR{ID: 6, Op: rdma.OpLocalInv, InvSTag: w.STag()})
	b.Want(t, 6, rdma.WCLocalInv, rdma.StatusInvalidated)
}

// Nothing is allocated for a posted request, its transmission and its completion.
func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for name, d := range map[string]time.Duration{"waiting": rdma.BusyPollOff, "auto": rdma.BusyPollAuto} {
		t.Run(name, func(t *testing.T) {
			p := rdma.ConnParams{BusyPoll: d}
			noAllocations(t, &rdmatest.Options{Client: p, Server: p})
		})
	}
	t.Run("roce", func(t *testing.T) {
		noAllocations(t, &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}})
	})
}

func noAllocations(t *testing.T, o *rdmatest.Options) {
	a, b := rdmatest.NewPair(t, o)
	mem := make([]byte, 8192)
	mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	rem := rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
	src := make([]byte, 8192)
	sgl := []rdma.SGE{a.SGE(src)}
	rsgl := []rdma.SGE{b.SGE(make([]byte, 64))}
	ssgl := []rdma.SGE{a.SGE(src[:64])}
	wcs := make([]rdma.WC, 8)
	w, err := a.PD.AllocWindow()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	segs := [][]byte{src}
	ctx := context.Background()
	round := func() {
		if _, _, err := w.Bind(a.QP, segs, rdma.AccessRemoteRead); err != nil {
			t.Fatal(err)
		}
		w.Invalidate()
		if err := b.QP.PostRecv(rdma.RecvWR{SGL: rsgl}); err != nil {
			t.Fatal(err)
		}
		if err := a.QP.PostSend(
			rdma.SendWR{Op: rdma.OpWrite, SGL: sgl, Remote: rem},
			rdma.SendWR{Op: rdma.OpRead, SGL: sgl, Remote: rem},
			rdma.SendWR{Op: rdma.OpSend, SGL: ssgl, Flags: rdma.FlagSignaled},
		); err != nil {
			t.Fatal(err)
		}
		for a.CQ.Poll(wcs) == 0 {
			_ = a.CQ.Wait(ctx)
		}
		for b.CQ.Poll(wcs) == 0 {
			_ = b.CQ.Wait(ctx)
		}
	}
	for range 200 {
		round() // every slot of the rings has been used
	}
	n := alloctest.PerRun(200, round)
	if n > 0 {
		t.Errorf("%v allocations per round of Write, Read and Send", n)
	}
}

// The same where one call takes many payloads to AccessScratch windows.
func TestNoAllocationsScratch(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	b, a := rdmatest.NewPair(t, nil) // a is the responder, which must not send first
	const n = 8
	src := []rdma.SGE{b.SGE(make([]byte, 8192))}
	ssgl := []rdma.SGE{b.SGE(make([]byte, 48))}
	rsgl := []rdma.SGE{a.SGE(make([]byte, 64))}
	var ws [n]*rdma.Window
	var segs [n][][]byte
	for i := range ws {
		w, err := a.PD.AllocWindow()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		ws[i], segs[i] = w, [][]byte{make([]byte, 8192)}
	}
	wrs := make([]rdma.SendWR, 2*n)
	wcs := make([]rdma.WC, n)
	ctx := context.Background()
	round := func() {
		for i, w := range ws {
			stag, base, err := w.Bind(a.QP, segs[i], rdma.AccessRemoteWrite|rdma.AccessScratch)
			if err == nil {
				err = a.QP.PostRecv(rdma.RecvWR{SGL: rsgl})
			}
			if err != nil {
				t.Fatal(err)
			}
			wrs[2*i] = rdma.SendWR{Op: rdma.OpWrite, SGL: src, Remote: rdma.RemoteAddr{TO: base, STag: stag}}
			wrs[2*i+1] = rdma.SendWR{Op: rdma.OpSend, SGL: ssgl}
		}
		if err := b.QP.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < n; {
			if k := a.CQ.Poll(wcs); k > 0 {
				got += k
			} else {
				_ = a.CQ.Wait(ctx)
			}
		}
	}
	for range 200 {
		round()
	}
	if k := alloctest.PerRun(200, round); k > 0 {
		t.Errorf("%v allocations per %d payloads", k, n)
	}
	if s := a.QP.Stats(); s.PlacedDirect == 0 {
		t.Error("nothing was placed directly")
	}
}

// Busy polling works, and ends after silence: a configured queue pair that has
// nothing to do makes no system calls.
func TestBusyPollEnds(t *testing.T) {
	for name, d := range map[string]time.Duration{"fixed": 5 * time.Millisecond, "auto": rdma.BusyPollAuto} {
		t.Run(name, func(t *testing.T) { busyPollEnds(t, rdma.ConnParams{BusyPoll: d}) })
	}
}

func calls(qp *rdma.QP) uint64 { s := qp.Stats(); return s.RecvCalls + s.PollCalls }

func busyPollEnds(t *testing.T, p rdma.ConnParams) {
	a, b := rdmatest.NewPair(t, &rdmatest.Options{Client: p, Server: p})
	for i := range 20 {
		b.Recv(t, uint64(i), nil)
		a.Post(t, rdma.SendWR{ID: uint64(i), Op: rdma.OpSend})
		a.Want(t, uint64(i), rdma.WCSend, rdma.StatusSuccess)
		b.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
	}
	deadline := time.Now().Add(rdmatest.Timeout)
	for quiet := 0; quiet < 3; {
		before := calls(a.QP) + calls(b.QP)
		time.Sleep(20 * time.Millisecond) // quiet is something that lasts
		if calls(a.QP)+calls(b.QP) == before {
			quiet++
		} else if quiet = 0; time.Now().After(deadline) {
			t.Fatal("it goes on polling")
		}
	}
	b.Recv(t, 99, nil)
	a.Post(t, rdma.SendWR{ID: 99, Op: rdma.OpSend})
	b.Want(t, 99, rdma.WCRecv, rdma.StatusSuccess)
}
