package ud

import (
	"bytes"
	"net/netip"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

var (
	here  = netip.MustParseAddr("10.9.0.1")
	there = netip.MustParseAddr("10.9.0.2")
	here6 = netip.MustParseAddr("fd00:9::1")
	group = netip.MustParseAddr("ff0e::1:2")
)

const qkey = 0x01234567 // of rdma_cm

type rig struct {
	*verbstest.QP
	t   testing.TB
	rx  *Receiver
	tx  *Sender
	out message.Outgoing
}

func newRig(t testing.TB) *rig { return newRigOf(t, packet.MTU256) }

func newRigOf(t testing.TB, mtu packet.MTU) *rig {
	v := verbstest.NewQP(t)
	v.Connect()
	cfg := Params{QPN: 7, QKey: qkey, MTU: mtu, PSN: 0xffffff, Local: func(*verbs.WQE) verbs.Status { return verbs.StatusSuccess }}
	return &rig{QP: v, t: t, rx: NewReceiver(v.QP, cfg), tx: NewSender(v.QP, cfg)}
}

func datagram(payload []byte) *packet.Packet {
	return &packet.Packet{BTH: packet.BTH{Op: packet.UD | packet.SendOnly, QPN: 7}, DETH: packet.DETH{QKey: qkey, SrcQPN: 9}, Payload: payload}
}

// The network header that whoever receives sees, in both forms.
func TestGRH(t *testing.T) {
	var b [GRHLen]byte
	PutGRH(&b, there, here, datagram(make([]byte, 5)))
	if want := append(make([]byte, 20), 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0x9d, 10, 9, 0, 2, 10, 9, 0, 1); !bytes.Equal(b[:], want) {
		t.Errorf("%x,\nwant %x", b[20:], want[20:])
	}
	PutGRH(&b, here6, group, datagram(make([]byte, 5)))
	f, g := here6.As16(), group.As16()
	if want := append(append([]byte{0x60, 0, 0, 0, 0, 40, 17, 64}, f[:]...), g[:]...); !bytes.Equal(b[:], want) {
		t.Errorf("%x,\nwant %x", b, want)
	}
}

// What is dropped, why, and that the buffer is there for the next datagram.
func TestDropped(t *testing.T) {
	for _, e := range []struct {
		name string
		p    func() *packet.Packet
		want Stats
	}{
		{"other Q_Key", func() *packet.Packet { p := datagram(nil); p.DETH.QKey++; return p }, Stats{BadQKey: 1, Messages: 1}},
		{"longer than the MTU", func() *packet.Packet { return datagram(make([]byte, 257)) }, Stats{TooLong: 1, Messages: 1}},
		{"longer than the buffer", func() *packet.Packet { return datagram(make([]byte, 101)) }, Stats{TooLong: 1, Messages: 1}},
		{"of another service", func() *packet.Packet { p := datagram(nil); p.Op = packet.UC | packet.SendOnly; return p }, Stats{Refused: 1, Messages: 1}},
		{"of no kind", func() *packet.Packet { p := datagram(nil); p.Op = packet.UD | packet.WriteOnly; return p }, Stats{Refused: 1, Messages: 1}},
	} {
		g := newRig(t)
		buf := g.Buffer(t, GRHLen+100)
		g.rx.Receive(there, here, e.p())
		if wcs := g.rx.TakeWCs(nil); len(wcs) != 0 || buf[20] != 0 {
			t.Errorf("%s: %+v, %x", e.name, wcs, buf[:GRHLen])
		}
		g.rx.Receive(there, here, datagram(make([]byte, 100)))
		if wcs := g.rx.TakeWCs(nil); len(wcs) != 1 || wcs[0].ID != 1 || wcs[0].ByteLen != GRHLen+100 {
			t.Errorf("%s: then %+v", e.name, wcs)
		}
		if g.rx.Stats() != e.want {
			t.Errorf("%s: %+v, want %+v", e.name, g.rx.Stats(), e.want)
		}
	}
	g := newRig(t)
	g.rx.Receive(there, here, datagram(nil))
	if st := g.rx.Stats(); st != (Stats{NoBuffer: 1}) {
		t.Errorf("no buffer: %+v", st)
	}
	g = newRig(t)
	g.Events.Init(1, func() {})
	for range 2 {
		g.Buffer(t, GRHLen)
		g.rx.Receive(there, here, datagram(nil))
	}
	if st, n := g.rx.Stats(), len(g.rx.TakeWCs(nil)); st != (Stats{NoBuffer: 1, Messages: 1}) || n != 1 || g.RQ.Len() != 1 {
		t.Errorf("no room for the completion: %+v, %d completions, %d buffers left", st, n, g.RQ.Len())
	}
}

// Immediate data, the source, and what comes of a buffer that is kept when all is over.
func TestCompletions(t *testing.T) {
	g := newRig(t)
	g.Buffer(t, GRHLen)
	g.Buffer(t, GRHLen)
	p := datagram(nil)
	p.Op, p.Imm, p.Solicited = packet.UD|packet.SendOnlyImm, 0xfeedface, true
	g.rx.Receive(there, here, p)
	g.rx.Receive(there, here, datagram([]byte{1})) // too long: kept
	g.rx.Flush()
	g.rx.Flush()
	flags := verbs.WCWithGRH | verbs.WCWithImm | verbs.WCSolicited
	want := []verbs.WC{
		{ID: 1, QP: g.QP.QP, Opcode: verbs.WCRecv, Flags: flags, ByteLen: GRHLen, SrcQPN: 9, Imm: 0xfeedface},
		{ID: 2, QP: g.QP.QP, Opcode: verbs.WCRecv, Status: verbs.StatusFlushed},
	}
	got := g.rx.TakeWCs(nil)
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v,\nwant %+v", got, want)
	}
	if more := g.rx.TakeWCs(nil); len(more) != 0 {
		t.Errorf("told twice: %+v", more)
	}
}

