package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/port"
	"softiser/rdma/internal/roce/udp"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

func overRoCE() *rdmatest.Options {
	return &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}}
}

// TestNAKs: every check of memory, for every operation that names memory of ours. The
// peer is told by a NAK for remote access, both ends say so, and nothing is touched.
func TestNAKs(t *testing.T) {
	for _, tt := range targets {
		for op, want := range map[rdma.Opcode]wire.Cause{rdma.OpWrite: tt.write, rdma.OpRead: tt.read, rdma.OpFetchAdd: tt.atomic} {
			if want == none {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", tt.name, op), func(t *testing.T) {
				a, b := rdmatest.NewPair(t, overRoCE())
				m := newMemory(t, b)
				before := bytes.Clone(m.mem)
				wr := rdma.SendWR{ID: 1, Op: op, SGL: []rdma.SGE{a.SGE(bytes.Repeat([]byte{0xee}, int(tt.n)))}, Remote: rdma.RemoteAddr{TO: tt.to(m), STag: tt.stag(m)}}
				if op == rdma.OpFetchAdd {
					wr.SGL, wr.Remote.TO, wr.Add = []rdma.SGE{a.SGE(make([]byte, 8))}, wr.Remote.TO&^7, 1
				}
				b.Recv(t, 2, make([]byte, 8))
				a.Post(t, wr)
				a.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpSend})
				if wc := a.Poll(t, 1)[0]; wc.ID != 1 || wc.Status != rdma.StatusRemoteAccess {
					t.Errorf("%+v", wc)
				}
				a.Want(t, 3, rdma.WCSend, rdma.StatusFlushed)
				for _, e := range []*rdmatest.End{a, b} {
					var nak *rdma.NAKError
					if err := e.WaitDone(t); !errors.As(err, &nak) || nak.Code != 2 || nak.Remote != (e == a) {
						t.Errorf("ended by: %v", err)
					}
				}
				b.Want(t, 2, rdma.WCRecv, rdma.StatusFlushed)
				if !bytes.Equal(before, m.mem) {
					t.Error("memory was changed")
				}
			})
		}
	}
}

// TestSendRefused: what is wrong with a Send ends the connection with the status of its
// kind at both ends.
func TestSendRefused(t *testing.T) {
	for _, tt := range []struct {
		name       string
		wr         func(*rdmatest.End) rdma.SendWR
		at, behind rdma.WCStatus // of the Send, of the receive
	}{
		{"longer than the buffer", func(a *rdmatest.End) rdma.SendWR {
			return rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 9))}}
		}, rdma.StatusRemoteInvalid, rdma.StatusLocalLength},
		// The fault is acknowledged (IBA vol. 1 §9.9.6.3), and then the connection ends.
		{"key that it may not invalidate", func(*rdmatest.End) rdma.SendWR {
			return rdma.SendWR{ID: 1, Op: rdma.OpSendInv, InvSTag: 0x4321}
		}, rdma.StatusSuccess, rdma.StatusRemoteInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := rdmatest.NewPair(t, overRoCE())
			b.Recv(t, 2, make([]byte, 8))
			a.Post(t, tt.wr(a))
			a.Want(t, 1, rdma.WCSend, tt.at)
			b.Want(t, 2, rdma.WCRecv, tt.behind)
			var nak *rdma.NAKError
			if err := b.WaitDone(t); !errors.As(err, &nak) || nak.Remote || nak.Code != 1 {
				t.Errorf("ended by: %v", err)
			}
			if err := a.WaitDone(t); err == nil {
				t.Error("the peer does not say why")
			}
		})
	}
}

