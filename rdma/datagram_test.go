package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/internal/race"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// newUD is an end for datagrams at an address of its own.
func newUD(t *testing.T, q rdma.QPConfig) *rdmatest.End {
	t.Helper()
	o := overRoCE()
	o.QP = q
	o.QP.Type = rdma.TypeUD
	o.QP.Datagram.LocalAddr = rdmatest.RoCEAddr()
	return rdmatest.NewEnd(t, o, 0)
}

// local is the address that an end for datagrams is bound to.
func local(e *rdmatest.End) netip.Addr {
	return netip.AddrPort(e.QP.Info().LocalAddr.(rdma.RoCEAddr)).Addr()
}

// to is the destination of datagrams to an end.
func to(t *testing.T, from, e *rdmatest.End) rdma.Destination {
	t.Helper()
	ah, err := from.PD.CreateAH(local(e))
	if err != nil {
		t.Fatal(err)
	}
	return rdma.Destination{AH: ah, QPN: e.QP.Num(), QKey: e.QP.QKey()}
}

// TestDatagrams: there and back, the answer going to where the header in front of the buffer
// says that the question came from.
func TestDatagrams(t *testing.T) {
	a, b := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{})
	for i, n := range []int{0, 1, 3, 100, 4095, 4096} {
		id := uint64(i)
		want, got, back := pattern(n, id), make([]byte, rdma.GRHLen+n), make([]byte, rdma.GRHLen+n)
		b.Recv(t, id, got)
		a.Recv(t, id+100, back)
		a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSendImm, Imm: 0x80000000 + id, Flags: rdma.FlagSolicited, SGL: []rdma.SGE{a.SGE(want[:n/3]), a.SGE(want[n/3:])}, Dest: to(t, a, b)})
		a.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
		wc := b.Want(t, id, rdma.WCRecv, rdma.StatusSuccess)
		if wc.Flags != rdma.WCWithGRH|rdma.WCWithImm|rdma.WCSolicited || wc.Imm != 0x80000000+id || int(wc.ByteLen) != len(got) || wc.SrcQPN != a.QP.Num() {
			t.Errorf("%+v", wc)
		}
		from, at, err := rdma.ParseGRH(got)
		if err != nil || from != local(a) || at != local(b) || !bytes.Equal(got[rdma.GRHLen:], want) {
			t.Fatalf("%d bytes from %v to %v, %v", n, from, at, err)
		}
		ah, err := b.PD.CreateAH(from)
		if err != nil {
			t.Fatal(err)
		}
		b.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSend, SGL: []rdma.SGE{b.SGE(got[rdma.GRHLen:])}, Dest: rdma.Destination{AH: ah, QPN: wc.SrcQPN, QKey: a.QP.QKey()}})
		b.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
		if wc := a.Want(t, id+100, rdma.WCRecv, rdma.StatusSuccess); wc.Flags != rdma.WCWithGRH || !bytes.Equal(back[rdma.GRHLen:], want) {
			t.Errorf("the answer to %d bytes: %+v", n, wc)
		}
	}
	for _, e := range []*rdmatest.End{a, b} {
		if s := e.QP.Stats(); s.BytesIn == 0 || s.BytesIn != s.BytesOut || s.SendsOut != 6 {
			t.Errorf("%+v", s)
		}
	}
	b.Recv(t, 7, make([]byte, 99))
	b.QP.Disconnect()
	b.Want(t, 7, rdma.WCRecv, rdma.StatusFlushed)
	if err := b.WaitDone(t); err != nil || b.QP.State() != rdma.StateError {
		t.Errorf("after Disconnect: %v, %v", err, b.QP.State())
	}
	if err := b.QP.PostSend(rdma.SendWR{ID: 8, Op: rdma.OpSend, Dest: to(t, b, a)}); err != nil {
		t.Fatal(err)
	}
	b.Want(t, 8, rdma.WCSend, rdma.StatusFlushed)
}

// TestDatagramsDropped: what is not for the queue pair leaves no trace, and what does not fit
// leaves its buffer to the next one. The marker that follows shows that it is gone.
func TestDatagramsDropped(t *testing.T) {
	a, b := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{Datagram: rdma.DatagramParams{QKey: 0x11111111}})
	if b.QP.QKey() != 0x11111111 || a.QP.QKey() != rdma.DefaultQKey {
		t.Fatalf("Q_Keys %#x, %#x", a.QP.QKey(), b.QP.QKey())
	}
	buf := make([]byte, rdma.GRHLen+8)
	b.Recv(t, 1, buf)
	good := to(t, a, b)
	badKey, badQPN := good, good
	badKey.QKey++
	badQPN.QPN ^= 1
	for _, wr := range []rdma.SendWR{
		{Dest: badKey}, {Dest: badQPN},
		{Dest: good, SGL: []rdma.SGE{a.SGE(make([]byte, 9))}}, // longer than the buffer
		{Dest: good, SGL: []rdma.SGE{a.SGE([]byte("the mark"))}},
	} {
		wr.Op = rdma.OpSend
		a.Post(t, wr)
		a.Want(t, 0, rdma.WCSend, rdma.StatusSuccess)
	}
	b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	if string(buf[rdma.GRHLen:]) != "the mark" {
		t.Errorf("%q arrived", buf)
	}
}

