package iscsitcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/internal/sockio"
	"softiser/internal/sockio/layertest"
)

// returns fails the test unless f comes back.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	await.True(t, what, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// pauses waits until the receive goroutine has left the stream for the upper layer to answer.
func (r *peer) pauses() {
	r.t.Helper()
	await.True(r.t, "reading waits for login to go on", func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return r.c.paused
	})
}

// ping sends a PDU with data that goes up, and waits until its header has been handled.
func (r *peer) ping() {
	r.t.Helper()
	before := r.c.Stats().PDUsIn
	var b iscsi.BHS
	if r.c.role == iscsi.RoleTarget {
		b.NewNopOut().SetITT(1)
	} else {
		b.NewNopIn().SetITT(iscsi.ReservedTag)
	}
	r.send(r.frame(b, nil, []byte("ping")))
	await.True(r.t, "the ping has come", func() bool { return r.c.Stats().PDUsIn > before })
}

// TestNoSocket: what is no socket is refused.
func TestNoSocket(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if c, err := New(b, iscsi.RoleTarget, Config{}); err == nil || c != nil {
		t.Errorf("%v, %v", c, err)
	}
}

// TestKeyProfile: RDMA is spoken of where the stream may turn into it, the tagged buffer by
// the initiator (RFC 7145 §6).
func TestKeyProfile(t *testing.T) {
	for _, role := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		if p := (&Conn{role: role}).KeyProfile(); p != (iscsi.KeyProfile{}) {
			t.Errorf("%v: %+v", role, p)
		}
		want := iscsi.KeyProfile{RDMA: iscsi.RDMAOptional, DeclareTaggedBuffer: role == iscsi.RoleInitiator}
		if p := (&Conn{role: role, cfg: Config{Upgradable: true}}).KeyProfile(); p != want {
			t.Errorf("%v: %+v, want %+v", role, p, want)
		}
	}
}

// TestInitiatorLogin: an initiator reads on behind each Login Response but the one that enters
// the full feature phase, behind which it waits until that has been enabled.
func TestInitiatorLogin(t *testing.T) {
	r := loginPeer(t, iscsi.RoleInitiator, Config{})
	r.c.Start(r.up)
	for _, l := range []struct {
		transit bool
		next    iscsi.Stage
	}{{true, iscsi.StageOperational}, {false, iscsi.StageFullFeature}, {true, iscsi.StageFullFeature}} {
		var b iscsi.BHS
		b.NewLoginResponse().SetStages(l.transit, false, iscsi.StageSecurity, l.next)
		r.send(r.frame(b, nil, nil))
	}
	r.pauses()
	for i := range 3 {
		p := r.up.PDU(t, "Login Response")
		if p.BHS.Opcode() != iscsi.OpLoginResponse || len(r.up.PDUs) != 2-i {
			t.Errorf("PDU %d is a %s, %d more have come", i, p.BHS.Opcode(), len(r.up.PDUs))
		}
		p.Release()
	}
	var b iscsi.BHS
	b.NewNopIn().SetITT(iscsi.ReservedTag)
	r.send(r.frame(b, nil, nil))
	r.enable(r.full(nil))
	p := r.up.PDU(t, "NOP-In")
	if p.BHS.Opcode() != iscsi.OpNopIn {
		t.Errorf("got %s", p.BHS.Opcode())
	}
	p.Release()
}

// TestNotUpgraded: a stream that could turn into RDMA and does not goes on as it is.
func TestNotUpgraded(t *testing.T) {
	r := loginPeer(t, iscsi.RoleTarget, Config{Upgradable: true})
	r.c.Start(r.up)
	r.loginRequest(nil)
	r.up.PDU(t, "Login Request").Release()
	r.enable(r.full(nil))
	r.loginResponse(true)
	if _, err := r.c.Detach(); err == nil {
		t.Error("the stream was given up")
	}
	r.recv()
	r.ping()
	r.up.PDU(t, "NOP-Out").Release()
}