// TestLocalKeysRoCE: a request with a key that does not fit fails; what was queued before
// it is done, what is behind it is flushed.
func TestLocalKeysRoCE(t *testing.T) {
	a, b := rdmatest.NewPair(t, overRoCE())
	b.Recv(t, 9, nil)
	if err := a.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpSend, Flags: rdma.FlagSignaled},
		rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{{Mem: make([]byte, 1), LKey: 0x7654}}},
		rdma.SendWR{ID: 3, Op: rdma.OpSend}); err != nil {
		t.Fatal(err)
	}
	a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
	a.Want(t, 2, rdma.WCSend, rdma.StatusLocalProtection)
	a.Want(t, 3, rdma.WCSend, rdma.StatusFlushed)
	b.Want(t, 9, rdma.WCRecv, rdma.StatusSuccess)
	if err := b.WaitDone(t); err != io.EOF {
		t.Errorf("at the peer: %v", err)
	}
}

// TestReceiverNotReady: a Send that meets no buffer waits for one, as often as was agreed.
func TestReceiverNotReady(t *testing.T) {
	t.Run("waits", func(t *testing.T) {
		a, b := rdmatest.NewPair(t, overRoCE())
		a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
		await.True(t, "the Send has been sent", func() bool { return b.QP.Stats().WireIn > 0 })
		if a.CQ.Len() != 0 {
			t.Error("the Send has ended")
		}
		b.Recv(t, 2, nil)
		a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
		b.Want(t, 2, rdma.WCRecv, rdma.StatusSuccess)
	})
	t.Run("gives up", func(t *testing.T) {
		o := overRoCE()
		o.Server.RoCE.RNRRetry = -1
		a, b := rdmatest.NewPair(t, o)
		a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
		a.Want(t, 1, rdma.WCSend, rdma.StatusRNRRetryExceeded)
		if err := a.WaitDone(t); err == nil || errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("ended by: %v", err)
		}
		if err := b.WaitDone(t); err != io.EOF {
			t.Errorf("at the peer: %v", err)
		}
	})
}

// A peer that has no receive buffer, and may say so for ever, does not keep a connection that is to end.
func TestDisconnectOfOneWhoIsNotReady(t *testing.T) {
	t.Parallel() // it waits by the clock
	a, b := rdmatest.NewPair(t, overRoCE())
	a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	a.QP.Disconnect()
	a.Want(t, 1, rdma.WCSend, rdma.StatusFlushed)
	if err := a.WaitDone(t); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("the connection has ended with %v", err)
	}
	if err := b.WaitDone(t); err != io.EOF {
		t.Errorf("at the peer: %v", err)
	}
}

// deaf is a peer that accepts connections and has nobody behind their queue pairs.
type deaf struct {
	*port.Port
	at    string
	ended chan error
	conns chan *cm.Conn
}