// TestDatagramsFail: a request that cannot be sent fails alone.
func TestDatagramsFail(t *testing.T) {
	a, b := newUD(t, rdma.QPConfig{Datagram: rdma.DatagramParams{PathMTU: 256}}), newUD(t, rdma.QPConfig{})
	d := to(t, a, b)
	buf := make([]byte, rdma.GRHLen+256)
	b.Recv(t, 9, buf)
	for id, wr := range []rdma.SendWR{
		{SGL: []rdma.SGE{a.SGE(make([]byte, 257))}},
		{SGL: []rdma.SGE{{Mem: make([]byte, 1), LKey: 0x7654}}},
		{SGL: []rdma.SGE{a.SGE(make([]byte, 256))}},
	} {
		wr.ID, wr.Op, wr.Dest = uint64(id), rdma.OpSend, d
		a.Post(t, wr)
	}
	a.Want(t, 0, rdma.WCSend, rdma.StatusLocalLength)
	a.Want(t, 1, rdma.WCSend, rdma.StatusLocalProtection)
	a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 9, rdma.WCRecv, rdma.StatusSuccess)
}

// TestDatagramMemory: memory that cannot be touched fails the request that it belongs to;
// of a receive, the queue pair with it.
func TestDatagramMemory(t *testing.T) {
	a, b := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{})
	gone := faultmap.New(t, 8192, 4096)
	a.Post(t, rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(gone[4096:4100])}, Dest: to(t, a, b)})
	a.Want(t, 1, rdma.WCSend, rdma.StatusLocalFault)
	b.Recv(t, 2, gone[4096:])
	a.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpSend, Dest: to(t, a, b)})
	a.Want(t, 3, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 2, rdma.WCRecv, rdma.StatusLocalFault)
	if err := b.WaitDone(t); err == nil {
		t.Error("the queue pair does not say why it has ended")
	}
}

// TestResolve: a lookup tells the queue pair of a service, or why there is none.
func TestResolve(t *testing.T) {
	a, b := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{Datagram: rdma.DatagramParams{QKey: 7}})
	addr := net.JoinHostPort(local(b).String(), "0")
	var seen rdma.Lookup
	ln, err := b.Dev.ServeDatagrams("roce", addr, func(l *rdma.Lookup) rdma.LookupAnswer {
		seen = *l
		if strings.HasPrefix(string(l.PrivateData), "no\x00") {
			return rdma.LookupAnswer{PrivateData: []byte("full")}
		}
		return rdma.LookupAnswer{QP: b.QP, PrivateData: []byte("welcome")}
	})
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	peer, err := a.QP.Resolve(ctxT(t), "roce", at, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if peer.QPN != b.QP.Num() || peer.QKey != 7 || peer.AH.Addr() != local(b) || strings.TrimRight(string(peer.PrivateData), "\x00") != "welcome" || len(peer.PrivateData) != 136 {
		t.Errorf("%+v", peer)
	}
	if seen.Local.String() != at || netip.AddrPort(seen.Remote).Addr() != local(a) || len(seen.PrivateData) != 180 || !bytes.HasPrefix(seen.PrivateData, []byte("hello\x00")) {
		t.Errorf("%+v", seen)
	}
	b.Recv(t, 1, make([]byte, 50))
	a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend, Dest: peer.Destination})
	a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)

	var rej *rdma.RejectError
	if _, err := a.QP.Resolve(ctxT(t), "roce", at, []byte("no")); !errors.As(err, &rej) || !bytes.HasPrefix(rej.PrivateData, []byte("full\x00")) {
		t.Errorf("refused: %v", err)
	}
	if _, err := b.Dev.ServeDatagrams("roce", at, nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("two services: %v", err)
	}
	if _, err := a.QP.Resolve(ctxT(t), "roce", at, make([]byte, 181)); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("long private data: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.QP.Resolve(canceled, "roce", "0.0.0.0:7174", nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("nobody's address: %v", err)
	}
	if err := b.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.Resolve(ctxT(t), "roce", at, nil); !errors.Is(err, rdma.ErrRefused) {
		t.Errorf("the service's queue pair is closed: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.Resolve(ctxT(t), "roce", at, nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
	if _, err := a.QP.Resolve(ctxT(t), "tcp", at, nil); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("network tcp: %v", err)
	}
	if _, err := b.QP.Resolve(ctxT(t), "roce", at, nil); !errors.Is(err, rdma.ErrState) {
		t.Errorf("a closed queue pair: %v", err)
	}
}