// A receive buffer that is no good ends the queue pair.
func TestBadBuffers(t *testing.T) {
	for name, status := range map[string]verbs.Status{"fault": verbs.StatusLocalFault, "key": verbs.StatusLocalProtection} {
		g := newRig(t)
		g.BufferAt(t, faultmap.New(t, 4096, 0))
		if name == "key" {
			var b verbs.RecvBuf
			g.RQ.Take(&b)
			g.RQ.Lock()
			n, err := g.RQ.PostLocked(5)
			if err != nil {
				t.Fatal(err)
			}
			n.Add(make([]byte, 100), 0x1234)
			g.RQ.Unlock()
		}
		g.Buffer(t, 100)
		for range 2 {
			g.rx.Receive(there, here, datagram(nil))
		}
		if wcs := g.rx.TakeWCs(nil); len(wcs) != 1 || wcs[0].Status != status || g.rx.Err() == nil {
			t.Errorf("%s: %+v, %v", name, wcs, g.rx.Err())
		}
	}
}

// A shared receive queue's buffer that is too small is not kept from the others.
func TestSharedBuffers(t *testing.T) {
	g := newRig(t)
	g.SRQ = new(verbs.SRQ)
	g.SRQ.Init(4)
	g.SRQ.Lock()
	b, err := g.SRQ.PostLocked(9)
	if err != nil {
		t.Fatal(err)
	}
	b.Add(make([]byte, 40), mem.LocalKey)
	g.SRQ.Unlock()
	g.rx.Receive(there, here, datagram([]byte{1}))
	if wcs := g.rx.TakeWCs(nil); len(wcs) != 1 || wcs[0].ID != 9 || wcs[0].Status != verbs.StatusRemoteInvalid {
		t.Errorf("%+v", wcs)
	}
}

