package port

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/pcaptest"
	"softiser/internal/sockio"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
	"softiser/rdma/internal/verbs"
)

var (
	lo4  = netip.MustParseAddr("127.0.0.1")
	lo4b = netip.MustParseAddr("127.0.0.2")
	lo6  = netip.MustParseAddr("::1")
)

const (
	service = mad.ServiceID(0x0000000001061c06)
	bound   = 30 * time.Second // of what must happen
)

func open(t *testing.T, a netip.Addr, receivers int) *Port {
	t.Helper()
	p, err := Open(Config{UDP: udp.Config{Addr: a, Receivers: receivers, RecvBuffer: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func request(qpn uint32) *cm.Request {
	return &cm.Request{Service: service, QPN: qpn, PSN: 1, MTU: uint8(packet.MTU1024), RetryCount: 7, RNRRetry: 7, Private: []byte("hello")}
}

// A connection is made and ended over real sockets, between two addresses and from an
// address to itself, over both families, with several receivers.
func TestConnect(t *testing.T) {
	for _, c := range []struct {
		a, b      netip.Addr
		receivers int
	}{{lo4, lo4b, 1}, {lo4, lo4, 1}, {lo6, lo6, 1}, {lo4, lo4b, 4}} {
		t.Run(c.a.String()+" "+c.b.String(), func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			a := open(t, c.a, c.receivers)
			b := a
			if c.a != c.b {
				b = open(t, c.b, c.receivers)
			}
			l, err := b.CM().Listen(service, 1)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			established, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				in, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if in.Peer() != c.a || !bytes.HasPrefix(in.Request.Private, []byte("hello")) {
					t.Errorf("a request from %v with %q", in.Peer(), in.Request.Private)
				}
				if _, err := in.Accept(&cm.Reply{QPN: 99, PSN: 2}, cm.Hooks{Established: func() { close(established) }, Ended: func(err error) { ended <- err }}); err != nil {
					t.Error(err)
				}
			}()
			conn, err := a.CM().Connect(ctx, c.b, request(98), cm.Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			if r := conn.Reply(); r.QPN != 99 || r.PSN != 2 {
				t.Errorf("%+v", r)
			}
			if err := conn.Establish(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-established:
			case <-ctx.Done():
				t.Fatalf("not established: %+v, %+v", a.Stats(), b.Stats())
			}
			if err := conn.Disconnect(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, cm.ErrDisconnected) {
					t.Error(err)
				}
			case <-ctx.Done():
				t.Fatal("not ended")
			}
			if _, err := a.CM().Connect(ctx, c.b, &cm.Request{Service: service + 1, QPN: 97, MTU: 3}, cm.Hooks{}); !errors.Is(err, verbs.ErrRejected) {
				t.Error(err)
			}
			for _, s := range []Stats{a.Stats(), b.Stats()} {
				s.Packets = 0
				if s != (Stats{}) {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// The management datagrams that Linux sends over rxe are made again, byte for byte.
func TestAsRxe(t *testing.T) {
	n := 0
	for _, name := range pcaptest.RoCENames(t, "") {
		for _, d := range pcaptest.RoCE(t, name) {
			pkt, err := packet.Parse(d.Payload())
			if err != nil {
				t.Fatal(err)
			}
			if pkt.QPN != mad.GSIQPN || d.Src().Port() == udp.PortNumber {
				continue // not a management datagram, or that of a process
			}
			n++
			var id uint16
			if d.Src().Addr().Is4() {
				id = binary.BigEndian.Uint16(d.IP[4:])
			}
			if got := appendMAD(nil, packet.NewFlow(d.Src(), d.Dst()), pkt.PSN, id, pkt.Payload); !bytes.Equal(got, d.Payload()) {
				t.Errorf("%s: made\n%x, was\n%x", name, got, d.Payload())
			}
			if d.Src().Port() != 55410 {
				t.Errorf("%s: from port %d", name, d.Src().Port())
			}
		}
	}
	if n != 191 {
		t.Errorf("%d datagrams", n)
	}
}

// inject sends datagrams to p as anybody can: from a lane of another port.
func inject(t *testing.T, from, to *Port, datagrams ...[]byte) {
	t.Helper()
	peer, err := from.udp.Peer(to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	b := udp.NewBurst()
	for _, d := range datagrams {
		b.Message(peer, len(d))
		b.Packet(d)
	}
	if err := from.udp.Lane(0).Send(b); err != nil {
		t.Fatal(err)
	}
}

// What fails a check is dropped and counted as that, and what comes behind it is taken.
func TestDropped(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p, peer, other := open(t, lo4, 1), open(t, lo4b, 1), open(t, netip.MustParseAddr("127.0.0.3"), 1)
	taken := make(chan []byte, 100)
	p.Attach(77, lo4b, func(from netip.AddrPort, pkt *packet.Packet) { taken <- bytes.Clone(pkt.Payload) }, nil)

	make1 := func(from *Port, id uint16, change func(*packet.Packet)) []byte {
		pkt := packet.Packet{BTH: packet.BTH{Op: packet.SendOnly, PKey: packet.DefaultPKey, QPN: 77}}
		change(&pkt)
		payload := []byte("abcde")
		b := packet.Append(nil, &pkt, len(payload))
		flow := packet.NewFlow(netip.AddrPortFrom(from.Addr(), from.udp.Lane(0).SourcePort()), netip.AddrPortFrom(p.Addr(), udp.PortNumber))
		sum := flow.Begin(b, pkt.Op.Len(len(payload)), id).Add(payload)
		return sum.AppendTrailer(append(b, payload...), len(payload))
	}
	good := func(*packet.Packet) {}
	damaged := func(b []byte) []byte { b[13] ^= 1; return b }
	inject(t, peer, p,
		make1(peer, 0, good),
		damaged(make1(peer, 0, good)),
		make1(peer, 0x7777, good), // as if by chance: a plain socket sends 0
		make1(peer, 0, func(p *packet.Packet) { p.QPN = 78 }),
		make1(peer, 0, func(p *packet.Packet) { p.PKey = 0x1234 }),
		make1(peer, 0, func(p *packet.Packet) { p.QPN = mad.GSIQPN }),
		make1(peer, 0, func(p *packet.Packet) {
			p.Op, p.QPN, p.DETH = packet.UD|packet.SendOnly, mad.GSIQPN, packet.DETH{QKey: 1, SrcQPN: mad.GSIQPN}
		}),
		make1(peer, 0, func(p *packet.Packet) {
			p.Op, p.QPN, p.DETH = packet.UD|packet.SendOnly, mad.GSIQPN, packet.DETH{QKey: mad.GSIQKey, SrcQPN: 2}
		}),
		[]byte("too short"),
		bytes.Repeat([]byte{0xff}, 64),
	)
	inject(t, other, p, make1(other, 0, good))
	wait := func() {
		t.Helper()
		select {
		case b := <-taken:
			if string(b) != "abcde" {
				t.Errorf("taken: %q", b)
			}
		case <-time.After(bound):
			t.Fatalf("nothing was taken: %+v", p.Stats())
		}
	}
	wait()
	inject(t, peer, p, make1(peer, 0, func(p *packet.Packet) { p.PKey = 0x7fff })) // a limited member
	wait()
	want := Stats{Packets: 5, Malformed: 2, BadPKey: 1, NoQP: 1, NotPeer: 1, BadICRC: 1, StrangeID: 1, NotMAD: 3}
	if got := p.Stats(); got != want || len(taken) != 0 {
		t.Errorf("%+v, want %+v; %d taken", got, want, len(taken))
	}

	p.Detach(77)
	p.Detach(77)
	inject(t, peer, p, make1(peer, 0, good), make1(peer, 0, func(p *packet.Packet) { p.QPN = mad.GSIQPN }))
	for end := time.Now().Add(bound); p.Stats().NotMAD < 4; time.Sleep(time.Millisecond) { // until the second has come
		if time.Now().After(end) {
			t.Fatalf("%+v", p.Stats())
		}
	}
	if len(taken) != 0 || p.Stats().NoQP != 2 {
		t.Errorf("taken after Detach: %+v", p.Stats())
	}
	if r := p.receivers[0]; len(r.peers) != 0 || len(r.endpoints) != 1 {
		t.Errorf("%d peers, %d endpoints are left", len(r.peers), len(r.endpoints))
	}
}

// Forged source addresses do not fill the memory, nor push a connected peer out.
func TestStrangers(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	r := p.receivers[0]
	p.Attach(50, lo4b, func(netip.AddrPort, *packet.Packet) {}, nil)
	p.Attach(51, lo4b, func(netip.AddrPort, *packet.Packet) {}, nil)
	r.mu.Lock()
	known := r.sourceLocked(lo4b)
	for i := range 10 * maxStrangers {
		r.sourceLocked(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	n, same := len(r.strangers), r.sourceLocked(lo4b) == known
	r.mu.Unlock()
	if n != maxStrangers || !same {
		t.Errorf("%d strangers; the peer is still known: %v", n, same)
	}
	p.Detach(50)
	if len(r.peers) != 1 {
		t.Error("the peer of another queue pair is forgotten")
	}
	p.Detach(51)
	if len(r.peers) != 0 {
		t.Error("a peer of nobody is kept")
	}
}

// The port belongs to one at a time.
func TestInUse(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	if q, err := Open(Config{UDP: udp.Config{Addr: lo4}}); err == nil {
		q.Close()
		t.Fatal("opened twice")
	}
	p.Close()
	open(t, lo4, 1)
}

// The wish for the longest looks counts, as long as its queue pair is there.
func TestSpin(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	r := p.receivers[0]
	want := func(when string, d time.Duration) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := r.longestSpin(); got != d {
			t.Errorf("%s: %v, want %v", when, got, d)
		}
	}
	want("nobody", sockio.BusyPollOff)
	for i, d := range []time.Duration{sockio.BusyPollOff, sockio.BusyPollAuto, time.Microsecond, time.Millisecond} {
		p.Attach(uint32(10+i), lo4, func(netip.AddrPort, *packet.Packet) {}, nil)
		p.Spin(uint32(10+i), d)
		want("one more", d)
	}
	p.Detach(13)
	want("the longest has gone", time.Microsecond)
	p.Spin(13, time.Second)
	want("one that is not there", time.Microsecond)
	p.Detach(12)
	want("auto is left", sockio.BusyPollAuto)
	p.Detach(11)
	p.Detach(10)
	want("nobody any more", sockio.BusyPollOff)
}

// A receiver holds the only processor while it waits for the packets of one queue pair, and
// of no more.
func TestAlone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	r := p.receivers[0]
	want := func(when string, alone bool) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.alone() != alone {
			t.Errorf("%s: alone %v, want %v", when, !alone, alone)
		}
	}
	want("nobody", false)
	take := func(netip.AddrPort, *packet.Packet) {}
	p.Attach(10, lo4, take, nil)
	want("one", true)
	p.Attach(11, lo4, take, nil)
	want("two", false)
	p.Detach(10)
	want("one again", true)
	runtime.GOMAXPROCS(2)
	want("a second processor", false)
}
