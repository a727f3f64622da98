package rdma_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/sockio"
	"softiser/rdma"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
	"softiser/rdma/rdmatest"
)

func ctxT(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Listen, Dial, Accept with private data both ways.
func TestDialListen(t *testing.T) {
	srv := rdmatest.NewEnd(t, &rdmatest.Options{}, 1)
	cli := rdmatest.NewEnd(t, &rdmatest.Options{}, 0)
	ln, err := srv.Dev.Listen("tcp", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	srv.Recv(t, 1, make([]byte, 8))
	errc := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctxT(t))
		if err == nil {
			if string(req.PrivateData()) != "hello" || req.IRD() != 8 || req.ORD() != 4 || req.Rev() != 2 || !req.CRC() {
				t.Errorf("request %q IRD %d ORD %d", req.PrivateData(), req.IRD(), req.ORD())
			}
			err = req.Accept(ctxT(t), srv.QP, &rdma.ConnParams{PrivateData: []byte("welcome"), IRD: 2, ORD: 2})
			if again := req.Reject(nil); !errors.Is(again, rdma.ErrState) {
				t.Errorf("second answer: %v", again)
			}
		}
		errc <- err
	}()
	info, err := rdma.Dial(ctxT(t), "tcp", ln.Addr().String(), cli.QP, &rdma.ConnParams{PrivateData: []byte("hello"), IRD: 8, ORD: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	if string(info.PrivateData) != "welcome" || info.ORD != 2 || info.IRD != 8 || !info.CRC || !info.Initiator {
		t.Errorf("initiator: %+v", info)
	}
	if s := srv.QP.Info(); s.IRD != 2 || s.ORD != 2 || s.Initiator || s.MPA.FPDUSize < 1024 || s.MPA.FPDUSize > 64<<10 {
		t.Errorf("responder: %+v", s)
	}
	cli.Post(t, rdma.SendWR{Op: rdma.OpSend})
	srv.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
}

func TestReject(t *testing.T) {
	cli := rdmatest.NewEnd(t, &rdmatest.Options{}, 0)
	c, s := loopback.Pair(t)
	go func() {
		if req, err := rdma.Server(ctxT(t), s, nil); err == nil {
			_ = req.Reject([]byte("full"))
		}
	}()
	_, err := rdma.Client(ctxT(t), c, cli.QP, nil)
	var rej *rdma.RejectError
	if !errors.As(err, &rej) || string(rej.PrivateData) != "full" || !errors.Is(err, rdma.ErrRejected) {
		t.Errorf("%v", err)
	}
	if cli.QP.State() != rdma.StateIdle {
		t.Errorf("state %v; a rejected queue pair can be used again", cli.QP.State())
	}
}

// What the responder answers to frames that it does not take: a reject, or
// nothing, and then the end of the stream.
func TestServerRefuses(t *testing.T) {
	key := []byte("MPA ID Req Frame")
	for _, tt := range []struct {
		name string
		in   []byte
		want string // of the Reply, behind the key
	}{
		{"markers", append(bytes.Clone(key), 0x90, 2, 0, 4, 0, 1, 0, 1), "\x30\x02\x00\x04\x00\x00\x00\x00"},
		{"enhanced without a word", append(bytes.Clone(key), 0x10, 2, 0, 0), "\x30\x02\x00\x04\x00\x00\x00\x00"},
		{"revision 3", append(bytes.Clone(key), 0x10, 3, 0, 4, 0, 1, 0, 1), ""},
		{"too much private data", append(bytes.Clone(key), 0x00, 1, 2, 1), ""},
		{"other protocol", []byte("GET / HTTP/1.1\r\n\r\n"), ""},
		{"half a frame", key, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := loopback.Pair(t)
			defer c.Close()
			if _, err := c.Write(tt.in); err != nil {
				t.Fatal(err)
			}
			_ = c.CloseWrite()
			if _, err := rdma.Server(ctxT(t), s, nil); err == nil {
				t.Fatal("accepted")
			}
			got, err := io.ReadAll(c)
			if err != nil && len(got) == 0 {
				got = nil // reset, because bytes were left unread
			}
			want := ""
			if tt.want != "" {
				want = "MPA ID Rep Frame" + tt.want
			}
			if string(got) != want {
				t.Errorf("answered %q, want %q", got, want)
			}
		})
	}
}

// The initiator tells the responder by a Terminate why its Reply will not do.
func TestClientRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		rep  mpa.Frame
		want wire.Cause
	}{
		{"ORD too large", mpa.Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 17}, wire.CauseInsufficient},
		{"revision 1", mpa.Frame{Rev: 1}, wire.CauseBadFrame},
		{"markers", mpa.Frame{Rev: 2, Enhanced: true, Flags: mpa.FlagMarkers}, wire.CauseMPALocal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cli := rdmatest.NewEnd(t, &rdmatest.Options{}, 0)
			c, s := loopback.Pair(t)
			defer s.Close()
			errc := make(chan error, 1)
			go func() {
				_, err := rdma.Client(ctxT(t), c, cli.QP, nil)
				errc <- err
			}()
			var req mpa.Frame
			if err := mpa.ReadFrame(s, &req, false); err != nil {
				t.Fatal(err)
			}
			tt.rep.Reply = true
			if _, err := s.Write(tt.rep.Append(nil)); err != nil {
				t.Fatal(err)
			}
			p := &rawPeer{t: t, nc: s, crc: true}
			if term := p.terminate(); term.Cause != tt.want {
				t.Errorf("Terminate says %v, want %v", term.Cause, tt.want)
			}
			if err := <-errc; !errors.Is(err, rdma.ErrRefused) {
				t.Error(err)
			}
		})
	}
}