// What is sent: one packet for each request, whose failures do not touch each other.
func TestSend(t *testing.T) {
	g := newRig(t)
	ah := &verbs.AddressHandle{Addr: there}
	to := func(e *verbs.WQE) { e.Dest = verbs.Destination{AH: ah, QPN: 0xff000009, QKey: 5} }
	full := bytes.Repeat([]byte{7}, 256)
	g.Queue(verbs.OpSend, full, to)
	g.Queue(verbs.OpSend, make([]byte, 257), to)
	g.Queue(verbs.OpSend, nil, nil) // to nobody
	g.Queue(verbs.OpWrite, nil, to)
	g.Queue(verbs.OpLocalInv, nil, nil)
	g.Queue(verbs.OpSend, []byte("key"), func(e *verbs.WQE) { to(e); e.LKeys[0] = 0x1234 })
	g.Queue(verbs.OpSendImm, nil, func(e *verbs.WQE) { to(e); e.Dest.QKey, e.Imm = 0x80000005, 3 })
	var got []packet.Packet
	for {
		a, ok := g.tx.Next(&g.out)
		if !ok {
			break
		}
		if a != ah {
			t.Errorf("to %v", a)
		}
		p := g.out.Packet
		p.Payload = bytes.Join(g.out.Payload, nil)
		g.out.Release()
		got = append(got, p)
	}
	if wcs := g.Completions(); len(wcs) != 0 {
		t.Errorf("completed before they were sent: %+v", wcs)
	}
	g.tx.Sent()
	if len(got) != 2 || got[0].PSN != 0xffffff || got[1].PSN != 0 || got[0].QPN != 9 || got[0].PKey != 0xffff || !bytes.Equal(got[0].Payload, full) {
		t.Fatalf("%+v", got)
	}
	if got[0].DETH != (packet.DETH{QKey: 5, SrcQPN: 7}) || got[1].DETH != (packet.DETH{QKey: qkey, SrcQPN: 7}) || got[1].Op != packet.UD|packet.SendOnlyImm || got[1].Imm != 3 {
		t.Errorf("%+v", got)
	}
	want := []verbs.Status{
		verbs.StatusSuccess, verbs.StatusLocalLength, verbs.StatusUnsupported, verbs.StatusUnsupported,
		verbs.StatusSuccess, verbs.StatusLocalProtection, verbs.StatusSuccess,
	}
	wcs := g.Completions()
	for i, wc := range wcs {
		if i >= len(want) || wc.ID != uint64(i+1) || wc.Status != want[i] {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	if len(wcs) != len(want) {
		t.Errorf("%d completions", len(wcs))
	}
}

func TestNothingIsAllocated(t *testing.T) {
	g := newRig(t)
	ah, data, buf, wcs := &verbs.AddressHandle{Addr: there}, make([]byte, 200), make([]byte, 300), make([]verbs.WC, 0, 4)
	runs := uint64(0)
	if n := alloctest.PerRun(100, func() {
		runs++
		g.BufferAt(t, buf)
		g.Queue(verbs.OpSend, data, func(e *verbs.WQE) { e.Dest = verbs.Destination{AH: ah, QKey: qkey} })
		for _, ok := g.tx.Next(&g.out); ok; _, ok = g.tx.Next(&g.out) {
			p := g.out.Packet
			p.Payload = data
			g.rx.Receive(there, here, &p)
			g.out.Release()
		}
		g.tx.Sent()
		wcs = g.rx.TakeWCs(wcs[:0])
		g.Events.Lock()
		for g.Events.NextLocked() != nil {
		}
		g.Events.Unlock()
	}); n > 1 { // the pieces of BufferAt
		t.Errorf("%v allocations per datagram", n)
	}
	if st := g.rx.Stats(); st.Messages != runs {
		t.Errorf("%+v", st)
	}
}

// FuzzReceive: whatever arrives, no more buffers complete than there were, and none is
// written beyond what its completion says.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{byte(packet.SendOnly), 0, 10, byte(packet.SendOnlyImm), 1, 200, byte(packet.SendOnly), 0, 255})
	f.Add([]byte{byte(packet.WriteOnly), 0, 10, byte(packet.SendOnly), 0, 60})
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newRig(t)
		bufs := make([][]byte, 4)
		for i := range bufs {
			bufs[i] = g.Buffer(t, 30*(i+1))
		}
		payload := bytes.Repeat([]byte{0xaa}, 600)
		for ; len(b) >= 3; b = b[3:] {
			p := datagram(payload[:2*int(b[2])])
			p.Op, p.DETH.QKey = packet.UD|packet.Opcode(b[0]), qkey+uint32(b[1])
			g.rx.Receive(there, here, p)
		}
		g.rx.Flush()
		wcs := g.rx.TakeWCs(nil)
		if len(wcs) > len(bufs) {
			t.Fatalf("%d completions", len(wcs))
		}
		for _, wc := range wcs {
			for i, c := range bufs[wc.ID-1][wc.ByteLen:] {
				if c != 0 {
					t.Fatalf("byte %d behind a datagram of %d is %#x", i, wc.ByteLen, c)
				}
			}
		}
	})
}