// TestDetachEndsTheTransmitter: nobody transmits on a stream that was given up.
func TestDetachEndsTheTransmitter(t *testing.T) {
	r := loginPeer(t, iscsi.RoleTarget, Config{Upgradable: true})
	r.c.Start(r.up)
	r.loginRequest(nil)
	r.up.PDU(t, "Login Request").Release()
	r.enable(r.full(func(p *iscsi.Params) { p.RDMAExtensions = true }))
	r.c.mu.Lock()
	r.c.tx.Seize()
	r.c.mu.Unlock()
	r.loginResponse(true) // which the transmit goroutine sends
	r.c.mu.Lock()
	r.c.tx.Yield()
	r.c.tx.HandOver()
	r.c.mu.Unlock()
	r.recv()
	nc, err := r.c.Detach()
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

// TestEndDuringLogin: a connection ends though its receive goroutine waits for login to go on:
// with FIN, or at once.
func TestEndDuringLogin(t *testing.T) {
	for _, reason := range []error{nil, errors.New("not wanted")} {
		r := loginPeer(t, iscsi.RoleTarget, Config{})
		r.c.Start(r.up)
		r.loginRequest(nil)
		r.up.PDU(t, "Login Request").Release()
		r.pauses()
		r.c.Terminate(reason)
		if _, err := r.in.ReadByte(); err == nil {
			t.Error("something was sent")
		}
		r.nc.Close()
		if err := r.up.End(t); !errors.Is(err, reason) {
			t.Errorf("ended with %v, want %v", err, reason)
		}
	}
}

// TestEndWhileNobodyReads: a peer that does not read what it has asked for keeps a connection
// from being read, and does not keep it from ending, nor its transmitter.
func TestEndWhileNobodyReads(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	if err := r.c.Net().(*net.TCPConn).SetWriteBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	answer := iscsi.PDU{Data: make([]byte, 4096)}
	answer.BHS.NewNopIn()
	waits := func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return r.c.tx.unsent.Full()
	}
	for !waits() {
		for range 64 {
			if err := r.c.SendControl(&answer); err != nil {
				t.Fatal(err)
			}
		}
		r.c.Push()
	}
	r.send(r.pings(8))
	await.True(t, "reading stops", func() bool { return r.c.Stats().ReceiveCalls > 0 })
	reason := errors.New("it does not read")
	returns(t, "the connection ends", func() {
		r.c.Terminate(reason)
		<-r.c.Ended()
	})
	if err := r.up.End(t); !errors.Is(err, reason) {
		t.Errorf("ended with %v", err)
	}
}

// TestGracefulEnd: after the end that was asked for nothing more is sent and nothing comes up,
// and the peer has the time that was set to say what it has to say.
func TestGracefulEnd(t *testing.T) {
	for _, role := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		r := newPeerWith(t, role, Config{Linger: time.Hour}, nil)
		var out iscsi.PDU
		if role == iscsi.RoleInitiator {
			out.Bufs = &iscsi.TaskBuffers{Out: [][]byte{make([]byte, 4096)}}
			out.BHS.NewSCSICommand().SetITT(1)
		} else {
			out.BHS.NewNopIn()
		}
		if err := r.c.SendControl(&out); err != nil {
			t.Fatal(err)
		}
		r.c.Terminate(nil)
		out.Bufs = nil
		if err := r.c.SendControl(&out); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v: SendControl after it: %v", role, err)
		}
		r.c.Terminate(nil)
		r.recv()
		if _, err := r.in.ReadByte(); err != io.EOF {
			t.Errorf("%v: behind the last PDU %v", role, err)
		}
		for range 3 {
			r.ping()
		}
		if role == iscsi.RoleInitiator {
			before := r.c.Stats().PDUsIn
			var b iscsi.BHS
			q := b.NewR2T()
			q.SetITT(1)
			q.SetTTT(1)
			q.SetDesired(4096)
			r.send(r.frame(b, nil, nil))
			await.True(t, "the R2T has come", func() bool { return r.c.Stats().PDUsIn > before })
		}
		r.ping()
		if len(r.up.Ended) != 0 {
			t.Fatalf("%v: ended before the peer had", role)
		}
		r.nc.Close()
		if err := r.up.End(t); err != nil || len(r.up.PDUs) != 0 {
			t.Errorf("%v: ended with %v, %d PDUs came up", role, err, len(r.up.PDUs))
		}
	}
}

// TestGracefulEndFails: what goes wrong behind the end that was asked for is told of.
func TestGracefulEndFails(t *testing.T) {
	reason := errors.New("it takes too long")
	for name, fail := range map[string]func(r *peer){
		"given up": func(r *peer) { r.c.Terminate(reason) },
		"a PDU that is too long": func(r *peer) {
			var b iscsi.BHS
			b.NewNopOut()
			b.SetDataLen(4097)
			r.send(b[:])
		},
		"half a PDU": func(r *peer) {
			r.send(make([]byte, 20))
			r.nc.Close()
		},
	} {
		r := newPeerWith(t, iscsi.RoleTarget, Config{Linger: time.Hour}, nil)
		r.c.Terminate(nil)
		if _, err := r.in.ReadByte(); err != io.EOF {
			t.Errorf("%s: %v", name, err)
		}
		fail(r)
		if err := r.up.End(t); err == nil || name == "given up" && !errors.Is(err, reason) {
			t.Errorf("%s: ended with %v", name, err)
		}
	}
}