// captureOne begins to capture one new connection; over ends that, and expects that there
// was one, and that it has ended.
func captureOne(t *testing.T) (over func()) {
	t.Helper()
	tap, err := sockio.StartTap(sockio.TapFilter{New: true, Most: 1}, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Stop)
	return func() {
		t.Helper()
		seen := 0
		for {
			_, err := tap.Next(func() {
				t.Error("the connection is still captured")
				tap.Stop()
			})
			if err != nil {
				break
			}
			seen++
		}
		if seen == 0 {
			t.Error("no connection was captured")
		}
	}
}

// A start-up whose queue pair is found connected at its end leaves nothing behind.
func TestConnectTwice(t *testing.T) {
	_, e := rawToClient(t, nil)
	over := captureOne(t)
	c, s := loopback.Pair(t)
	defer s.Close()
	if _, err := s.Write((&mpa.Frame{Reply: true, Rev: 2, Enhanced: true, IRD: 16, ORD: 16, Flags: mpa.FlagCRC}).Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := rdma.Client(ctxT(t), c, e.QP, nil); !errors.Is(err, rdma.ErrState) {
		t.Errorf("connected twice: %v", err)
	}
	over()
}

// Nobody waits for ever: time-outs and cancellation of both sides, on a fake
// clock.
func TestStartupTimeouts(t *testing.T) {
	cases := map[string]func(nc net.Conn, ctx context.Context) error{
		"server": func(nc net.Conn, ctx context.Context) error {
			_, err := rdma.Server(ctx, nc, nil)
			return err
		},
		"client": func(nc net.Conn, ctx context.Context) error {
			d, err := rdma.Open(nil)
			if err != nil {
				return err
			}
			pd, _ := d.AllocPD()
			cq, _ := d.CreateCQ(rdma.CQConfig{})
			qp, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq})
			if err != nil {
				return err
			}
			_, err = rdma.Client(ctx, nc, qp, nil)
			return err
		},
	}
	for name, f := range cases {
		want := map[string]time.Duration{"server": 5 * time.Second, "client": 10 * time.Second}[name]
		for _, part := range []string{"", "MPA ID", "MPA ID Req Frame\x10"} {
			if name == "client" && part != "" {
				part = part[:4]
			}
			t.Run(name+"/silent after "+part, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					here, there := net.Pipe()
					defer there.Close()
					go func() {
						if name == "client" {
							_, _ = io.ReadFull(there, make([]byte, 24))
						}
						_, _ = there.Write([]byte(part))
					}()
					start := time.Now()
					err := f(here, context.Background())
					if took := time.Since(start); !errors.Is(err, rdma.ErrTimeout) || took != want {
						t.Errorf("after %v: %v", took, err)
					}
				})
			})
		}
		if name == "client" {
			t.Run(name+"/closed", func(t *testing.T) {
				here, there := net.Pipe()
				go func() {
					_, _ = io.ReadFull(there, make([]byte, 24))
					there.Close()
				}()
				if err := f(here, context.Background()); !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "does it speak iWARP there?") {
					t.Error(err)
				}
			})
		}
		t.Run(name+"/canceled", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				defer there.Close()
				go func() { _, _ = io.Copy(io.Discard, there) }()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				start := time.Now()
				if err := f(here, ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
		})
	}
}

