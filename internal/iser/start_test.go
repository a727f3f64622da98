package iser

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/iscsitcp"
	"softiser/internal/loopback"
	"softiser/rdma"
)

// request is what a Client says in its MPA Request; it is refused.
func request(t *testing.T, d *Device, cfg ConnConfig) *rdma.ConnRequest {
	t.Helper()
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := d.Client(ctx, a, cfg)
		done <- err
	}()
	q, err := rdma.Server(ctx, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Reject(nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("connected though it was refused")
	}
	return q
}

// TestReadDepths: an initiator serves 128 Reads and wants one, a target the other way round
// 1 and 32, unless they are told otherwise.
func TestReadDepths(t *testing.T) {
	d := device(t)
	if q := request(t, d, ConnConfig{}); q.IRD() != 128 || q.ORD() != 1 || !bytes.Equal(q.PrivateData(), privateData(true)) {
		t.Errorf("the initiator asks for IRD %d, ORD %d, % x", q.IRD(), q.ORD(), q.PrivateData())
	}
	set := rdma.ConnParams{IRD: 7, ORD: 5}
	if q := request(t, d, ConnConfig{RDMA: set, NoRemoteInvalidate: true}); q.IRD() != 7 || q.ORD() != 5 || !bytes.Equal(q.PrivateData(), privateData(false)) {
		t.Errorf("the initiator asks for IRD %d, ORD %d, % x", q.IRD(), q.ORD(), q.PrivateData())
	}
	many := rdma.ConnParams{IRD: 100, ORD: 100}
	for _, c := range []struct {
		target   rdma.ConnParams
		ird, ord int
	}{{rdma.ConnParams{}, 1, 32}, {set, 7, 5}} {
		i, g := connect(t, d, d, ConnConfig{RDMA: many}, ConnConfig{RDMA: c.target})
		if g.info.IRD != c.ird || g.info.ORD != c.ord {
			t.Errorf("the target has IRD %d, ORD %d, want %d and %d", g.info.IRD, g.info.ORD, c.ird, c.ord)
		}
		finish(i, g)
	}
}

// TestStartUps: an initiator that has no RFC 6581, or revision 2 without the flag S, tells nothing of
// its Reads, and is served; one that tells that it serves none is not.
func TestStartUps(t *testing.T) {
	const reply, private = "MPA ID Rep Frame", "\x80\x00\x00\x00"
	for name, c := range map[string]struct {
		head, want string // of request and reply, behind the key
		ord        int    // 0: refused
	}{
		"revision 1":                      {"\x40\x01\x00\x04", "\x40\x01\x00\x04", 32},
		"revision 2 without S":            {"\x40\x02\x00\x04", "\x40\x02\x00\x04", 32},
		"revision 2":                      {"\x50\x02\x00\x08\x00\x10\x00\x01", "\x50\x02\x00\x08\x00\x01\x00\x10", 16},
		"revision 2, left to the ULP":     {"\x50\x02\x00\x08\x3f\xff\x3f\xff", "\x50\x02\x00\x08\x3f\xff\x3f\xff", 32},
		"revision 2, no Reads are served": {"\x50\x02\x00\x08\x00\x00\x00\x01", "\x50\x02\x00\x08\x00\x01\x00\x00", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := loopback.Pair(t)
			defer a.Close()
			_ = a.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := a.Write([]byte("MPA ID Req Frame" + c.head + private)); err != nil {
				t.Fatal(err)
			}
			g, err := device(t).Serve(t.Context(), b, ConnConfig{})
			if (err == nil) != (c.ord > 0) || g != nil && (g.info.ORD != c.ord || g.pump.ORD != c.ord) {
				t.Errorf("%v, %+v", err, g)
			}
			want := reply + c.want + private
			got := make([]byte, len(want))
			if _, err := io.ReadFull(a, got); err != nil || string(got) != want {
				t.Errorf("answered % x, %v; want % x", got[len(reply):], err, want[len(reply):])
			}
			if g != nil {
				finish(g)
			}
		})
	}
}

// finish ends connections that were not started.
func finish(cs ...*Conn) {
	for _, c := range cs {
		c.Terminate(errors.New("end of the test"))
		<-c.Ended()
	}
}

