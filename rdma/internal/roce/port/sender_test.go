package port

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"softiser/internal/alloctest"
	"softiser/internal/loopback"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// sent is a packet with its payload, as it went or came.
type sent struct {
	packet.Packet
	data []byte
}

func (s *sent) String() string {
	return fmt.Sprintf("%v PSN %v, %d bytes", s.Op, s.PSN, len(s.data))
}

// collect attaches queue pair 5 of p for packets from peer.
func collect(p *Port, peer netip.Addr) chan sent {
	c := make(chan sent, 4096)
	p.Attach(5, peer, func(_ netip.AddrPort, pkt *packet.Packet) {
		s := sent{*pkt, bytes.Clone(pkt.Payload)}
		s.Payload = nil
		c <- s
	}, nil)
	return c
}

// take takes n packets from c.
func take(t *testing.T, p *Port, c chan sent, n int) (out []sent) {
	t.Helper()
	for range n {
		select {
		case s := <-c:
			out = append(out, s)
		case <-time.After(bound):
			t.Fatalf("%d of %d packets have come: %+v", len(out), n, p.Stats())
		}
	}
	return out
}

// message is the packets of a message, with payload of n bytes in all.
func message(kind packet.Opcode, psn packet.PSN, n int) (out []sent) {
	const mtu = 4096
	for off := 0; off == 0 || off < n; off += mtu {
		p := sent{Packet: packet.Packet{BTH: packet.BTH{PKey: packet.DefaultPKey, QPN: 5, PSN: psn.Add(len(out))}}}
		p.data = make([]byte, min(mtu, n-off))
		for i := range p.data {
			p.data[i] = byte(off>>8 + i + int(psn))
		}
		first, last := off == 0, off+mtu >= n
		p.Op = map[[2]bool]packet.Opcode{{true, true}: packet.WriteOnly, {true, false}: packet.WriteFirst, {false, false}: packet.WriteMiddle, {false, true}: packet.WriteLast}[[2]bool{first, last}]
		if kind == packet.SendFirst {
			p.Op = map[packet.Opcode]packet.Opcode{packet.WriteOnly: packet.SendOnlyInv, packet.WriteFirst: packet.SendFirst, packet.WriteMiddle: packet.SendMiddle, packet.WriteLast: packet.SendLastInv}[p.Op]
			if last {
				p.InvRKey = 0x12345678
			}
		} else if first {
			p.RETH = packet.RETH{VA: 1 << 40, RKey: 77, Len: uint32(n)}
		}
		out = append(out, p)
	}
	return out
}

// mixture is packets of many lengths, as a busy connection has them.
func mixture() (out []sent) {
	for i, n := range []int{0, 1, 16, 4096, 4097, 60000, 100, 100, 100, 13000, 4095, 7} {
		kind := packet.SendFirst
		if i%2 == 0 {
			kind = packet.WriteFirst
		}
		out = append(out, message(kind, packet.PSN(100*i), n)...)
		out = append(out, sent{Packet: packet.Packet{BTH: packet.BTH{Op: packet.Acknowledge, PKey: packet.DefaultPKey, QPN: 5, PSN: packet.PSN(i)}, AETH: packet.AETH{Syndrome: packet.ACK, MSN: 3}}})
	}
	return out
}

// send sends packets by s, every third copied, the others in three pieces.
func send(t *testing.T, s *Sender, pkts []sent) {
	t.Helper()
	for i := range pkts {
		p := &pkts[i]
		a, b := len(p.data)/4, len(p.data)/2
		for {
			ok, err := s.Add(&p.Packet, [][]byte{p.data[:a], p.data[a:b], p.data[b:]}, len(p.data), i%3 == 0)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				break
			}
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, got, want []sent) {
	t.Helper()
	for i := range want {
		g, w := &got[i], &want[i]
		g.ECN = 0 // TestMarkable's
		if fmt.Sprint(g.Packet) != fmt.Sprint(w.Packet) || !bytes.Equal(g.data, w.data) {
			t.Fatalf("packet %d: %v, want %v", i, g, w)
		}
	}
}

// What is sent arrives, with an ICRC that is right, in order, over both families and
// whether the kernel cuts messages or not.
func TestSender(t *testing.T) {
	for _, a := range []netip.Addr{lo4, lo6} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v plain=%v", a, plain), func(t *testing.T) {
				loopback.Namespace(t, loopback.MTU)
				p, err := Open(Config{UDP: udp.Config{Addr: a, NoGSO: plain, RecvBuffer: 4 << 20}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(p.Close)
				c := collect(p, a)
				s, err := p.Sender(a, 9)
				if err != nil {
					t.Fatal(err)
				}
				want := mixture()
				send(t, s, want)
				same(t, take(t, p, c, len(want)), want)
				if st := p.Stats(); st.Packets != uint64(len(want)) || st.BadICRC+st.StrangeID+st.Malformed != 0 {
					t.Errorf("%+v", st)
				}
				if l := s.lane.Stats(); !plain && l.Messages >= uint64(len(want)) {
					t.Errorf("%d packets in %d messages", len(want), l.Messages)
				}
			})
		}
	}
}