// The responder sends nothing before the first FPDU of the initiator, however
// much is posted, and nothing follows the Reply in the stream.
func TestResponderWaits(t *testing.T) {
	p, e := rawToServer(t, nil, nil)
	e.Recv(t, 1, make([]byte, 8))
	e.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend})
	_ = p.nc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := p.nc.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	p.send(sendMsg(1, []byte("x")))
	e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	e.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	if u := p.recv(); wire.Control(binary.BigEndian.Uint16(u)).Op() != wire.Send {
		t.Errorf("%x", u)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// Peer-to-peer: with each kind of ready-to-receive message the responder may
// speak first, and no receive buffer is used up.
func TestPeerToPeer(t *testing.T) {
	for _, kind := range []rdma.P2PMode{rdma.P2PSend, rdma.P2PWrite, rdma.P2PRead, rdma.P2PWrite | rdma.P2PRead} {
		for _, ord := range []int{-1, 4} {
			a, b := rdmatest.NewPair(t, &rdmatest.Options{
				Client: rdma.ConnParams{ORD: ord, IRD: ord, MPA: rdma.MPAParams{P2P: kind}}, Server: rdma.ConnParams{ORD: ord, IRD: ord},
				Prepare: func(a, b *rdmatest.End) {
					a.Recv(t, 1, make([]byte, 8))
					b.Recv(t, 2, make([]byte, 8))
				},
			})
			if got := b.QP.Info().MPA.P2P; got&kind == 0 || got != a.QP.Info().MPA.P2P {
				t.Errorf("%v was agreed on, %v offered", got, kind)
			}
			b.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpSend})
			b.Want(t, 3, rdma.WCSend, rdma.StatusSuccess)
			a.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
			a.Post(t, rdma.SendWR{ID: 4, Op: rdma.OpSend})
			a.Want(t, 4, rdma.WCSend, rdma.StatusSuccess)
			b.Want(t, 2, rdma.WCRecv, rdma.StatusSuccess)
		}
	}
}

// The bytes of the ready-to-receive messages are those of Linux siw, and a first
// message of another kind is refused.
func TestReadyToReceiveBytes(t *testing.T) {
	req := func(k mpa.RTR) *mpa.Frame {
		return &mpa.Frame{Rev: 2, Enhanced: true, IRD: 1, ORD: 1, P2P: true, RTR: k, Flags: mpa.FlagCRC}
	}
	rtr := map[mpa.RTR][]byte{
		mpa.RTRWrite: taggedMsg(wire.Write, 1, 0, true, nil),
		mpa.RTRRead:  readMsg(1, wire.ReadReq{SrcSTag: 1}),
		mpa.RTRSend:  sendMsg(1, nil),
	}
	for kind := range rtr {
		for first, msg := range rtr {
			p, e := rawToServer(t, nil, req(kind))
			if kind != mpa.RTRSend {
				e.Recv(t, 1, nil)
			}
			p.send(msg)
			if first != kind {
				if term := p.terminate(); term.Cause != wire.CauseNoRTR {
					t.Errorf("%v instead of %v: %v", first, kind, term.Cause)
				}
				continue
			}
			if kind == mpa.RTRRead {
				if u := p.recv(); !bytes.Equal(u, taggedMsg(wire.ReadResponse, 0, 0, true, nil)) {
					t.Errorf("the empty Read was answered with %x", u)
				}
			}
			p.nc.Close()
			if err := e.WaitDone(t); err != io.EOF {
				t.Errorf("%v: %v", kind, err)
			}
		}
	}
	// Of the kind agreed on, but with data (RFC 6581 §9: zero-length).
	for _, kind := range []mpa.RTR{mpa.RTRWrite, mpa.RTRSend} {
		p, e := rawToServer(t, nil, req(kind))
		e.Recv(t, 1, make([]byte, 8))
		msg := sendMsg(1, []byte("data"))
		if kind == mpa.RTRWrite {
			m := newMemory(t, e)
			msg = taggedMsg(wire.Write, m.rw.RKey(), m.rw.Addr(), true, []byte("data"))
		}
		p.send(msg)
		if term := p.terminate(); term.Cause != wire.CauseNoRTR {
			t.Errorf("%v with data: %v", kind, term.Cause)
		}
	}
	// An FPDU of no ULPDU at all is taken for the Send kind too.
	p, e := rawToServer(t, nil, req(mpa.RTRSend))
	p.send(nil)
	e.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend})
	e.Want(t, 1, rdma.WCSend, rdma.StatusSuccess)
}

