package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"softiser/internal/alloctest"
	"softiser/internal/loopback"
	"softiser/internal/sockio"
)

// received is what a test has got, packet by packet.
type received struct {
	from netip.AddrPort
	b    []byte
}

// receive takes packets until there are n.
func receive(t *testing.T, r *Receiver, n int) (out []received) {
	t.Helper()
	once := batches(r, func(from netip.AddrPort, p []byte) { out = append(out, received{from, bytes.Clone(p)}) })
	for len(out) < n {
		if err := once(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// packet is one of n bytes that knows its number.
func packet(number, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(number + i)
	}
	binary.BigEndian.PutUint32(b, uint32(number))
	return b
}

// Packets come out as they went in, in order, with their source, over both families,
// joined by the kernel or not.
func TestExchange(t *testing.T) {
	for _, addrs := range [][2]netip.Addr{{lo4, lo4b}, {lo6, lo6}} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v plain=%v", addrs[1], plain), func(t *testing.T) {
				loopback.Namespace(t, loopback.MTU)
				a := open(t, Config{Addr: addrs[0], NoGSO: plain, NoGRO: plain})
				b := a
				if addrs[1] != addrs[0] {
					b = open(t, Config{Addr: addrs[1], NoGSO: plain, NoGRO: plain})
				}
				to, err := a.Peer(addrs[1])
				if err != nil {
					t.Fatal(err)
				}
				lane := a.Lane(7)
				if lane != a.Lane(7) {
					t.Error("a flow has two lanes")
				}
				burst := NewBurst()
				var want [][]byte
				add := func(size int, lens ...int) {
					for i := 0; i < len(lens); {
						if !burst.Message(to, size) {
							t.Fatal("no room for a message")
						}
						for k := 0; k < lane.MaxPackets() && i < len(lens); k++ {
							p := packet(len(want), lens[i])
							third := len(p) / 3
							if !burst.Packet(p[:third], nil, p[third:]) {
								t.Fatalf("no room for packet %d", len(want))
							}
							want = append(want, p)
							i++
						}
					}
				}
				add(280, 280)
				add(4112, 4112, 4112, 4112, 4112, 1000)
				add(16, 16)
				add(1040, 1040, 1040)
				if err := lane.Send(burst); err != nil {
					t.Fatal(err)
				}
				if burst.Sent() != burst.Len() {
					t.Errorf("%d of %d messages", burst.Sent(), burst.Len())
				}
				got := receive(t, b.Receivers()[0], len(want))
				for i, p := range got {
					if !bytes.Equal(p.b, want[i]) {
						t.Errorf("packet %d has %d bytes and number %d, want %d bytes", i, len(p.b), binary.BigEndian.Uint32(p.b), len(want[i]))
					}
					if p.from != netip.AddrPortFrom(addrs[0], lane.SourcePort()) {
						t.Errorf("packet %d is from %v", i, p.from)
					}
				}
				s := b.Receivers()[0].Stats()
				if s.Packets != uint64(len(want)) || !plain && s.Messages == s.Packets || plain && s.Messages != s.Packets {
					t.Errorf("%+v", s)
				}
				if s := lane.Stats(); s.Messages != uint64(burst.Len()) || s.Calls != 1 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// The IP header of a packet by itself is what the ICRC counts on: identification 0, DF.
func TestIPv4Header(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	raw, err := net.ListenPacket("ip4:udp", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	p := open(t, Config{Addr: lo4})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBurst()
	for range 3 {
		b.Message(to, 64)
		b.Packet(packet(1, 64))
	}
	if err := p.Lane(0).Send(b); err != nil {
		t.Fatal(err)
	}
	rc, err := raw.(*net.IPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		h := make([]byte, 200)
		if err := rc.Read(func(fd uintptr) bool {
			_, _, err = unix.Recvfrom(int(fd), h, unix.MSG_DONTWAIT)
			return err != unix.EAGAIN
		}); err != nil {
			t.Fatal(err)
		}
		if id, frag := binary.BigEndian.Uint16(h[4:]), binary.BigEndian.Uint16(h[6:]); id != 0 || frag != 0x4000 || h[0] != 0x45 {
			t.Errorf("identification %#x, flags and offset %#04x, version and length %#x", id, frag, h[0])
		}
	}
}

// Several receivers: the queue pair number decides.
func TestSteering(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4, Receivers: 4})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBurst()
	want := map[int]int{}
	for qpn := range uint32(64) {
		pkt := make([]byte, 16)
		binary.BigEndian.PutUint32(pkt[4:], qpn)
		if !b.Message(to, 16) || !b.Packet(pkt) {
			t.Fatal("no room")
		}
		want[p.ReceiverOf(qpn)]++
	}
	for i := range 4 { // whatever the source port
		b.sent = 0
		if err := p.Lane(uint32(i)).Send(b); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range p.Receivers() {
		for _, pkt := range receive(t, r, 4*want[i]) {
			if qpn := binary.BigEndian.Uint32(pkt.b[4:]); p.ReceiverOf(qpn) != i {
				t.Errorf("a packet for queue pair %d came to receiver %d", qpn, i)
			}
		}
	}
}

func TestPortInUse(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	open(t, Config{Addr: lo4})
	_, err := Open(Config{Addr: lo4})
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(fmt.Sprint(err), "UDP port 4791 of 127.0.0.1 is in use: ") {
		t.Error(err)
	}
	open(t, Config{Addr: lo4b}) // another address is another port
}

// The first lane has the source port of rxe's management datagrams, all others are in
// the range for flows; no two are the same.
func TestSourcePorts(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4, Lanes: 16})
	seen := map[uint16]bool{}
	for i := range uint32(16) {
		port := p.Lane(i).SourcePort()
		if port < firstSourcePort || seen[port] {
			t.Errorf("lane %d has port %d", i, port)
		}
		seen[port] = true
	}
	if p.Lane(0).SourcePort() != 55410 {
		t.Errorf("management from port %d", p.Lane(0).SourcePort())
	}
}

// What comes to a lane's port is dropped, whatever it is.
func TestLanesReceiveNothing(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	from, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p.Lane(0).SourcePort())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	if _, err := from.Write(packet(1, 100)); err != nil {
		t.Fatal(err)
	}
	if err := p.Lane(0).s.rc.Control(func(fd uintptr) {
		if _, _, err := unix.Recvfrom(int(fd), make([]byte, 100), unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Errorf("it was received: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// A packet that does not fit the path is refused, and said so; the others go.
func TestTooLong(t *testing.T) {
	for _, a := range []netip.Addr{lo4, lo6} {
		t.Run(a.String(), func(t *testing.T) {
			loopback.Namespace(t, 1500)
			p := open(t, Config{Addr: a})
			to, err := p.Peer(a)
			if err != nil {
				t.Fatal(err)
			}
			b := NewBurst()
			for _, n := range []int{100, 4112, 200} {
				b.Message(to, n)
				b.Packet(packet(n, n))
			}
			err = p.Lane(0).Send(b)
			var long *TooLongError
			if !errors.As(err, &long) || long.Bytes != 4112 || !errors.Is(err, unix.EMSGSIZE) || b.Sent() != 2 {
				t.Fatalf("%v, %d sent", err, b.Sent())
			}
			if err := p.Lane(0).Send(b); err != nil {
				t.Fatal(err)
			}
			got := receive(t, p.Receivers()[0], 2)
			if len(got[0].b) != 100 || len(got[1].b) != 200 {
				t.Errorf("packets of %d and %d bytes", len(got[0].b), len(got[1].b))
			}
			if s := p.Lane(0).Stats(); s.Failed != 1 {
				t.Errorf("%+v", s)
			}

			// Several in one message: an older kernel takes that for something else
			// at first.
			b.Reset()
			b.Message(to, 4112)
			b.Packet(packet(0, 4112))
			b.Packet(packet(1, 4112))
			if err = p.Lane(0).Send(b); err == ErrNoGSO {
				b.Reset()
				b.Message(to, 4112)
				b.Packet(packet(0, 4112))
				err = p.Lane(0).Send(b)
			}
			if !errors.As(err, &long) || p.Lane(0).MaxPackets() == 1 {
				t.Errorf("%v, %d packets", err, p.Lane(0).MaxPackets())
			}
		})
	}
}

// Memory that cannot be read costs its message.
func TestFault(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBurst()
	b.Message(to, 100)
	b.Packet(noAccess(t))
	b.Message(to, 50)
	b.Packet(packet(2, 50))
	if err := p.Lane(0).Send(b); !errors.Is(err, ErrFault) || b.Sent() != 1 {
		t.Fatalf("%v, %d sent", err, b.Sent())
	}
	if err := p.Lane(0).TrySend(b); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, p.Receivers()[0], 1); len(got[0].b) != 50 {
		t.Errorf("%d bytes", len(got[0].b))
	}
}

// Where a message cannot be cut, it is said, and the lane has single packets from then.
func TestNoGSO(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	l := p.Lane(0)
	if l.MaxPackets() != maxPackets {
		t.Fatalf("%d packets", l.MaxPackets())
	}
	if err := l.s.control(func(o *sockopts) { o.noChecksum(true) }); err != nil { // which forbids it
		t.Fatal(err)
	}
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBurst()
	b.Message(to, 100)
	for i := range 2 {
		b.Packet(packet(i, 100))
	}
	if err := l.Send(b); err != ErrNoGSO || b.Sent() != 0 {
		t.Fatalf("%v, %d sent", err, b.Sent())
	}
	if l.MaxPackets() != 1 {
		t.Errorf("%d packets", l.MaxPackets())
	}
	b.Reset()
	for i := range 2 {
		b.Message(to, 100)
		b.Packet(packet(i, 100))
	}
	if err := l.Send(b); err != nil {
		t.Fatal(err)
	}
	receive(t, p.Receivers()[0], 2)
}

// A Burst takes what one call can send and refuses the rest whole.
func TestBurstLimits(t *testing.T) {
	to, b := new(Peer), NewBurst()
	if b.Message(to, 0) || b.Message(to, maxBytes+1) {
		t.Error("a packet size that cannot be")
	}
	fill := func(size, n int) int {
		b.Reset()
		b.Message(to, size)
		for i := range n {
			if !b.Packet(make([]byte, size)) {
				return i
			}
		}
		return n
	}
	if n := fill(4112, 100); n != 15 {
		t.Errorf("%d packets of 4112 bytes", n)
	}
	if n := fill(1040, 100); n != 62 {
		t.Errorf("%d packets of 1040 bytes", n)
	}
	if n := fill(16, 100); n != maxPackets {
		t.Errorf("%d packets of 16 bytes", n)
	}
	fill(100, 2)
	if b.Packet(make([]byte, 101)) || b.Packet() || !b.Packet(make([]byte, 99)) || b.Packet(make([]byte, 99)) {
		t.Error("a packet behind a shorter one, a longer one, or an empty one was taken")
	}
	b.Reset()
	n := 0
	for b.Message(to, 10) && b.Packet(make([]byte, 10)) {
		n++
	}
	if n != maxMessages || b.Packet(make([]byte, 10)) {
		t.Errorf("%d messages, and a packet of none", n)
	}
	b.Reset()
	b.Message(to, 64)
	pieces := make([][]byte, 20)
	for i := range pieces {
		pieces[i] = make([]byte, 1)
	}
	for n = 0; b.Packet(pieces...); n++ {
		b.Message(to, 64)
	}
	if n != MaxPieces/20 {
		t.Errorf("%d packets of 20 pieces", n)
	}
}

// Who waits is told that the port is closed.
func TestClose(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	done := make(chan error)
	go func() { done <- p.Receivers()[0].Serve(func(netip.AddrPort, []byte) {}, func() {}) }()
	p.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	b := NewBurst()
	if err := p.Lane(0).Send(b); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// A call that fails is at most the loss of a packet: what comes behind it is received, and until then
// whoever misses answers can learn why there are none.
func TestErrorsPass(t *testing.T) {
	for name, alone := range map[string]bool{"poller": false, "in the call": true} {
		t.Run(name, func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			p := open(t, Config{Addr: lo4})
			r := p.Receivers()[0]
			r.Spin(sockio.BusyPollOff, alone)
			to, err := p.Peer(lo4)
			if err != nil {
				t.Fatal(err)
			}
			base := r.b.iov[0].Base
			r.b.iov[0].Base = unsafe.SliceData(noAccess(t)) // EFAULT: an error that any kernel has
			b, got, done := NewBurst(), make(chan int, 8), make(chan error)
			send := func(number int) {
				b.Reset()
				b.Message(to, 100)
				b.Packet(packet(number, 100))
				if err := p.Lane(0).Send(b); err != nil {
					t.Error(err)
				}
			}
			for i := range 3 {
				send(i)
			}
			calls := 0
			read := r.wait
			r.wait = func(fd uintptr) bool {
				if calls++; calls == 3 {
					r.b.iov[0].Base = base
				}
				return read(fd)
			}
			go func() {
				done <- r.Serve(func(_ netip.AddrPort, b []byte) {
					got <- slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return bytes.Equal(b, packet(i, 100)) })
					if calls < 3 || r.Err() != nil {
						t.Errorf("handed on in call %d, error %v", calls, r.Err())
					}
				}, func() {})
			}()
			select {
			case i := <-got:
				if i != 2 {
					t.Errorf("packet %d", i)
				}
			case err := <-done:
				t.Fatal(err)
			}
			p.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// However it waits, in the call too, a receiver hands on everything, and the end of the port
// ends it, also while there is always something to come.
func TestWaiting(t *testing.T) {
	for name, d := range map[string]time.Duration{"off": sockio.BusyPollOff, "auto": sockio.BusyPollAuto, "fixed": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			p := open(t, Config{Addr: lo4})
			to, err := p.Peer(lo4)
			if err != nil {
				t.Fatal(err)
			}
			r := p.Receivers()[0]
			send := func(b *Burst, number int) {
				b.Reset()
				b.Message(to, 100)
				b.Packet(packet(number, 100))
				if err := p.Lane(0).Send(b); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			}
			r.Spin(d, true)
			const rounds = 300
			over := false
			number, b, enough, done := 0, NewBurst(), make(chan struct{}), make(chan error)
			go func() {
				done <- r.Serve(func(_ netip.AddrPort, got []byte) {
					if !bytes.Equal(got, packet(number%200, 100)) {
						t.Errorf("packet %d is another one", number)
					}
					if number++; !over && number >= rounds && (d != sockio.BusyPollOff || r.waiter.Blocks > 0) {
						over = true
						close(enough)
					}
					send(b, number%200) // it is the next one to come
				}, func() {})
			}()
			send(NewBurst(), 0)
			<-enough
			p.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// What a look finds is left for the receiver, and it finds the end of the port.
func TestLooks(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	r := p.Receivers()[0]
	readable := func() (is bool) {
		if err := r.s.rc.Control(func(fd uintptr) {
			r.fd = fd
			is = (*looks)(r).Readable()
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if readable() {
		t.Error("an empty socket is readable")
	}
	b := NewBurst()
	b.Message(to, 100)
	b.Packet(packet(1, 100))
	if err := p.Lane(0).Send(b); err != nil {
		t.Fatal(err)
	}
	if !readable() || !readable() {
		t.Error("a packet is not seen, or not left")
	}
	before := (*looks)(r).Arrivals()
	if got := receive(t, r, 1); !bytes.Equal(got[0].b, packet(1, 100)) || (*looks)(r).Arrivals() == before {
		t.Errorf("%x", got[0].b)
	}
	r.ending.Store(true)
	if !readable() {
		t.Error("the end is not seen")
	}
}

// Whoever ends a receiver of a group does not wait for one who is handed a packet, and may
// be waiting for him.
func TestCloseWhileTaken(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	r, err := p.Join(netip.MustParseAddr("239.1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	taken, ended, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- r.Serve(func(netip.AddrPort, []byte) { close(taken); <-ended }, func() {})
	}()
	to, err := p.Peer(netip.MustParseAddr("239.1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	b := NewBurst()
	b.Message(to, 100)
	b.Packet(packet(1, 100))
	if err := p.Lane(0).Send(b); err != nil {
		t.Fatal(err)
	}
	<-taken
	r.Close()
	close(ended)
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Addr: netip.IPv4Unspecified()}, {Addr: netip.MustParseAddr("239.1.2.3")}, {Addr: lo4, Receivers: 3}, {Addr: lo4, Receivers: 256}, {Addr: lo4, Lanes: -1}} {
		if p, err := Open(c); err == nil {
			p.Close()
			t.Errorf("%+v was opened", c)
		}
	}
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	if _, err := p.Peer(lo6); err == nil {
		t.Error("a peer of another family")
	}
	if got := p.Receivers()[0].Buffer(); got < 200<<10 {
		t.Errorf("a receive buffer of %d bytes", got)
	}
	if to, err := p.Peer(netip.MustParseAddr("::ffff:127.0.0.9")); err != nil || to.Addr() != netip.MustParseAddr("127.0.0.9") {
		t.Error(to, err)
	}
}

// The zone of a link-local port is that of its peers.
func TestZones(t *testing.T) {
	p := &Port{addr: netip.MustParseAddr("fe80::1%lo")}
	to, err := p.Peer(netip.MustParseAddr("fe80::2"))
	if err != nil || to.Addr().Zone() != "lo" || to.raw.Scope_id == 0 {
		t.Errorf("%+v, %v", to, err)
	}
	if _, err := p.Peer(netip.MustParseAddr("fe80::2%nosuch")); err == nil {
		t.Error("a zone that does not exist")
	}
}

// What the kernel drops for lack of room is counted: nothing else tells of it.
func TestLost(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4, RecvBuffer: 8 << 10, NoGSO: true, NoGRO: true})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b, r := NewBurst(), p.Receivers()[0]
	for i := range maxMessages {
		b.Message(to, 4112)
		b.Packet(packet(i, 4112))
	}
	if err := p.Lane(0).Send(b); err != nil {
		t.Fatal(err)
	}
	lost := r.Stats().Lost
	if lost == 0 || lost >= maxMessages {
		t.Fatalf("%d of %d packets lost, with a buffer of %d bytes", lost, maxMessages, r.Buffer())
	}
	receive(t, r, maxMessages-int(lost))
}

// Nothing is allocated to send and to receive.
func TestAllocations(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, Config{Addr: lo4})
	to, err := p.Peer(lo4)
	if err != nil {
		t.Fatal(err)
	}
	b, hdr, payload := NewBurst(), make([]byte, 12), make([]byte, 4100)
	l, r := p.Lane(3), p.Receivers()[0]
	n := 0
	once := batches(r, func(netip.AddrPort, []byte) { n++ })
	got := alloctest.PerRun(100, func() {
		b.Reset()
		b.Message(to, 4112)
		for range 8 {
			b.Packet(hdr, payload)
		}
		if err := l.TrySend(b); err != nil {
			t.Fatal(err)
		}
		for n = 0; n < 8; {
			if err := once(); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// What routers may mark, and have marked, is told of packets by themselves and of those that
// were cut from one message.
func TestECN(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	for _, addr := range []netip.Addr{lo4, lo6} {
		p := open(t, Config{Addr: addr})
		to, err := p.Peer(addr)
		if err != nil {
			t.Fatal(err)
		}
		got := map[byte]map[uint8]int{}
		next := batches(p.Receivers()[0], func(_ netip.AddrPort, b []byte) {
			if got[b[0]] == nil {
				got[b[0]] = map[uint8]int{}
			}
			got[b[0]][p.Receivers()[0].ECN()]++
		})
		b := NewBurst()
		for kind := range byte(4) {
			b.Message(to, 100)
			if kind&1 != 0 {
				b.MarkECT()
			}
			for range 1 + 4*int(kind&2) { // 1 or 9 packets
				b.Packet(append([]byte{kind}, make([]byte, 99)...))
			}
		}
		if err := p.Lane(0).Send(b); err != nil {
			t.Fatal(err)
		}
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, PortNumber)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		rc, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := control(rc, func(o *sockopts) {
			if addr.Is4() {
				o.set("IP_TOS", unix.IPPROTO_IP, unix.IP_TOS, 3|0x20)
			} else {
				o.set("IPV6_TCLASS", unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 3|0x20)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte{9, 9}); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 21; {
			if err := next(); err != nil {
				t.Fatal(err)
			}
			n = 0
			for _, kinds := range got {
				for _, k := range kinds {
					n += k
				}
			}
		}
		want := map[byte]map[uint8]int{0: {0: 1}, 1: {2: 1}, 2: {0: 9}, 3: {2: 9}, 9: {3: 1}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v, want %v", addr, got, want)
		}
	}
}