func newDeaf(t *testing.T) *deaf {
	t.Helper()
	p, err := port.Open(port.Config{UDP: udp.Config{Addr: rdmatest.RoCEAddr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	l, err := p.CM().Listen(mad.ServiceOf(mad.ProtocolTCP, 7174), 8)
	if err != nil {
		t.Fatal(err)
	}
	d := &deaf{p, netip.AddrPortFrom(p.Addr(), 7174).String(), make(chan error, 8), make(chan *cm.Conn, 8)}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	wg.Go(func() {
		for {
			in, err := l.Accept(ctx)
			if err != nil {
				return
			}
			c, err := in.Accept(&cm.Reply{QPN: 77, PSN: 1, ResponderResources: 4, RNRRetry: 7}, cm.Hooks{Ended: func(err error) { d.ended <- err }})
			if err != nil {
				t.Error(err)
				return
			}
			d.conns <- c
		}
	})
	return d
}

// TestPeerDies: requests without an answer are repeated, then the first one says so, the
// others are flushed, and the peer's connection manager is told.
func TestPeerDies(t *testing.T) {
	d, e := newDeaf(t), rdmatest.NewEnd(t, overRoCE(), 0)
	p := &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr(), AckTimeout: time.Millisecond, RetryCount: 2}}
	if _, err := rdma.Dial(ctxT(t), "roce", d.at, e.QP, p); err != nil {
		t.Fatal(err)
	}
	e.Recv(t, 9, nil)
	if err := e.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpWrite, SGL: []rdma.SGE{e.SGE(make([]byte, 5000))}, Remote: rdma.RemoteAddr{STag: 1}},
		rdma.SendWR{ID: 2, Op: rdma.OpRead, SGL: []rdma.SGE{e.SGE(make([]byte, 50))}},
		rdma.SendWR{ID: 3, Op: rdma.OpSend}); err != nil {
		t.Fatal(err)
	}
	e.Want(t, 1, rdma.WCWrite, rdma.StatusRetryExceeded)
	e.Want(t, 2, rdma.WCRead, rdma.StatusFlushed)
	e.Want(t, 3, rdma.WCSend, rdma.StatusFlushed)
	e.Want(t, 9, rdma.WCRecv, rdma.StatusFlushed)
	if err := e.WaitDone(t); !errors.Is(err, rdma.ErrTimeout) || !strings.Contains(err.Error(), "asked 3 times") {
		t.Errorf("ended by: %v", err)
	}
	if err := <-d.ended; !errors.Is(err, cm.ErrDisconnected) {
		t.Errorf("the peer was told: %v", err)
	}
	if s := d.Stats(); s.NoQP != 3*4 { // two packets of the Write, Read, Send
		t.Errorf("%d packets came, want each three times", s.NoQP)
	}
}

// TestPeerLeaves: the peer's end of the connection flushes what is in flight.
func TestPeerLeaves(t *testing.T) {
	d, e := newDeaf(t), rdmatest.NewEnd(t, overRoCE(), 0)
	p := &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}}
	if _, err := rdma.Dial(ctxT(t), "roce", d.at, e.QP, p); err != nil {
		t.Fatal(err)
	}
	e.Recv(t, 2, nil)
	e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	if err := (<-d.conns).Disconnect(); err != nil {
		t.Fatal(err)
	}
	e.Want(t, 1, rdma.WCSend, rdma.StatusFlushed)
	e.Want(t, 2, rdma.WCRecv, rdma.StatusFlushed)
	if err := e.WaitDone(t); err != io.EOF {
		t.Errorf("ended by: %v", err)
	}
}

