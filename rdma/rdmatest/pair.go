// Package rdmatest helps to test programs on top of package rdma: connected queue
// pairs over loopback, and completions with a deadline.
package rdmatest

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/rdma"
)

// Timeout bounds every wait of this package.
const Timeout = time.Minute

// End is one side of a connection with everything that belongs to it.
type End struct {
	Dev  *rdma.Device
	PD   *rdma.PD
	CQ   *rdma.CQ // send and receive completions
	QP   *rdma.QP
	Info *rdma.ConnInfo // MPA initiator only
}

// Options of NewPair; zero is fine.
type Options struct {
	Device rdma.DeviceConfig
	QP     rdma.QPConfig   // without the completion queues
	CQ     rdma.CQConfig   // depth 4096 unless set; Handler is used for both ends
	Client rdma.ConnParams // MPA initiator
	Server rdma.ConnParams
	// Handlers, when set, replace CQ.Handler: one for the client, one for the server.
	Handlers [2]func(*rdma.CQ)
	// Prepare, when set, is called for both ends before they are connected, for
	// example to post receive buffers.
	Prepare func(client, server *End)
}

// Pair returns two connected queue pairs, the first the MPA initiator, with
// default settings. They are closed at the end of the test.
func Pair(t testing.TB) (client, server *End) { return NewPair(t, nil) }

// NewPair is Pair with options.
func NewPair(t testing.TB, o *Options) (client, server *End) {
	t.Helper()
	if o == nil {
		o = &Options{}
	}
	client, server = NewEnd(t, o, 0), NewEnd(t, o, 1)
	if o.Prepare != nil {
		o.Prepare(client, server)
	}
	client.Info = Connect(t, client.QP, server.QP, &o.Client, &o.Server)
	return client, server
}

// Connect connects two queue pairs, which may be of one device.
func Connect(t testing.TB, client, server *rdma.QP, cp, sp *rdma.ConnParams) *rdma.ConnInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	done := make(chan error, 1)
	accept := func(req *rdma.ConnRequest, err error) {
		if err == nil {
			err = req.Accept(ctx, server, sp)
		}
		done <- err
	}
	var info *rdma.ConnInfo
	var err error
	if server.PD().Device().Attr().Provider == rdma.ProviderRoCE {
		ln, lerr := server.PD().Device().Listen("roce", net.JoinHostPort(RoCEAddr().String(), "0"), nil)
		if lerr != nil {
			t.Fatal(lerr)
		}
		defer ln.Close()
		go func() { accept(ln.Accept(ctx)) }()
		var p rdma.ConnParams
		if cp != nil {
			p = *cp
		}
		p.RoCE.LocalAddr = RoCEAddr()
		info, err = rdma.Dial(ctx, "roce", ln.Addr().String(), client, &p)
	} else {
		cc, sc := loopback.Pair(t)
		go func() { accept(rdma.Server(ctx, sc, nil)) }()
		info, err = rdma.Client(ctx, cc, client, cp)
	}
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("accept: %v", err)
	}
	return info
}

// RoCEAddr is an address of loopback that nobody else has RoCE's port of: one of 16
// million, at random.
func RoCEAddr() netip.Addr {
	n := rand.Uint32N(1<<24 - 1<<16)
	return netip.AddrFrom4([4]byte{127, byte(n>>16) + 1, byte(n >> 8), byte(n) | 1})
}

// NewEnd makes the objects of side i (0: client, 1: server) without a connection.
func NewEnd(t testing.TB, o *Options, i int) *End {
	t.Helper()
	e := &End{}
	var err error
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	e.Dev, err = rdma.Open(&o.Device)
	check(err)
	e.PD, err = e.Dev.AllocPD()
	check(err)
	cq := o.CQ
	if cq.Depth == 0 {
		cq.Depth = 4096
	}
	if o.Handlers[i] != nil {
		cq.Handler = o.Handlers[i]
	}
	e.CQ, err = e.Dev.CreateCQ(cq)
	check(err)
	cfg := o.QP
	cfg.SendCQ, cfg.RecvCQ = e.CQ, e.CQ
	e.QP, err = e.PD.CreateQP(cfg)
	check(err)
	t.Cleanup(func() {
		_ = e.QP.Close()
		if err := e.CQ.Close(); err != nil {
			t.Errorf("close CQ: %v", err)
		}
		if o.Device.Provider == rdma.ProviderRoCE { // which holds ports until then
			if err := e.PD.Dealloc(); err != nil {
				t.Errorf("end of the domain: %v", err)
			}
			if err := e.Dev.Close(); err != nil {
				t.Errorf("close device: %v", err)
			}
		}
	})
	return e
}

// Poll waits for n completions.
func (e *End) Poll(t testing.TB, n int) []rdma.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	out := make([]rdma.WC, n)
	got := 0
	for got < n {
		if k := e.CQ.Poll(out[got:]); k > 0 {
			got += k
			continue
		}
		if err := e.CQ.Wait(ctx); err != nil {
			t.Fatalf("%d of %d completions: %v; the queue pair: %v", got, n, err, e.QP.Err())
		}
	}
	return out
}

// Want waits for one completion and checks it.
func (e *End) Want(t testing.TB, id uint64, op rdma.WCOpcode, st rdma.WCStatus) rdma.WC {
	t.Helper()
	wc := e.Poll(t, 1)[0]
	if wc.ID != id || wc.Opcode != op || wc.Status != st {
		t.Fatalf("completion: ID %d, %v, %v; want %d, %v, %v; the queue pair: %v", wc.ID, wc.Opcode, wc.Status, id, op, st, e.QP.Err())
	}
	return wc
}

// SGE names mem as local memory without registration.
func (e *End) SGE(mem []byte) rdma.SGE { return rdma.SGE{Mem: mem, LKey: e.PD.LocalDMAKey()} }

// Recv posts one receive buffer.
func (e *End) Recv(t testing.TB, id uint64, mem []byte) {
	t.Helper()
	if err := e.QP.PostRecv(rdma.RecvWR{ID: id, SGL: []rdma.SGE{e.SGE(mem)}}); err != nil {
		t.Fatal(err)
	}
}

// Post posts one work request, signalled.
func (e *End) Post(t testing.TB, wr rdma.SendWR) {
	t.Helper()
	wr.Flags |= rdma.FlagSignaled
	if err := e.QP.PostSend(wr); err != nil {
		t.Fatal(err)
	}
}

// WaitDone waits for the end of the connection and returns QP.Err.
func (e *End) WaitDone(t testing.TB) error {
	t.Helper()
	select {
	case <-e.QP.Done():
	case <-time.After(Timeout):
		t.Fatal("the connection does not end")
	}
	return e.QP.Err()
}
