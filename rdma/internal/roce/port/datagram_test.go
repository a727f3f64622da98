package port

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
	msg "softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/ud"
	"softiser/rdma/internal/roce/udp"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

// datagramPair is a queue pair for datagrams over a Port.
type datagramPair struct {
	*verbstest.QP
	t      *testing.T
	p      *Port
	rx     *ud.Receiver
	tx     *ud.Sender
	sender *Sender
	out    msg.Outgoing
	bufs   map[uint64][]byte
	got    chan received // what has come; Mu guards rx
}

// received is a datagram with who has sent it.
type received struct {
	from, to netip.Addr
	qpn      uint32
	data     string
	imm      uint64
}

const testQKey = 0x01234567

func newDatagramPair(t *testing.T, p *Port) *datagramPair {
	t.Helper()
	num, err := p.QPNs().Take()
	if err != nil {
		t.Fatal(err)
	}
	q := &datagramPair{QP: verbstest.NewQP(t), t: t, p: p, sender: p.DatagramSender(num), bufs: map[uint64][]byte{}, got: make(chan received, 64)}
	q.Num = num
	q.Connect()
	cfg := ud.Params{QPN: num, QKey: testQKey, MTU: packet.MTU4096}
	q.rx, q.tx = ud.NewReceiver(q.QP.QP, cfg), ud.NewSender(q.QP.QP, cfg)
	for i := range 32 {
		q.bufs[uint64(i+1)] = q.Buffer(t, ud.GRHLen+4096)
	}
	p.Attach(num, netip.Addr{}, q.handler(p.Addr()), nil)
	return q
}

// handler takes packets to an address.
func (q *datagramPair) handler(to netip.Addr) Handler {
	return func(from netip.AddrPort, pkt *packet.Packet) {
		q.Mu.Lock()
		q.rx.Receive(from.Addr(), to, pkt)
		wcs := q.rx.TakeWCs(nil)
		q.Mu.Unlock()
		for _, wc := range wcs {
			if wc.Status != verbs.StatusSuccess {
				q.t.Errorf("%+v", wc)
				continue
			}
			b := q.bufs[wc.ID]
			r := received{qpn: wc.SrcQPN, data: string(b[ud.GRHLen:wc.ByteLen]), imm: wc.Imm}
			if b[0]>>4 == 6 {
				r.from, r.to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
			} else {
				r.from, r.to = netip.AddrFrom4([4]byte(b[32:36])), netip.AddrFrom4([4]byte(b[36:40]))
			}
			q.got <- r
		}
	}
}

// queue queues a datagram, pump sends what is queued.
func (q *datagramPair) queue(to netip.Addr, qpn uint32, data string) {
	q.t.Helper()
	if !q.Queue(verbs.OpSendImm, []byte(data), func(e *verbs.WQE) {
		e.Imm = uint64(q.Num)
		e.Dest = verbs.Destination{AH: &verbs.AddressHandle{Addr: to}, QPN: qpn, QKey: testQKey}
	}) {
		q.t.Fatal("no room")
	}
}

func (q *datagramPair) pump() {
	q.t.Helper()
	q.Mu.Lock()
	defer q.Mu.Unlock()
	for to, ok := q.tx.Next(&q.out); ok; to, ok = q.tx.Next(&q.out) {
		if ok, err := q.sender.AddTo(to.Addr, &q.out.Packet, q.out.Payload, q.out.N, false); !ok || err != nil {
			q.t.Fatal(ok, err)
		}
		q.out.Release()
	}
	if err := q.sender.Flush(); err != nil {
		q.t.Error(err)
	}
	q.tx.Sent()
}

// want waits for datagrams, in any order.
func (q *datagramPair) want(all ...received) {
	q.t.Helper()
	left := map[received]int{}
	for _, r := range all {
		left[r]++
	}
	for range all {
		select {
		case r := <-q.got:
			if left[r]--; left[r] < 0 {
				q.t.Errorf("%v received", r)
			}
		case <-time.After(bound):
			q.t.Fatalf("waiting for %v: %+v, %+v", left, q.p.Stats(), q.rx.Stats())
		}
	}
}

