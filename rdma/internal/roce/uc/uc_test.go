package uc

import (
	"bytes"
	"fmt"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

const firstPSN = packet.PSN(0xfffffe)

// rig is both machines of one queue pair, with memory for its peer.
type rig struct {
	*verbstest.QP
	t   testing.TB
	rx  *Receiver
	tx  *Sender
	mem []byte
	key uint32
	out message.Outgoing
}

func newRig(t testing.TB) *rig { return newRigOf(t, packet.MTU256, 1<<16) }

func newRigOf(t testing.TB, mtu packet.MTU, memory int) *rig {
	v := verbstest.NewQP(t)
	g := &rig{QP: v, t: t, mem: make([]byte, memory)}
	g.rx = NewReceiver(v.QP, mtu, firstPSN)
	g.tx = NewSender(v.QP, SenderParams{RemoteQPN: 7, MTU: mtu, PSN: firstPSN, Local: func(*verbs.WQE) verbs.Status { return verbs.StatusSuccess }})
	g.key, _ = g.Open(t, g.mem, everything)
	v.Connect()
	return g
}

func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*5 + i>>8*31 + 3) // no packet as another one
	}
	return b
}

// give has a packet received, whose PSN is n after the first one.
func (g *rig) give(op packet.Opcode, n int, payload []byte) {
	g.rx.Receive(&packet.Packet{
		BTH: packet.BTH{Op: packet.UC | op, PSN: firstPSN.Add(n)}, Payload: payload,
		RETH: packet.RETH{RKey: g.key, Len: uint32(len(payload))},
	})
}

// What the machine makes of packets that are lost, repeated or out of their places: the
// lengths of the messages that complete, in the buffers 1, 2 ….
func TestGaps(t *testing.T) {
	const first, middle, last, only = packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendOnly
	type step struct {
		op  packet.Opcode
		psn int
	}
	for _, e := range []struct {
		name  string
		steps []step
		want  string
		stats Stats
	}{
		{"in order", []step{{first, 0}, {middle, 1}, {last, 2}, {only, 3}}, "1:513 2:1", Stats{Messages: 2}},
		{"first lost", []step{{middle, 1}, {last, 2}, {only, 3}}, "1:1", Stats{Messages: 1, OutOfSeq: 1, Dropped: 2}},
		{"middle lost", []step{{first, 0}, {last, 2}, {only, 3}}, "1:1", Stats{Messages: 1, OutOfSeq: 1, Dropped: 1}},
		{"last lost", []step{{first, 0}, {middle, 1}, {only, 3}}, "1:1", Stats{Messages: 1, OutOfSeq: 1}},
		{"last and first lost", []step{{first, 0}, {middle, 1}, {last, 4}, {only, 5}}, "1:1", Stats{Messages: 1, OutOfSeq: 1, Dropped: 1}},
		{"a whole message lost", []step{{only, 0}, {only, 2}}, "1:1 2:1", Stats{Messages: 2, OutOfSeq: 1}},
		{"middle twice", []step{{first, 0}, {middle, 1}, {middle, 1}, {last, 2}, {only, 3}}, "1:1", Stats{Messages: 1, OutOfSeq: 1, Dropped: 2}},
		{"no end where the next begins", []step{{first, 0}, {first, 1}, {last, 2}}, "1:257", Stats{Messages: 1}},
		{"last without first", []step{{last, 0}, {only, 1}}, "1:1", Stats{Messages: 1, Refused: 1}},
		{"of another kind", []step{{first, 0}, {packet.WriteMiddle, 1}, {last, 2}, {only, 3}}, "1:1", Stats{Messages: 1, Refused: 1, Dropped: 1}},
	} {
		g := newRig(t)
		g.Buffer(t, 1000)
		g.Buffer(t, 1000)
		for _, s := range e.steps {
			n := 256
			if s.op == last || s.op == only {
				n = 1
			}
			g.give(s.op, s.psn, fill(n))
		}
		got := ""
		for _, wc := range g.rx.TakeWCs(nil) {
			if got != "" {
				got += " "
			}
			if got += fmt.Sprintf("%d:%d", wc.ID, wc.ByteLen); wc.Status != verbs.StatusSuccess {
				got += " " + wc.Status.String()
			}
		}
		if st := g.rx.Stats(); got != e.want || st != e.stats {
			t.Errorf("%s: %q, want %q; %+v, want %+v", e.name, got, e.want, st, e.stats)
		}
	}
}