// TestMulticast: members of a group get what is sent to it, the sender too; who has left does
// not.
func TestMulticast(t *testing.T) {
	group := netip.MustParseAddr("239.77.1.2")
	a, b, c := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{})
	var dest rdma.Destination
	for _, e := range []*rdmatest.End{a, b} {
		d, err := e.QP.JoinMulticast(group)
		if err != nil {
			t.Skipf("no multicast on loopback here: %v", err)
		}
		if d.QPN != rdma.MulticastQPN || d.QKey != rdma.DefaultQKey || d.AH.Addr() != group {
			t.Fatalf("%+v", d)
		}
		if e == a {
			dest = d
		}
		if _, err := e.QP.JoinMulticast(group); err == nil {
			t.Error("joined twice")
		}
	}
	bufs := [3][]byte{}
	for i, e := range []*rdmatest.End{a, b, c} {
		bufs[i] = make([]byte, rdma.GRHLen+4)
		e.Recv(t, 1, bufs[i])
	}
	send := func(s string) {
		a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE([]byte(s))}, Dest: dest})
	}
	send("all!")
	for _, wc := range a.Poll(t, 2) {
		if wc.Status != rdma.StatusSuccess {
			t.Errorf("%+v", wc)
		}
	}
	if wc := b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess); wc.SrcQPN != a.QP.Num() {
		t.Errorf("%+v", wc)
	}
	for i := range 2 {
		from, at, err := rdma.ParseGRH(bufs[i])
		if err != nil || from != local(a) || at != group || string(bufs[i][rdma.GRHLen:]) != "all!" {
			t.Errorf("from %v to %v, %v: %q", from, at, err, bufs[i])
		}
	}
	if err := b.QP.LeaveMulticast(group); err != nil {
		t.Fatal(err)
	}
	if err := b.QP.LeaveMulticast(group); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("left twice: %v", err)
	}
	b.Recv(t, 3, bufs[1])
	a.Recv(t, 1, bufs[0])
	send("few!")
	a.Poll(t, 2)
	// The mark that is sent behind it is what comes first.
	a.Post(t, rdma.SendWR{ID: 4, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE([]byte("mark"))}, Dest: to(t, a, b)})
	b.Want(t, 3, rdma.WCRecv, rdma.StatusSuccess)
	if string(bufs[1][rdma.GRHLen:]) != "mark" {
		t.Errorf("%q arrived after the group was left", bufs[1])
	}
	if c.CQ.Len() != 0 {
		t.Error("who is no member has got something")
	}
	for want, addr := range map[string]netip.Addr{"not the address of a multicast group": local(a), "different families": netip.MustParseAddr("ff15::1")} {
		if _, err := a.QP.JoinMulticast(addr); !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", addr, err)
		}
	}
}