// TestInvalidationIsAgreedOn: only where both sides allow it.
func TestInvalidationIsAgreedOn(t *testing.T) {
	d := device(t)
	for _, c := range []struct{ initiator, target bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		i, g := connect(t, d, d, ConnConfig{NoRemoteInvalidate: !c.initiator}, ConnConfig{NoRemoteInvalidate: !c.target})
		if want := c.initiator && c.target; i.inv != want || g.inv != want {
			t.Errorf("initiator %v, target %v: they say %v and %v", c.initiator, c.target, i.inv, g.inv)
		}
		finish(i, g)
	}
	// A target that allows it though the initiator does not.
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan *Conn, 1)
	go func() {
		c, err := d.Client(ctx, a, ConnConfig{NoRemoteInvalidate: true})
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	q, err := rdma.Server(ctx, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.newConn(iscsi.RoleTarget, ConnConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Accept(ctx, g.qp, &rdma.ConnParams{PrivateData: privateData(true)}); err != nil {
		t.Fatal(err)
	}
	i := <-done
	if i.inv {
		t.Error("the initiator has agreed to what it does not allow")
	}
	finish(i, g)
}

// TestNoConnection: what cannot be made leaves nothing behind: no queue pair, and no open
// connection.
func TestNoConnection(t *testing.T) {
	d := device(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	// The initiator has gone before it is accepted.
	a, b := loopback.Pair(t)
	gone := make(chan error, 1)
	left, leave := context.WithCancel(ctx)
	go func() {
		_, err := d.Client(left, a, ConnConfig{})
		gone <- err
	}()
	q, err := rdma.Server(ctx, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if err := <-gone; err == nil {
		t.Error("connected though nobody has accepted")
	}
	ended, end := context.WithCancel(ctx)
	end()
	if c, err := d.Accept(ended, q, ConnConfig{}); err == nil || c != nil {
		t.Errorf("accepted: %v", err)
	}
	// No device any more.
	closed, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	a, b = loopback.Pair(t)
	if _, err := closed.Client(ctx, a, ConnConfig{}); err == nil {
		t.Error("a client of a device that is closed")
	}
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("something was sent")
	}
	a, b = loopback.Pair(t)
	refused := make(chan error, 1)
	go func() {
		_, err := d.Client(ctx, a, ConnConfig{})
		refused <- err
	}()
	if _, err := closed.Serve(ctx, b, ConnConfig{}); err == nil {
		t.Error("a server of a device that is closed")
	}
	if err := <-refused; err == nil {
		t.Error("connected to it")
	}
	// What is no socket is refused.
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	if u, err := d.Upgrade(y, iscsi.RoleTarget, iscsitcp.Config{}, ConnConfig{}); err == nil || u != nil {
		t.Error("a pipe is upgraded")
	}
}

// TestKeyProfiles: what each side says of itself in login.
func TestKeyProfiles(t *testing.T) {
	d := device(t)
	for _, role := range []iscsi.Role{iscsi.RoleInitiator, iscsi.RoleTarget} {
		for _, hello := range []bool{false, true} {
			cfg := ConnConfig{RequireHello: hello}
			asks := hello && role == iscsi.RoleInitiator
			sends := uint32(0)
			if role == iscsi.RoleInitiator {
				sends = RecvDataLen
			}
			want := iscsi.KeyProfile{RDMA: iscsi.RDMARequired, NoDigests: true, RecvDataSegmentLength: RecvDataLen, SendDataSegmentLength: sends, RequireHello: asks}
			if p := (&Conn{role: role, cfg: cfg}).KeyProfile(); p != want {
				t.Errorf("%v: %+v, want %+v", role, p, want)
			}
			a, b := loopback.Pair(t)
			u, err := d.Upgrade(b, role, iscsitcp.Config{}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			want = iscsi.KeyProfile{RDMA: iscsi.RDMAOptional, RecvDataSegmentLength: RecvDataLen, SendDataSegmentLength: sends, RequireHello: asks, DeclareTaggedBuffer: role == iscsi.RoleInitiator}
			if p := u.KeyProfile(); p != want {
				t.Errorf("%v: %+v, want %+v", role, p, want)
			}
			if l := u.Limits(); l.MaxControlData != iscsi.DefaultMRDSL || l.QuietUntilFirstCommand {
				t.Errorf("%v: limits of the stream %+v", role, l)
			}
			if s := u.Stats(); s != (iscsi.DatamoverStats{}) {
				t.Errorf("%v: %+v", role, s)
			}
			u.Terminate(errors.New("end of the test"))
			a.Close()
		}
	}
}

// TestLimits: how much fits a message of the other side: what was negotiated, and of an
// initiator not more than Linux posts.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		role iscsi.Role
		st   iscsi.ConnState
		disc bool
		xmit uint32
		want int
	}{
		{iscsi.RoleTarget, iscsi.ConnLogin, false, 100, iscsi.DefaultMRDSL},
		{iscsi.RoleTarget, iscsi.ConnFull, true, 100, iscsi.DefaultMRDSL},
		{iscsi.RoleTarget, iscsi.ConnFull, false, 100, 100},
		{iscsi.RoleTarget, iscsi.ConnFull, false, 1 << 20, 128},
		{iscsi.RoleInitiator, iscsi.ConnFull, false, 100, 100},
		{iscsi.RoleInitiator, iscsi.ConnFull, false, 1 << 20, RecvDataLen},
	} {
		k := &Conn{role: c.role, st: c.st, quiet: true}
		k.params.MaxXmitDataSegmentLength = c.xmit
		if c.disc {
			k.params.SessionType = iscsi.DiscoverySession
		}
		l := k.Limits()
		if l.MaxControlData != c.want || l.QuietUntilFirstCommand != (c.role == iscsi.RoleTarget && c.st == iscsi.ConnFull && !c.disc) {
			t.Errorf("%+v: %+v", c, l)
		}
	}
}

// TestQuiet: a target says nothing before it has heard something in the full feature phase,
// whatever it has heard before.
func TestQuiet(t *testing.T) {
	d := device(t)
	i, g := connect(t, d, d, ConnConfig{}, ConnConfig{})
	up := datamovertest.NewRecorder()
	g.Start(up)
	say := func(p *iscsi.PDU) {
		t.Helper()
		if err := i.SendControl(p); err != nil {
			t.Fatal(err)
		}
		i.Push()
		up.PDU(t, "PDU").Release()
	}
	var login, nop iscsi.PDU
	login.BHS.NewLoginRequest()
	nop.BHS.NewNopOut()
	say(&login)
	if err := g.Enable(); err != nil {
		t.Fatal(err)
	}
	if !g.Limits().QuietUntilFirstCommand {
		t.Error("the target may speak behind login")
	}
	say(&nop)
	if g.Limits().QuietUntilFirstCommand {
		t.Error("the target may not speak")
	}
	if err := g.Enable(); err == nil {
		t.Error("Enable works twice")
	}
	finish(i, g)
	if err := g.Enable(); err == nil {
		t.Error("Enable works after the end")
	}
}

// TestHelloDuringLogin: the exchange is one of the full feature phase (RFC 7145 §5.1.3).
func TestHelloDuringLogin(t *testing.T) {
	c := &Conn{role: iscsi.RoleTarget, up: watched{}}
	if _, err := c.dispatchLocked(new(iscsi.PDU), (&hello{maxVer: Version, ver: Version}).append(nil), new(rdma.WC)); err == nil {
		t.Error("it was answered")
	}
}

// TestHelloDepth: a target promises no more Reads than it may have outstanding, and no more
// than the initiator serves.
func TestHelloDepth(t *testing.T) {
	for depth, want := range map[uint16]uint16{4: 4, 16: 16, 100: 16} {
		r := newPeer(t, iscsi.RoleTarget, nil) // serves 16
		r.send((&hello{maxVer: Version, ver: Version, depth: depth}).append(nil))
		var h hello
		if h.parse(r.recv()); !h.reply || h.reject || h.depth != want {
			t.Errorf("a Hello with %d is answered %+v", depth, h)
		}
	}
}

// TestReservedBits: fields without their valid bit are nothing, and a Hello refuses nothing.
func TestReservedBits(t *testing.T) {
	all := header{wsv: true, rsv: true, stags: stags{WriteSTag: 1, ReadSTag: 2, WriteBase: 3, ReadBase: 4}}
	for flags, want := range map[byte]stags{
		0:                 {},
		flagWSV:           {WriteSTag: 1, WriteBase: 3},
		flagRSV:           {ReadSTag: 2, ReadBase: 4},
		flagWSV | flagRSV: all.stags,
	} {
		b := all.append(nil)
		b[0] = typeControl | flags
		var h header
		if h.parse(b); h.stags != want {
			t.Errorf("flags %#x: %+v", flags, h)
		}
	}
	b := (&hello{maxVer: Version, ver: Version}).append(nil)
	b[0] |= flagReject
	var h hello
	if h.parse(b); h.reject {
		t.Error("a Hello rejects")
	}
	b[0] = typeHelloReply | flagReject
	if h.parse(b); !h.reject {
		t.Error("a HelloReply does not")
	}
}