// TestOrderlyEndOfTransfers: a transfer that the end cuts off says so, though the end was
// asked for.
func TestOrderlyEndOfTransfers(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	x, _ := r.getData(1024, 0, make([]byte, 1024))
	r.c.Terminate(nil)
	r.nc.Close()
	if got := r.up.Completion(t); got != x || !errors.Is(x.Err, iscsi.ErrConnectionLost) || !errors.Is(x.Err, net.ErrClosed) {
		t.Errorf("%v", got.Err)
	}
	if err := r.up.End(t); err != nil {
		t.Error(err)
	}
}

// TestReleaseIsNotKept: memory is given back at once when nothing fills it, whatever was
// read last: part of the data, all of it, another PDU, or nothing any more.
func TestReleaseIsNotKept(t *testing.T) {
	in := func(data []byte, last bool) iscsi.BHS {
		var b iscsi.BHS
		d := b.NewDataIn()
		d.SetITT(1)
		d.SetFinal(last)
		d.SetHasStatus(last)
		return b
	}
	for _, cut := range []bool{true, false} { // data in two pieces are copied, in one they are guessed
		const n = 500
		r := newPeer(t, iscsi.RoleInitiator, nil)
		command := func() (*iscsi.TaskBuffers, []byte) {
			mem := make([]byte, n)
			p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{mem}}}
			if cut {
				p.Bufs.In = [][]byte{mem[:100], mem[100:]}
			}
			p.BHS.NewSCSICommand().SetITT(1)
			if err := r.c.SendControl(&p); err != nil {
				t.Fatal(err)
			}
			r.c.Push()
			r.recv()
			return p.Bufs, mem
		}
		release := func(b *iscsi.TaskBuffers) {
			t.Helper()
			returns(t, "the memory comes back", func() { r.c.ReleaseTask(b) })
		}
		b, mem := command()
		r.send(r.frame(in(filled(n), true), nil, filled(n)))
		r.up.PDU(t, "response").Release()
		if !bytes.Equal(mem, filled(n)) || b.InLen != n {
			t.Errorf("cut %v: %d bytes, and wrong ones", cut, b.InLen)
		}
		b, _ = command()
		r.ping()
		r.up.PDU(t, "NOP-In").Release()
		release(b)
		b, _ = command()
		rest := r.half(r.frame(in(filled(n), true), nil, filled(n)), n)
		release(b)
		r.send(rest)
		r.up.PDU(t, "response").Release()
		b, _ = command()
		r.half(r.frame(in(filled(n), true), nil, filled(n)), n)
		r.c.Terminate(errors.New("lost"))
		<-r.c.Ended()
		release(b)
	}
}

// FIN waits until what lies below has said that nothing follows, also where the last data has filled the socket.
func TestEndOnFullSocket(t *testing.T) {
	noLeaks(t)
	nc, b := loopback.Pair(t)
	below := &layertest.Filled{Conn: b}
	c, err := New(below, iscsi.RoleTarget, Config{})
	if err != nil {
		t.Fatal(err)
	}
	up := datamovertest.NewRecorder()
	c.Start(up)
	c.Terminate(nil)
	if b, err := io.ReadAll(nc); err != nil || !bytes.HasSuffix(b, []byte{layertest.Said}) {
		t.Errorf("FIN behind %d bytes: %v", len(b), err)
	}
	nc.Close()
	<-c.Ended()
	up.Release()
}

// sayer is a layer that has something to say at the end, and a socket with room for it.
type sayer struct{ layertest.Filled }

func (*sayer) End(c *sockio.Conn) error {
	_, err := c.Send([]byte{layertest.Said})
	return err
}

// Who is told that nothing follows says so, too, before it closes.
func TestEndIsAnswered(t *testing.T) {
	noLeaks(t)
	nc, b := loopback.Pair(t)
	c, err := New(&sayer{layertest.Filled{Conn: b}}, iscsi.RoleInitiator, Config{})
	if err != nil {
		t.Fatal(err)
	}
	up := datamovertest.NewRecorder()
	c.Start(up)
	if err := nc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(nc); err != nil || string(b) != string([]byte{layertest.Said}) {
		t.Errorf("%q, %v", b, err)
	}
	nc.Close()
	<-c.Ended()
	up.Release()
}
