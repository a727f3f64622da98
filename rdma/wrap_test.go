package rdma_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

// All message sequence numbers of both directions wrap during Sends, Reads and
// atomics.
func TestMSNWrap(t *testing.T) {
	p := rdma.ConnParams{Extensions: true, ORD: 3, IRD: 3}
	a, b := rdmatest.NewPair(t, &rdmatest.Options{Client: p, Server: p})
	a.Recv(t, 1, nil)
	b.Recv(t, 1, nil)
	send := func(from, to *rdmatest.End, id uint64, p []byte) {
		t.Helper()
		from.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSend, SGL: []rdma.SGE{from.SGE(p)}})
		from.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
		to.Want(t, id, rdma.WCRecv, rdma.StatusSuccess)
	}
	send(a, b, 1, nil)
	send(b, a, 1, nil) // both have heard of each other
	if !a.QP.Extensions() || !b.QP.Extensions() {
		t.Fatal("no extensions")
	}
	rdma.SetMSN(a.QP, 0xfffffffc)
	rdma.SetMSN(b.QP, 0xfffffffc)
	src := pattern(8192, 5)
	word := aligned(8)
	mr, err := b.PD.RegMR(src, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	at, err := b.PD.RegMR(word, rdma.AccessLocalWrite|rdma.AccessRemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Dereg()
	for i := range uint64(8) {
		got, old := make([]byte, len(src)), make([]byte, 8)
		a.Recv(t, 10+i, make([]byte, 8))
		b.Recv(t, 10+i, make([]byte, 8))
		a.Post(t, rdma.SendWR{ID: 20 + i, Op: rdma.OpRead, SGL: []rdma.SGE{a.SGE(got)}, Remote: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}})
		a.Want(t, 20+i, rdma.WCRead, rdma.StatusSuccess)
		if !bytes.Equal(got, src) {
			t.Fatalf("Read %d: wrong data", i)
		}
		a.Post(t, rdma.SendWR{ID: 30 + i, Op: rdma.OpFetchAdd, Add: 1, SGL: []rdma.SGE{a.SGE(old)}, Remote: rdma.RemoteAddr{TO: at.Addr(), STag: at.RKey()}})
		a.Want(t, 30+i, rdma.WCFetchAdd, rdma.StatusSuccess)
		send(a, b, 10+i, src[:8])
		send(b, a, 10+i, src[:8])
	}
}

// An initiator that does not accept the Reply says so by a Terminate, which comes
// instead of the ready-to-receive message (RFC 6581 §8).
func TestReplyRefused(t *testing.T) {
	req := &mpa.Frame{Rev: 2, Enhanced: true, IRD: 16, ORD: 16, Flags: mpa.FlagCRC, P2P: true, RTR: mpa.RTRWrite}
	p, e := rawToServer(t, nil, req)
	term := wire.Term{Cause: wire.CauseNoRTR}
	p.send(untagged(wire.Terminate, wire.QNTerminate, 1, 0, true, term.Append(nil)))
	var te *rdma.TerminateError
	if err := e.WaitDone(t); !errors.As(err, &te) || !te.Remote || te.Layer != uint8(wire.LayerLLP) || te.Code != 7 {
		t.Errorf("the connection ended by: %v", err)
	}
}

// More short messages than the completion queue holds may come in one piece; the
// handler runs in between.
func TestManyShortMessages(t *testing.T) {
	const sends = 600
	var seen atomic.Int64
	gate := make(chan struct{})
	o := &rdmatest.Options{CQ: rdma.CQConfig{Depth: 128}, QP: rdma.QPConfig{MaxRecv: 1000}}
	o.Handlers[1] = func(cq *rdma.CQ) {
		if seen.Load() == 0 {
			<-gate
		}
		var wcs [16]rdma.WC
		for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
			for _, wc := range wcs[:n] {
				if wc.Status == rdma.StatusSuccess && wc.ID != uint64(seen.Add(1)) {
					t.Errorf("buffer %d as number %d", wc.ID, seen.Load())
				}
			}
		}
	}
	p, e := rawToServer(t, o, nil)
	for i := range sends + 1 {
		e.Recv(t, uint64(i+1), make([]byte, 16))
	}
	p.send(sendMsg(1, nil))
	var b []byte
	for i := range sends {
		b = append(b, p.fpdu(sendMsg(uint32(i+2), []byte("short")))...)
	}
	p.write(b)
	close(gate)
	_ = p.nc.CloseWrite()
	if err := e.WaitDone(t); errors.Is(err, rdma.ErrOverflow) {
		t.Error(err)
	}
	if seen.Load() != sends+1 {
		t.Errorf("%d of %d Sends have arrived", seen.Load(), sends+1)
	}
}

// TestSlowHandlerRoCE: over RoCE packets come on while the handler is at work. A Send for whose
// completion there is no room is told to come again; without anybody to tell it is lost, as without
// a buffer. The queue does not overflow, which would end the connection, and take buffers of a
// shared receive queue along.
func TestSlowHandlerRoCE(t *testing.T) {
	const sends, depth = 40, 8
	for _, kind := range []rdma.QPType{rdma.TypeRC, rdma.TypeUC} {
		t.Run(kind.String(), func(t *testing.T) {
			o := overRoCE()
			o.QP.Type = kind
			gate := make(chan struct{})
			var seen atomic.Uint64
			a, b := rdmatest.NewEnd(t, o, 0), (*rdmatest.End)(nil)
			o.CQ.Depth = depth
			o.Handlers[1] = func(cq *rdma.CQ) {
				<-gate
				var wcs [4]rdma.WC
				for n := cq.Poll(wcs[:]); n > 0; n = cq.Poll(wcs[:]) {
					for _, wc := range wcs[:n] {
						if wc.Status == rdma.StatusSuccess {
							seen.Add(1)
						}
					}
				}
			}
			b = rdmatest.NewEnd(t, o, 1)
			for i := range sends {
				b.Recv(t, uint64(i), make([]byte, 8))
			}
			rdmatest.Connect(t, a.QP, b.QP, nil, nil)
			for i := range sends {
				a.Post(t, rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.FlagSignaled})
			}
			if kind == rdma.TypeUC {
				a.Poll(t, sends)
			}
			await.True(t, "more has come than there is room for", func() bool { return b.QP.Stats().WireIn > depth*16 })
			close(gate)
			if kind == rdma.TypeRC {
				for _, wc := range a.Poll(t, sends) {
					if wc.Status != rdma.StatusSuccess {
						t.Fatalf("Send %d: %v", wc.ID, wc.Status)
					}
				}
				await.True(t, "all Sends have arrived", func() bool { return seen.Load() == sends })
			}
			if b.CQ.Overflowed() || b.QP.State() != rdma.StateRTS {
				t.Errorf("overflowed: %v, %v (%v)", b.CQ.Overflowed(), b.QP.State(), b.QP.Err())
			}
		})
	}
}