// The ICRC of a packet is that for the identification which the kernel will give it:
// its place in its message. A receiver of ours solves for it, and rxe does not have to.
func TestSenderIdentifications(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	s, err := p.Sender(lo4b, 9)
	if err != nil {
		t.Fatal(err)
	}
	pkts := append(message(packet.SendFirst, 0, 4*4096+5), message(packet.WriteFirst, 9, 2*4096)...)
	want := []uint16{0, 1, 2, 3, 4, 0, 1}
	for i := range pkts {
		if ok, err := s.Add(&pkts[i].Packet, [][]byte{pkts[i].data}, len(pkts[i].data), i%2 == 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
		q := s.queue[i]
		id, ok := s.peer.flow.Check(bytes.Join(s.segs[q.first:q.last], nil), 0)
		if !ok || id != want[i] {
			t.Errorf("packet %d, %v, is for identification %d (%v), want %d", i, pkts[i].Op, id, ok, want[i])
		}
	}
}

// The kernel turns out not to cut messages: what was added is sent all the same, with
// other ICRCs.
func TestSenderLosesGSO(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	c := collect(p, lo4)
	s, err := p.Sender(lo4, 9)
	if err != nil {
		t.Fatal(err)
	}
	want := mixture()
	for i := range want[:12] {
		if ok, err := s.Add(&want[i].Packet, [][]byte{want[i].data}, len(want[i].data), i%2 == 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	forbidGSO(t, s.lane.SourcePort())
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if s.lane.MaxPackets() != 1 {
		t.Errorf("%d packets in a message", s.lane.MaxPackets())
	}
	send(t, s, want[12:])
	same(t, take(t, p, c, len(want)), want)
	if st := p.Stats(); st.BadICRC+st.StrangeID != 0 {
		t.Errorf("%+v", st)
	}
}

// forbidGSO makes the kernel refuse to cut messages sent from a port.
func forbidGSO(t *testing.T, port uint16) {
	t.Helper()
	for fd := range 1024 {
		if sa, err := unix.Getsockname(fd); err == nil {
			if v4, ok := sa.(*unix.SockaddrInet4); ok && v4.Port == int(port) {
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatal("no socket has that port")
}

// Memory that changes between Add and Flush makes a packet that nobody takes, unless
// it was copied.
func TestSenderCopies(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	c := collect(p, lo4)
	s, err := p.Sender(lo4, 9)
	if err != nil {
		t.Fatal(err)
	}
	want := message(packet.WriteFirst, 0, 100)
	data := [][]byte{bytes.Clone(want[0].data), bytes.Clone(want[0].data)}
	for i, copied := range []bool{false, true} {
		if ok, err := s.Add(&want[0].Packet, data[i:i+1], 100, copied); !ok || err != nil {
			t.Fatal(ok, err)
		}
		data[i][50]++
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	same(t, take(t, p, c, 1), want)
	if st := p.Stats(); st.BadICRC != 1 || st.Packets != 1 {
		t.Errorf("%+v", st)
	}
}

// Payload that cannot be read costs its own packet; so does one that is too long.
func TestSenderErrors(t *testing.T) {
	loopback.Namespace(t, 1500)
	p := open(t, lo4, 1)
	c := collect(p, lo4)
	s, err := p.Sender(lo4, 9)
	if err != nil {
		t.Fatal(err)
	}
	hole, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(hole) })
	want := message(packet.WriteFirst, 0, 100)
	for _, copied := range []bool{false, true} {
		if ok, err := s.Add(&want[0].Packet, [][]byte{hole[:100]}, 100, copied); ok || err != ErrFault {
			t.Fatal(ok, err)
		}
	}
	if err := s.Flush(); err != nil || s.lane.Stats().Messages != 0 {
		t.Errorf("%+v sent of packets that were not added, %v", s.lane.Stats(), err)
	}
	long := message(packet.SendFirst, 0, 4000)
	add := func(m []sent) {
		t.Helper()
		if ok, err := s.Add(&m[0].Packet, [][]byte{m[0].data}, len(m[0].data), true); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	add(want)
	add(long)
	var tooLong *udp.TooLongError
	if err := s.Flush(); !errors.As(err, &tooLong) {
		t.Error(err)
	}
	add(want)
	if err := s.Flush(); err != nil {
		t.Error(err)
	}
	same(t, take(t, p, c, 2), append(want, want...))

	many := make([][]byte, 2000)
	for i := range many {
		many[i] = []byte{1}
	}
	if ok, err := s.Add(&want[0].Packet, many, 2000, false); ok || err == nil || !strings.Contains(err.Error(), "2002 pieces") {
		t.Error(ok, err)
	}
	if _, err := p.Sender(lo6, 9); err == nil {
		t.Error("a peer of another family")
	}
	add(want)
	p.Close()
	if err := s.Flush(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// Nothing is allocated to send and to receive packets.
func TestSenderAllocations(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	var got atomic.Int64
	p.Attach(5, lo4, func(netip.AddrPort, *packet.Packet) { got.Add(1) }, nil)
	s, err := p.Sender(lo4, 9)
	if err != nil {
		t.Fatal(err)
	}
	pkts := message(packet.WriteFirst, 0, 20000)
	pieces := make([][]byte, 1)
	n := alloctest.PerRun(200, func() {
		for i := range pkts {
			pieces[0] = pkts[i].data
			if ok, err := s.Add(&pkts[i].Packet, pieces, len(pkts[i].data), i%2 == 0); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A Sender takes the memory that it needs, and no more: a connection costs little until it
// answers large READs.
func TestSlabGrows(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	s, err := p.Sender(lo4, 9)
	if err != nil {
		t.Fatal(err)
	}
	if cap(s.slab) != 0 {
		t.Errorf("a new one has %d bytes", cap(s.slab))
	}
	fill := func(copied bool) (n int) {
		pkts := message(packet.WriteFirst, 0, 1<<20)
		for ; ; n++ {
			ok, err := s.Add(&pkts[n].Packet, [][]byte{pkts[n].data}, len(pkts[n].data), copied)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := fill(false); n != maxQueued || cap(s.slab) > 8<<10 {
		t.Errorf("%d packets by reference, %d bytes", n, cap(s.slab))
	}
	for range 3 {
		if n := fill(true); n < slabLen/(4096+64)-2 {
			t.Errorf("%d copied packets", n)
		}
	}
	if cap(s.slab) != slabLen {
		t.Errorf("%d bytes", cap(s.slab))
	}
}

// BenchmarkPackets moves packets of 4 KiB from memory over loopback to where they are
// checked, with the ICRC at both ends; MB/s of payload.
func BenchmarkPackets(b *testing.B) {
	for _, copied := range []bool{false, true} {
		b.Run(fmt.Sprintf("copied=%v", copied), func(b *testing.B) {
			loopback.Namespace(b, loopback.MTU)
			p, err := Open(Config{UDP: udp.Config{Addr: lo4}})
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			var got atomic.Int64
			p.Attach(5, lo4, func(netip.AddrPort, *packet.Packet) { got.Add(1) }, nil)
			s, err := p.Sender(lo4, 9)
			if err != nil {
				b.Fatal(err)
			}
			pkts := message(packet.WriteFirst, 0, 1<<20)[1:]
			pieces := make([][]byte, 1)
			b.SetBytes(4096)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				pieces[0] = pkts[i%len(pkts)].data
				if ok, err := s.Add(&pkts[i%len(pkts)].Packet, pieces, 4096, copied); err != nil || !ok {
					b.Fatal(ok, err)
				}
				if i%60 == 59 || i == b.N-1 {
					if err := s.Flush(); err != nil {
						b.Fatal(err)
					}
					for begin := time.Now(); int64(i+1)-got.Load() > 120 || i == b.N-1 && got.Load() < int64(b.N); {
						if time.Since(begin) > 10*time.Second {
							b.Fatalf("%d of %d packets have come: %+v", got.Load(), i+1, p.Stats())
						}
						time.Sleep(10 * time.Microsecond) // to spin would take the processor of the receiver
					}
				}
			}
		})
	}
}

// Routers may mark acknowledgements, and requests of who obeys; not answers to READs, nor what
// nobody acknowledges.
func TestMarkable(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	c := collect(p, lo4)
	s, err := p.Sender(lo4, 5)
	if err != nil {
		t.Fatal(err)
	}
	ops := []packet.Opcode{
		packet.Acknowledge, packet.WriteFirst, packet.WriteMiddle, packet.SendOnly, packet.ReadResponseFirst, packet.ReadResponseMid, packet.Acknowledge,
		packet.ReadRequest, packet.UC | packet.SendOnly, packet.CNP, packet.FetchAdd, packet.AtomicAcknowledge, packet.ReadResponseOnly,
	}
	round := func() string {
		data := make([]byte, 256)
		for i, op := range ops {
			n := len(data)
			switch op {
			case packet.Acknowledge, packet.ReadRequest, packet.CNP, packet.FetchAdd, packet.AtomicAcknowledge:
				n = 0
			}
			pkt := packet.Packet{BTH: packet.BTH{Op: op, PKey: packet.DefaultPKey, QPN: 5, PSN: packet.PSN(i)}}
			if ok, err := s.Add(&pkt, [][]byte{data[:n]}, n, true); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(ops))
		for _, got := range take(t, p, c, len(ops)) {
			b[got.PSN] = '0' + byte(got.ECN)
		}
		return string(b)
	}
	// An acknowledgement is a message's short end if there is one for it.
	if got, want := round(), "2000002000000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.EnableECN()
	if got, want := round(), "2222002200220"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