// What is refused changes nothing, nobody hears of it, and the connection goes on; a
// receive buffer that is no good ends it.
func TestRefused(t *testing.T) {
	for _, e := range []struct {
		name  string
		do    func(g *rig)
		stats Stats
		over  bool
	}{
		{"no buffer", func(g *rig) { g.give(packet.SendOnly, 0, fill(1)); g.Buffer(g.t, 100) }, Stats{NoBuffer: 1, Messages: 1}, false},
		{"no buffer for immediate data", func(g *rig) { g.give(packet.WriteOnlyImm, 0, fill(8)); g.Buffer(g.t, 100) }, Stats{NoBuffer: 1, Messages: 1}, false},
		{"too long", func(g *rig) { g.Buffer(g.t, 2); g.give(packet.SendOnly, 0, fill(3)) }, Stats{Refused: 1, Messages: 1}, false},
		{"short of the MTU", func(g *rig) { g.Buffer(g.t, 2); g.give(packet.SendFirst, 0, fill(255)) }, Stats{Refused: 1, Messages: 1}, false},
		{"over the MTU", func(g *rig) { g.Buffer(g.t, 2); g.give(packet.SendOnly, 0, fill(257)) }, Stats{Refused: 1, Messages: 1}, false},
		{"unknown key", func(g *rig) {
			g.Buffer(g.t, 2)
			g.rx.Receive(&packet.Packet{BTH: packet.BTH{Op: packet.UC | packet.WriteOnly, PSN: firstPSN}, RETH: packet.RETH{RKey: g.key ^ 1, Len: 1}, Payload: fill(1)})
		}, Stats{Refused: 1, Messages: 1}, false},
		{"of another service", func(g *rig) {
			g.Buffer(g.t, 2)
			g.rx.Receive(&packet.Packet{BTH: packet.BTH{Op: packet.SendOnly, PSN: firstPSN}})
			g.rx.Receive(&packet.Packet{BTH: packet.BTH{Op: packet.UC | packet.ReadRequest, PSN: firstPSN}})
		}, Stats{Refused: 2, Messages: 1, OutOfSeq: 1}, false},
		{"buffer that faults", func(g *rig) { g.BufferAt(g.t, faultmap.New(t, 4096, 0)); g.give(packet.SendOnly, 0, fill(1)) }, Stats{}, true},
	} {
		g := newRig(t)
		e.do(g)
		before := bytes.Clone(g.mem)
		g.give(packet.SendOnly, 1, fill(1))
		wcs := g.rx.TakeWCs(nil)
		if st := g.rx.Stats(); st != e.stats || (g.rx.Err() != nil) != e.over {
			t.Errorf("%s: %+v, want %+v; %v", e.name, st, e.stats, g.rx.Err())
		}
		if len(wcs) != 1 || (wcs[0].Status == verbs.StatusSuccess) == e.over {
			t.Errorf("%s: %+v", e.name, wcs)
		}
		if !bytes.Equal(before, g.mem) || g.mem[0] != 0 {
			t.Errorf("%s: memory has changed", e.name)
		}
	}
}