// TestParseGRH: both forms, and what is neither.
func TestParseGRH(t *testing.T) {
	v6 := make([]byte, 40)
	v6[0] = 0x60
	from6, to6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	copy(v6[8:], from6.AsSlice())
	copy(v6[24:], to6.AsSlice())
	if from, to, err := rdma.ParseGRH(v6); err != nil || from != from6 || to != to6 {
		t.Errorf("%v, %v, %v", from, to, err)
	}
	for _, b := range [][]byte{nil, make([]byte, 39), make([]byte, 40), bytes.Repeat([]byte{0x10}, 40)} {
		if _, _, err := rdma.ParseGRH(b); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

// ucPair are connected ends of the type UC.
func ucPair(t *testing.T) (a, b *rdmatest.End) {
	t.Helper()
	o := overRoCE()
	o.QP.Type = rdma.TypeUC
	o.Client.RoCE.PathMTU = 1024
	return rdmatest.NewPair(t, o)
}

// TestUnreliableConnection: Sends and Writes of every length, from both ends, and the end.
func TestUnreliableConnection(t *testing.T) {
	a, b := ucPair(t)
	mem := make([]byte, 200<<10)
	mr, err := b.PD.RegMR(mem, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Dereg()
	for i, n := range []int{0, 1, 1023, 1024, 1025, 5000, 50_000} {
		id := uint64(i)
		want, got := pattern(n, id), make([]byte, n)
		b.Recv(t, id, got)
		a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpSendImm, Imm: id, SGL: []rdma.SGE{a.SGE(want)}})
		a.Want(t, id, rdma.WCSend, rdma.StatusSuccess)
		if wc := b.Want(t, id, rdma.WCRecv, rdma.StatusSuccess); int(wc.ByteLen) != n || wc.Flags != rdma.WCWithImm || wc.Imm != id || !bytes.Equal(got, want) {
			t.Errorf("Send of %d bytes: %+v", n, wc)
		}
		clear(mem)
		b.Recv(t, id, nil)
		a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpWriteImm, Imm: 5, SGL: []rdma.SGE{a.SGE(want)}, Remote: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}})
		a.Want(t, id, rdma.WCWrite, rdma.StatusSuccess)
		if wc := b.Want(t, id, rdma.WCRecvImm, rdma.StatusSuccess); int(wc.ByteLen) != n || wc.Imm != 5 || !bytes.Equal(mem[:n], want) {
			t.Errorf("Write of %d bytes: %+v", n, wc)
		}
	}
	// What meets no buffer, or a key that is no good, is lost; nobody is told.
	a.Post(t, rdma.SendWR{ID: 50, Op: rdma.OpSend})
	a.Want(t, 50, rdma.WCSend, rdma.StatusSuccess)
	a.Post(t, rdma.SendWR{ID: 51, Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(mem[:8])}, Remote: rdma.RemoteAddr{STag: 0x4321}})
	a.Want(t, 51, rdma.WCWrite, rdma.StatusSuccess)
	a.Recv(t, 52, make([]byte, 8))
	b.Post(t, rdma.SendWR{ID: 53, Op: rdma.OpSend, SGL: []rdma.SGE{b.SGE(mem[:8])}})
	b.Want(t, 53, rdma.WCSend, rdma.StatusSuccess)
	a.Want(t, 52, rdma.WCRecv, rdma.StatusSuccess)

	a.Recv(t, 60, nil)
	b.QP.Disconnect()
	if err := b.WaitDone(t); err != nil {
		t.Errorf("after Disconnect: %v", err)
	}
	a.Want(t, 60, rdma.WCRecv, rdma.StatusFlushed)
	if err := a.WaitDone(t); err != io.EOF {
		t.Errorf("at the peer: %v", err)
	}
}

// TestUnreliableConnectionFails: a request that cannot be sent ends the connection, as what
// is behind it would arrive as if it had been there.
func TestUnreliableConnectionFails(t *testing.T) {
	a, b := ucPair(t)
	if err := a.QP.PostSend(
		rdma.SendWR{ID: 1, Op: rdma.OpSend, SGL: []rdma.SGE{{Mem: make([]byte, 1), LKey: 0x7654}}},
		rdma.SendWR{ID: 2, Op: rdma.OpSend}); err != nil {
		t.Fatal(err)
	}
	a.Want(t, 1, rdma.WCSend, rdma.StatusLocalProtection)
	a.Want(t, 2, rdma.WCSend, rdma.StatusFlushed)
	if err := a.WaitDone(t); err == nil {
		t.Error("it does not say why")
	}
	if err := b.WaitDone(t); err != io.EOF {
		t.Errorf("at the peer: %v", err)
	}
	a, b = ucPair(t)
	gone := faultmap.New(t, 8192, 4096)
	a.Post(t, rdma.SendWR{ID: 3, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(gone[:8192])}})
	a.Want(t, 3, rdma.WCSend, rdma.StatusLocalFault)
	if err := a.WaitDone(t); err == nil {
		t.Error("it does not say why")
	}
	if err := b.WaitDone(t); err != io.EOF {
		t.Errorf("at the peer: %v", err)
	}
}

// TestNoAllocationsUnacknowledged: nothing is allocated for a datagram, nor for a message of
// an unreliable connection, at either end.
func TestNoAllocationsUnacknowledged(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	ctx := ctxT(t)
	check := func(name string, a, b *rdmatest.End, dest rdma.Destination) {
		ssgl, rsgl := []rdma.SGE{a.SGE(make([]byte, 500))}, []rdma.SGE{b.SGE(make([]byte, 600))}
		var wcs [4]rdma.WC
		round := func() {
			if err := b.QP.PostRecv(rdma.RecvWR{SGL: rsgl}); err != nil {
				t.Fatal(err)
			}
			if err := a.QP.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagSignaled, SGL: ssgl, Dest: dest}); err != nil {
				t.Fatal(err)
			}
			for _, cq := range []*rdma.CQ{a.CQ, b.CQ} {
				for cq.Poll(wcs[:]) == 0 {
					if err := cq.Wait(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for range 200 {
			round() // every slot of the rings has been used
		}
		if n := alloctest.PerRun(200, round); n > 0 {
			t.Errorf("%v allocations per message of %s", n, name)
		}
	}
	a, b := newUD(t, rdma.QPConfig{}), newUD(t, rdma.QPConfig{})
	check("UD", a, b, to(t, a, b))
	a, b = ucPair(t)
	check("UC", a, b, rdma.Destination{})
}