// A responder that stays silent is nudged by an empty Write; one that has spoken
// is not.
func TestNudge(t *testing.T) {
	p, e := silentToClient(t, nil)
	e.Post(t, rdma.SendWR{Op: rdma.OpSend})
	p.recv()
	if u := p.recv(); !bytes.Equal(u, taggedMsg(wire.Write, 1, 0, true, nil)) {
		t.Errorf("the nudge is %x", u)
	}
	e.Recv(t, 1, nil)
	p.send(sendMsg(1, nil))
	p.nc.Close()
	e.WaitDone(t)

	p, e = rawToClient(t, nil)
	e.Recv(t, 1, nil)
	p.send(sendMsg(1, nil))
	e.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	e.Post(t, rdma.SendWR{Op: rdma.OpSend})
	p.recv()
	_ = p.nc.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := p.nc.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
		t.Errorf("%d bytes more, %v", n, err)
	}
}

// Connections that die in the middle of the start-up leave nothing behind, and
// slow ones do not hold up others.
func TestHalfHandshakes(t *testing.T) {
	srv := rdmatest.NewEnd(t, &rdmatest.Options{}, 1)
	ln, err := srv.Dev.Listen("tcp", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	frame := (&mpa.Frame{Rev: 2, Enhanced: true}).Append(nil)
	for i := 0; i < len(frame); i += 3 {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write(frame[:i])
		if i%2 == 0 {
			nc.Close()
		} else {
			open = append(open, nc)
		}
	}
	cli := rdmatest.NewEnd(t, &rdmatest.Options{}, 0)
	errc := make(chan error, 1)
	go func() {
		_, err := rdma.Dial(ctxT(t), "tcp", ln.Addr().String(), cli.QP, nil)
		errc <- err
	}()
	req, err := ln.Accept(ctxT(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Accept(ctxT(t), srv.QP, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-errc; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := ln.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("half a handshake was delivered: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(ctxT(t)); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
	for _, nc := range open {
		nc.Close()
	}
}

// Two initiators talking to each other notice it by the key.
func TestBothInitiators(t *testing.T) {
	a, b := rdmatest.NewEnd(t, &rdmatest.Options{}, 0), rdmatest.NewEnd(t, &rdmatest.Options{}, 1)
	c, s := loopback.Pair(t)
	errc := make(chan error, 1)
	go func() {
		_, err := rdma.Client(ctxT(t), c, a.QP, nil)
		errc <- err
	}()
	_, err := rdma.Client(ctxT(t), s, b.QP, nil)
	if err2 := <-errc; err == nil || err2 == nil {
		t.Errorf("%v, %v", err, err2)
	} else if !errors.Is(err, mpa.ErrFrame) && !errors.Is(err2, mpa.ErrFrame) {
		t.Errorf("neither says why: %v, %v", err, err2)
	}
}

// Settings have one set of words, and a word stays itself.
func TestWordsOfSettings(t *testing.T) {
	for _, m := range []rdma.CRCMode{rdma.CRCRequired, rdma.CRCOffered, rdma.CRCOff} {
		if got, err := rdma.ParseCRCMode(m.String()); err != nil || got != m {
			t.Errorf("%v reads as %v, %v", m, got, err)
		}
	}
	for _, m := range []rdma.ZerocopyMode{rdma.ZerocopyOff, rdma.ZerocopyAuto, rdma.ZerocopyOn} {
		if got, err := rdma.ParseZerocopyMode(m.String()); err != nil || got != m {
			t.Errorf("%v reads as %v, %v", m, got, err)
		}
	}
	for _, s := range []string{"", "maybe", "default", "Off"} {
		if m, err := rdma.ParseCRCMode(s); err == nil {
			t.Errorf("%q is CRC mode %v", s, m)
		}
		if m, err := rdma.ParseZerocopyMode(s); err == nil {
			t.Errorf("%q is zerocopy mode %v", s, m)
		}
	}
}