// Datagrams to the queue pair of a connection, which others at the peer's address may send, neither
// show that the peer is ready nor end the connection.
func TestDatagramsToAConnection(t *testing.T) {
	for transport, service := range map[mad.Service]packet.Opcode{mad.ServiceRC: packet.RC, mad.ServiceUC: packet.UC} {
		established := make(chan struct{}, 1)
		o := overRoCE()
		if o.QP.OnEvent = func(_ *rdma.QP, e rdma.Event) {
			if e == rdma.EventEstablished {
				established <- struct{}{}
			}
		}; transport == mad.ServiceUC {
			o.QP.Type = rdma.TypeUC
		}
		e := rdmatest.NewEnd(t, o, 1)
		e.Recv(t, 1, make([]byte, 8))
		to := rdmatest.RoCEAddr()
		ln, err := e.Dev.Listen("roce", netip.AddrPortFrom(to, 7174).String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		accepted := make(chan error, 1)
		go func() {
			req, err := ln.Accept(ctxT(t))
			if err == nil {
				err = req.Accept(ctxT(t), e.QP, nil)
			}
			accepted <- err
		}()
		p, err := port.Open(port.Config{UDP: udp.Config{Addr: rdmatest.RoCEAddr()}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		c, err := p.CM().Connect(ctxT(t), to, &cm.Request{Service: mad.ServiceOf(mad.ProtocolTCP, 7174), Transport: transport, QPN: 77, PSN: 1, MTU: 3}, cm.Hooks{})
		if err == nil {
			err = <-accepted
		}
		if err != nil {
			t.Fatal(err)
		}
		rep, s, b := c.Reply(), p.DatagramSender(0), []byte("eight by")
		send := func(op packet.Opcode) {
			pkt := packet.Packet{BTH: packet.BTH{Op: op | packet.SendOnly, PKey: packet.DefaultPKey, AckReq: true, QPN: rep.QPN, PSN: packet.PSN(rep.PSN)}}
			_, err := s.AddTo(to, &pkt, [][]byte{b}, len(b), true)
			if err = errors.Join(err, s.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // an event would have been told of meanwhile
			before := e.QP.Stats().WireIn
			send(packet.UD)
			await.True(t, "it has come", func() bool { return e.QP.Stats().WireIn > before })
		}
		select {
		case <-established:
			t.Errorf("%v: a datagram has shown that the peer is ready", service)
			established <- struct{}{}
		default:
		}
		send(service)
		e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
		<-established
	}
}

// TestDialRoCE: private data and depths of both sides, and that what the one says the
// other hears.
func TestDialRoCE(t *testing.T) {
	srv, cli := rdmatest.NewEnd(t, overRoCE(), 1), rdmatest.NewEnd(t, overRoCE(), 0)
	ln, err := srv.Dev.Listen("roce", net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	errc := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctxT(t))
		if err == nil {
			if string(bytes.TrimRight(req.PrivateData(), "\x00")) != "hello" || len(req.PrivateData()) != 56 || req.IRD() != 8 || req.ORD() != 4 || req.Rev() != 0 || !req.CRC() || req.P2P() != rdma.P2POff {
				t.Errorf("request %q IRD %d ORD %d", req.PrivateData(), req.IRD(), req.ORD())
			}
			err = req.Accept(ctxT(t), srv.QP, &rdma.ConnParams{PrivateData: []byte("welcome"), IRD: 2, ORD: 16})
			if again := req.Reject(nil); !errors.Is(again, rdma.ErrState) {
				t.Errorf("second answer: %v", again)
			}
		}
		errc <- err
	}()
	local := rdmatest.RoCEAddr()
	info, err := rdma.Dial(ctxT(t), "roce", ln.Addr().String(), cli.QP, &rdma.ConnParams{PrivateData: []byte("hello"), IRD: 8, ORD: 4, RoCE: rdma.RoCEParams{LocalAddr: local, PathMTU: 1024}})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	if string(bytes.TrimRight(info.PrivateData, "\x00")) != "welcome" || info.ORD != 2 || info.IRD != 8 || !info.CRC || !info.Initiator ||
		info.RoCE.PathMTU != 1024 || info.RoCE.RemoteQPN != srv.QP.Num() || info.RemoteAddr.String() != ln.Addr().String() || !strings.HasPrefix(info.LocalAddr.String(), local.String()+":") {
		t.Errorf("active side: %+v", info)
	}
	if s := srv.QP.Info(); s.IRD != 2 || s.ORD != 8 || s.Initiator || s.RoCE.PathMTU != 1024 || s.RoCE.RemoteQPN != cli.QP.Num() || s.RemoteAddr.String() != info.LocalAddr.String() {
		t.Errorf("passive side: %+v", s)
	}
	// The passive side may send first: what it posts waits for the last step of the start-up.
	cli.Recv(t, 1, nil)
	srv.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
	srv.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	cli.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
}

// TestDialFails: whoever cannot connect is told why, and can try again.
func TestDialFails(t *testing.T) {
	srv, cli := rdmatest.NewEnd(t, overRoCE(), 1), rdmatest.NewEnd(t, overRoCE(), 0)
	ln, err := srv.Dev.Listen("roce", net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"), nil)
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	local := rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}
	dial := func(ctx context.Context, network, addr string, p rdma.ConnParams) error {
		if !p.RoCE.LocalAddr.IsValid() {
			p.RoCE.LocalAddr = local.LocalAddr
		}
		_, err := rdma.Dial(ctx, network, addr, cli.QP, &p)
		if err != nil && cli.QP.State() != rdma.StateIdle {
			t.Fatalf("%v; state %v", err, cli.QP.State())
		}
		return err
	}
	go func() {
		if req, err := ln.Accept(ctxT(t)); err == nil {
			_ = req.Reject([]byte("full"))
		}
	}()
	var rej *rdma.RejectError
	if err := dial(ctxT(t), "roce", at, rdma.ConnParams{}); !errors.As(err, &rej) || string(bytes.TrimRight(rej.PrivateData, "\x00")) != "full" || !errors.Is(err, rdma.ErrRejected) {
		t.Errorf("rejected: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if err := dial(ctxT(t), "roce", at, rdma.ConnParams{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	// Nobody has the port of this address.
	silent := net.JoinHostPort(rdmatest.RoCEAddr().String(), "7174")
	if err := dial(ctxT(t), "roce", silent, rdma.ConnParams{Timeout: 10 * time.Millisecond}); !errors.Is(err, rdma.ErrTimeout) || !strings.Contains(err.Error(), "4791") {
		t.Errorf("nobody there: %v", err)
	}
	short, cancel := context.WithCancel(ctxT(t))
	cancel()
	if err := dial(short, "roce", silent, rdma.ConnParams{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	for name, p := range map[string]rdma.ConnParams{
		"private data":         {PrivateData: make([]byte, 57)},
		"IRD":                  {IRD: 129},
		"path MTU":             {RoCE: rdma.RoCEParams{PathMTU: 1500}},
		"retries":              {RoCE: rdma.RoCEParams{RetryCount: 8}},
		"RNR retries":          {RoCE: rdma.RoCEParams{RNRRetry: 8}},
		"time of an answer":    {RoCE: rdma.RoCEParams{AckTimeout: 3 * time.Hour}},
		"no time":              {RoCE: rdma.RoCEParams{AckTimeout: -1}},
		"addresses of 2 kinds": {RoCE: rdma.RoCEParams{LocalAddr: netip.MustParseAddr("2001:db8::1")}}, // which is not this host's either
	} {
		if err := dial(ctxT(t), "roce", at, p); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := rdmatest.NewEnd(t, &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE, MaxIRD: 256, MaxORD: 256}}, 0)
	for _, p := range []rdma.ConnParams{{IRD: 256}, {ORD: 256}} { // as bytes: none
		p.RoCE.LocalAddr = rdmatest.RoCEAddr()
		if _, err := rdma.Dial(ctxT(t), "roce", at, many.QP, &p); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("IRD %d, ORD %d: %v", p.IRD, p.ORD, err)
		}
	}
	for _, addr := range []string{"127.0.0.1", "127.0.0.1:rping", "127.0.0.1:70000"} {
		if err := dial(ctxT(t), "roce", addr, rdma.ConnParams{}); err == nil {
			t.Errorf("%s: no error", addr)
		}
	}
	for _, addr := range []string{"0.0.0.0:7174", "239.1.2.3:7174"} { // which would be waited for
		if err := dial(ctxT(t), "roce", addr, rdma.ConnParams{Timeout: 10 * time.Millisecond}); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if err := dial(ctxT(t), "tcp", at, rdma.ConnParams{}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("another network: %v", err)
	}
	c, _ := net.Pipe()
	if _, err := rdma.Client(ctxT(t), c, cli.QP, nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("a TCP connection: %v", err)
	}
	if _, err := cli.Dev.Listen("roce", "0.0.0.0:7174", nil); err == nil || !strings.Contains(err.Error(), "address of an interface") {
		t.Errorf("listen on all addresses: %v", err)
	}
}

// TestNextAddress: a host is reached at its next address where nobody listens at the first one, but
// not where somebody refuses.
func TestNextAddress(t *testing.T) {
	srv, cli := rdmatest.NewEnd(t, overRoCE(), 1), rdmatest.NewEnd(t, overRoCE(), 0)
	listen := func() *rdma.Listener {
		t.Helper()
		ln, err := srv.Dev.Listen("roce", net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		return ln
	}
	ln, other := listen(), listen()
	at, elsewhere := netip.AddrPort(ln.Addr().(rdma.RoCEAddr)), netip.AddrPort(other.Addr().(rdma.RoCEAddr))
	nobody := netip.AddrPortFrom(elsewhere.Addr(), elsewhere.Port()-1)
	p := &rdma.ConnParams{RoCE: rdma.RoCEParams{LocalAddr: rdmatest.RoCEAddr()}}

	go func() {
		if req, err := ln.Accept(ctxT(t)); err == nil {
			_ = req.Reject(nil)
		}
	}()
	if err := rdma.DialOneOf(ctxT(t), []netip.AddrPort{at, elsewhere}, cli.QP, p); !errors.Is(err, rdma.ErrRejected) {
		t.Errorf("the first one refuses: %v", err)
	}
	if err := rdma.DialOneOf(ctxT(t), []netip.AddrPort{nobody, {}}, cli.QP, p); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v, want what the first one has said", err)
	}
	errc := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctxT(t))
		if err == nil {
			err = req.Accept(ctxT(t), srv.QP, nil)
		}
		errc <- err
	}()
	if err := rdma.DialOneOf(ctxT(t), []netip.AddrPort{nobody, at}, cli.QP, p); err != nil {
		t.Fatal(err)
	}
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	if got := cli.QP.Info().RemoteAddr.String(); got != at.String() {
		t.Errorf("connected to %s, want %v", got, at)
	}
}

// TestPortInUse: somebody else has the port, which the error says.
func TestPortInUse(t *testing.T) {
	addr := rdmatest.RoCEAddr()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, udp.PortNumber)))
	if err != nil {
		t.Fatal(err)
	}
	e := rdmatest.NewEnd(t, overRoCE(), 0)
	at := net.JoinHostPort(addr.String(), "7174")
	if _, err := e.Dev.Listen("roce", at, nil); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "UDP port 4791") {
		t.Errorf("%v", err)
	}
	c.Close()
	ln, err := e.Dev.Listen("roce", at, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Dev.Listen("roce", at, nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("two listeners: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
}

// TestSharedPort: devices of one process share the port of an address, which is free
// again when the last one is closed.
func TestSharedPort(t *testing.T) {
	addr := net.JoinHostPort(rdmatest.RoCEAddr().String(), "0")
	var devs [2]*rdma.Device
	for i := range devs {
		d, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := d.Listen("roce", addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		devs[i] = d
	}
	host, _, _ := net.SplitHostPort(addr)
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(host), udp.PortNumber))
	for i, d := range devs {
		if c, err := net.ListenUDP("udp", at); err == nil {
			c.Close()
			t.Fatalf("the port is free with %d devices open", len(devs)-i)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := net.ListenUDP("udp", at)
	if err != nil {
		t.Fatalf("the port is still taken: %v", err)
	}
	c.Close()
	if _, err := devs[0].Listen("roce", addr, nil); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a closed device listens: %v", err)
	}
}

// TestHandlersWait: a handler that waits holds up its own connection, not the others of
// the address.
func TestHandlersWait(t *testing.T) {
	entered, release := make(chan struct{}, 16), make(chan struct{})
	o := overRoCE()
	o.Handlers[1] = func(cq *rdma.CQ) {
		if cq.Len() > 0 {
			entered <- struct{}{}
			<-release
			cq.Poll(make([]rdma.WC, 8))
		}
	}
	a, b := rdmatest.NewPair(t, o)
	b.Recv(t, 1, nil)
	a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	<-entered
	a.Want(t, 1, rdma.WCSend, rdma.StatusSuccess) // acknowledged all the same
	// A second connection between the same two devices.
	cqs, qps := [2]*rdma.CQ{}, [2]*rdma.QP{}
	for i, e := range []*rdmatest.End{a, b} {
		var err error
		if cqs[i], err = e.Dev.CreateCQ(rdma.CQConfig{}); err != nil {
			t.Fatal(err)
		}
		if qps[i], err = e.PD.CreateQP(rdma.QPConfig{SendCQ: cqs[i], RecvCQ: cqs[i]}); err != nil {
			t.Fatal(err)
		}
		defer cqs[i].Close()
		defer qps[i].Close()
	}
	rdmatest.Connect(t, qps[0], qps[1], nil, nil)
	if err := qps[1].PostRecv(rdma.RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if err := qps[0].PostSend(rdma.SendWR{ID: 8, Op: rdma.OpSend, Flags: rdma.FlagSignaled}); err != nil {
		t.Fatal(err)
	}
	for _, cq := range cqs {
		if err := cq.Wait(ctxT(t)); err != nil {
			t.Error(err)
		}
	}
	close(release)
}

// TestWhatRoCELacks: requests that it cannot carry are refused when they are posted.
func TestWhatRoCELacks(t *testing.T) {
	a, _ := rdmatest.NewPair(t, overRoCE())
	word := []rdma.SGE{a.SGE(make([]byte, 8))}
	for name, wr := range map[string]rdma.SendWR{
		"long immediate data": {Op: rdma.OpImm, Imm: 1 << 32},
		"the same with Write": {Op: rdma.OpWriteImm, Imm: 1 << 32},
		"mask of FetchAdd":    {Op: rdma.OpFetchAdd, SGL: word, AddMask: 1},
		"mask of CmpSwap":     {Op: rdma.OpCmpSwap, SGL: word, SwapMask: 1},
	} {
		if err := a.QP.PostSend(wr); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if attr := a.Dev.Attr(); attr.MaxImm != 1<<32-1 || attr.MaskedAtomics || attr.Provider != rdma.ProviderRoCE {
		t.Errorf("%+v", attr)
	}
}

// TestSendImm: immediate data goes with a Send of any length.
func TestSendImm(t *testing.T) {
	a, b := rdmatest.NewPair(t, overRoCE())
	for i, n := range []int{0, 1, 4096, 10_000} {
		id := uint64(i)
		want, got := pattern(n, id), make([]byte, n)
		b.Recv(t, id, got)
		a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSendImm, Imm: 0xfffffff0 + id, SGL: []rdma.SGE{a.SGE(want)}})
		a.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
		if wc := b.Want(t, id, rdma.WCRecv, rdma.StatusSuccess); wc.Flags != rdma.WCWithImm || wc.Imm != 0xfffffff0+id || int(wc.ByteLen) != n || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %+v", n, wc)
		}
	}
}

// TestNoReads: a peer that serves no Reads fails them alone.
func TestNoReads(t *testing.T) {
	o := overRoCE()
	o.Server.IRD = -1
	a, b := rdmatest.NewPair(t, o)
	b.Recv(t, 3, nil)
	a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpRead, SGL: []rdma.SGE{a.SGE(make([]byte, 8))}})
	a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
	a.Want(t, 1, rdma.WCRead, rdma.StatusUnsupported)
	a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 3, rdma.WCRecv, rdma.StatusSuccess)
}

// TestProviderWords: the names read as themselves.
func TestProviderWords(t *testing.T) {
	for _, p := range []rdma.Provider{rdma.ProviderIWARP, rdma.ProviderRoCE} {
		if got, err := rdma.ParseProvider(p.String()); err != nil || got != p {
			t.Errorf("%v reads as %v, %v", p, got, err)
		}
	}
	if _, err := rdma.ParseProvider("rxe"); !errors.Is(err, rdma.ErrInvalid) {
		t.Error(err)
	}
	if _, err := rdma.Open(&rdma.DeviceConfig{Provider: 7}); !errors.Is(err, rdma.ErrInvalid) {
		t.Error(err)
	}
}