// A shared receive queue's buffer is not kept from the other queue pairs.
func TestSharedBuffers(t *testing.T) {
	g := newRig(t)
	g.SRQ = new(verbs.SRQ)
	g.SRQ.Init(4)
	g.SRQ.Lock()
	b, err := g.SRQ.PostLocked(9)
	if err != nil {
		t.Fatal(err)
	}
	b.Add(make([]byte, 1000), mem.LocalKey)
	g.SRQ.Unlock()
	g.give(packet.SendFirst, 0, fill(256))
	g.give(packet.SendLast, 2, fill(1))
	if wcs := g.rx.TakeWCs(nil); len(wcs) != 1 || wcs[0].ID != 9 || wcs[0].Status != verbs.StatusRemoteInvalid {
		t.Errorf("%+v", wcs)
	}
	g.rx.Flush()
	if wcs := g.rx.TakeWCs(nil); len(wcs) != 0 {
		t.Errorf("%+v", wcs)
	}
}

// A request that cannot be sent ends the connection: nothing behind it may arrive as
// if it had been there.
func TestSenderErrors(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpSendInv, verbs.OpFetchAdd, verbs.OpSend} {
		g := newRig(t)
		g.Queue(verbs.OpLocalInv, nil, nil)
		g.Queue(op, fill(8), func(e *verbs.WQE) { e.LKeys[0] = 0x1234 })
		g.Queue(verbs.OpSend, nil, nil)
		if g.tx.Next(&g.out) || g.tx.Err() == nil || g.tx.Next(&g.out) {
			t.Errorf("%v is sent, %v", op, g.tx.Err())
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	g := newRig(t)
	data := fill(1000)
	wcs := make([]verbs.WC, 0, 8)
	runs := uint64(0)
	if n := alloctest.PerRun(100, func() {
		runs++
		g.Queue(verbs.OpWrite, data, func(e *verbs.WQE) { e.Remote.STag = g.key })
		for g.tx.Next(&g.out) {
			p := g.out.Packet
			p.Payload = data[:g.out.N]
			g.rx.Receive(&p)
			g.out.Release()
		}
		g.tx.Sent()
		wcs = g.rx.TakeWCs(wcs[:0])
		g.Events.Lock()
		for g.Events.NextLocked() != nil {
		}
		g.Events.Unlock()
	}); n > 0 {
		t.Errorf("%v allocations per message", n)
	}
	if st := g.rx.Stats(); st.Messages != runs {
		t.Errorf("%+v", st)
	}
}

// FuzzReceive: whatever a peer sends, memory that is not open to it stays as it was.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{byte(packet.SendFirst), 0, 255, 1, byte(packet.SendLast), 1, 4, 0, byte(packet.WriteOnlyImm), 2, 8, 0})
	f.Add([]byte{byte(packet.WriteFirst), 0, 255, 3, byte(packet.WriteMiddle), 1, 255, 1, byte(packet.WriteLast), 2, 1, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newRig(t)
		private := make([]byte, 64)
		closed, _ := g.Open(t, private, mem.LocalWrite|mem.ZeroBased)
		for range 4 {
			g.Buffer(t, 400)
		}
		payload := fill(packet.MaxPayload)
		for ; len(b) >= 4; b = b[4:] {
			op, n, more := packet.Opcode(b[0]), int(b[2]), b[3]
			p := packet.Packet{BTH: packet.BTH{Op: packet.UC | op, PSN: g.rx.expect.Add(int(int8(b[1])) / 64)}}
			p.Payload = payload[:n+int(more&1)]
			p.RETH = packet.RETH{VA: uint64(more) << 9, RKey: g.key, Len: uint32(n) * uint32(more&7)}
			if more&0x80 != 0 {
				p.RETH.RKey = closed
			}
			g.rx.Receive(&p)
		}
		g.rx.Flush()
		if wcs := g.rx.TakeWCs(nil); len(wcs) > 4 {
			t.Errorf("%d completions of 4 buffers", len(wcs))
		}
		for i, c := range private {
			if c != 0 {
				t.Fatalf("byte %d of memory that is not open is %#x", i, c)
			}
		}
	})
}