// Datagrams of many lengths to several queue pairs at two addresses, in one go, arrive
// with who has sent them; he can be answered by what the buffer begins with.
func TestDatagrams(t *testing.T) {
	for _, c := range []struct {
		a, b netip.Addr
		gso  bool
	}{{lo4, lo4b, true}, {lo4, lo4b, false}, {lo6, lo6, true}} {
		t.Run(fmt.Sprintf("%v gso=%v", c.b, c.gso), func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			a := openGSO(t, c.a, c.gso)
			b := a
			if c.a != c.b {
				b = openGSO(t, c.b, c.gso)
			}
			from, one, two := newDatagramPair(t, a), newDatagramPair(t, b), newDatagramPair(t, b)
			self := newDatagramPair(t, a)
			var atOne, atTwo, atSelf []received
			for _, n := range []int{0, 1, 4096, 100, 100, 3} {
				data := string(bytes.Repeat([]byte{byte(n)}, n))
				r := received{from: c.a, to: c.b, qpn: from.Num, data: data, imm: uint64(from.Num)}
				from.queue(c.b, one.Num, data)
				from.queue(c.b, two.Num, data)
				atOne, atTwo = append(atOne, r), append(atTwo, r)
			}
			from.queue(c.a, self.Num, "self")
			atSelf = append(atSelf, received{c.a, c.a, from.Num, "self", uint64(from.Num)})
			from.pump()
			one.want(atOne...)
			two.want(atTwo...)
			self.want(atSelf...)
			for i, wc := range from.Completions() {
				if wc.Status != verbs.StatusSuccess {
					t.Errorf("completion %d: %+v", i, wc)
				}
			}
			one.queue(atOne[0].from, atOne[0].qpn, "answer")
			one.pump()
			from.want(received{c.b, c.a, one.Num, "answer", uint64(one.Num)})
			if st := a.Stats(); st.BadICRC+st.StrangeID+st.Malformed != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func openGSO(t *testing.T, a netip.Addr, gso bool) *Port {
	t.Helper()
	p, err := Open(Config{UDP: udp.Config{Addr: a, NoGSO: !gso, RecvBuffer: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// What is sent to a group reaches every queue pair that is attached to it, at every port,
// the sender's own included; nobody else, and nobody any more after he has left.
func TestMulticast(t *testing.T) {
	wire := netip.MustParseAddr("fd00:9::1")
	for _, c := range []struct{ a, b, group, other netip.Addr }{
		{lo4, lo4b, netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("239.1.2.4")},
		{wire, wire, netip.MustParseAddr("ff0e::123"), netip.MustParseAddr("ff0e::124")},
	} {
		t.Run(c.group.String(), func(t *testing.T) {
			loopback.Namespace(t, loopback.MTU)
			if c.a.Is6() {
				wire6(t, c.a)
			}
			a := open(t, c.a, 1)
			b := a
			if c.a != c.b {
				b = open(t, c.b, 1)
			}
			from, one, two, three := newDatagramPair(t, a), newDatagramPair(t, b), newDatagramPair(t, b), newDatagramPair(t, b)
			join := func(q *datagramPair, g netip.Addr) {
				t.Helper()
				if err := q.p.AttachGroup(g, q.Num, q.handler(g), nil); err != nil {
					t.Fatal(err)
				}
			}
			join(from, c.group)
			join(one, c.group)
			join(two, c.group)
			join(three, c.other)
			if err := b.AttachGroup(c.group, two.Num, two.handler(c.group), nil); err == nil {
				t.Error("attached twice")
			}
			r := received{c.a, c.group, from.Num, "to all", uint64(from.Num)}
			from.queue(c.group, ud.GroupQPN, r.data)
			from.queue(c.b, three.Num, "alone")
			from.pump()
			from.want(r)
			one.want(r)
			two.want(r)
			three.want(received{c.a, c.b, from.Num, "alone", uint64(from.Num)})

			b.DetachGroup(c.group, one.Num)
			b.DetachGroup(c.group, one.Num)
			b.DetachGroup(c.other, two.Num)
			r.data = "to those who are left"
			from.queue(c.group, ud.GroupQPN, r.data)
			from.queue(c.b, one.Num, "alone")
			from.pump()
			two.want(r)
			one.want(received{c.a, c.b, from.Num, "alone", uint64(from.Num)})

			// The last one out leaves the network's group: who comes back finds it anew.
			a.DetachGroup(c.group, from.Num)
			b.DetachGroup(c.group, two.Num)
			if len(a.groups)+len(b.groups) > 2 {
				t.Errorf("%d and %d groups", len(a.groups), len(b.groups))
			}
			join(two, c.group)
			from.queue(c.group, ud.GroupQPN, r.data)
			from.pump()
			two.want(r)
		})
	}
}

// wire6 makes an interface with an address: over IPv6, loopback carries no groups.
func wire6(t *testing.T, a netip.Addr) {
	t.Helper()
	for _, args := range []string{
		"link add v0 type veth peer name v1", "link set v1 up", "link set v0 up", "-6 addr add " + a.String() + "/64 dev v0 nodad",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v %s", args, err, out)
		}
	}
	// The kernel takes the address into its routes later, in work of its own, without
	// duplicate address detection too: until then packets to it leave by the interface.
	await.True(t, a.String()+" is an address of this host", func() bool {
		out, err := exec.Command("ip", "-6", "route", "get", a.String()).CombinedOutput()
		return err == nil && strings.HasPrefix(string(out), "local ")
	})
}

// Groups that cannot be joined.
func TestGroupErrors(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	p := open(t, lo4, 1)
	h := func(netip.AddrPort, *packet.Packet) {}
	for _, g := range []netip.Addr{lo4, netip.MustParseAddr("ff0e::1"), {}} {
		if err := p.AttachGroup(g, 5, h, nil); err == nil {
			t.Errorf("%v joined", g)
		}
	}
	group := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{239, 0, 0, byte(i)}) }
	for i := range MaxGroups {
		if err := p.AttachGroup(group(i), 5, h, nil); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := p.AttachGroup(group(MaxGroups), 5, h, nil); err == nil {
		t.Error("more than the limit")
	}
	p.Close()
	if err := p.AttachGroup(group(0), 5, h, nil); err == nil {
		t.Error("joined a closed port")
	}
}
