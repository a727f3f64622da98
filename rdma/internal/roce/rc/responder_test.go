package rc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"softiser/internal/alloctest"
	"softiser/internal/faultmap"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

var small = Params{RemoteQPN: 7, MTU: packet.MTU256, PSN: 0xfffffe, Resources: 2, MinRNR: 12}

// lines are answers in short.
func lines(rs []reply) string {
	var out []string
	for _, r := range rs {
		s := strings.TrimPrefix(r.Op.String(), "RC ")
		if r.Op.Traits()&packet.HasAETH != 0 && r.Op != packet.AtomicAcknowledge {
			s = fmt.Sprintf("%s %#02x", s, uint8(r.AETH.Syndrome))
		}
		out = append(out, fmt.Sprintf("%s @%x", s, uint32(r.PSN)))
	}
	return strings.Join(out, ", ")
}

func fill(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*31 + n) // no packet as another one
	}
	return p
}

// A message of three packets over the end of the PSNs, with immediate data.
func TestSend(t *testing.T) {
	g := newRig(t, small)
	buf, data := g.post(t, 1000), fill(600)
	for i, op := range []packet.Opcode{packet.SendFirst, packet.SendMiddle, packet.SendLastImm} {
		p := request(op, small.PSN.Add(i), data[i*256:min(600, (i+1)*256)])
		p.AckReq, p.Solicited, p.Imm = i == 2, i == 2, 0xcafe
		want := ""
		if i == 2 {
			want = "Acknowledge 0x1f @0"
		}
		if got := g.give(p); lines(got) != want {
			t.Errorf("packet %d answered by %q, want %q", i, lines(got), want)
		} else if i == 2 && (got[0].QPN != 7 || got[0].AETH.MSN != 1 || got[0].PKey != packet.DefaultPKey) {
			t.Errorf("%+v", got[0])
		}
	}
	want := verbs.WC{ID: 1, QP: g.qp, Opcode: verbs.WCRecv, ByteLen: 600, Flags: verbs.WCSolicited | verbs.WCWithImm, Imm: 0xcafe}
	if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0] != want {
		t.Errorf("%+v, want %+v", wcs, want)
	}
	if !bytes.Equal(buf[:600], data) {
		t.Error("other bytes in the buffer")
	}
}

func TestWrite(t *testing.T) {
	g := newRig(t, small)
	data := fill(600)
	const at = rigMemory/2 - 300 // over the end of the first piece
	g.give(g.to(request(packet.WriteFirst, small.PSN, data[:256]), at, 600))
	g.give(request(packet.WriteMiddle, small.PSN.Add(1), data[256:512]))
	g.post(t, 0)
	last := request(packet.WriteLastImm, small.PSN.Add(2), data[512:])
	last.Imm = 5
	if got := lines(g.give(last)); got != "Acknowledge 0x1f @0" {
		t.Error(got)
	}
	want := verbs.WC{ID: 1, QP: g.qp, Opcode: verbs.WCRecvImm, ByteLen: 600, Flags: verbs.WCWithImm, Imm: 5}
	if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0] != want {
		t.Errorf("%+v, want %+v", wcs, want)
	}
	if !bytes.Equal(g.mem[at:at+600], data) || g.mem[at-1] != 0 || g.mem[at+600] != 0 {
		t.Error("other bytes in the memory")
	}
	// Of no length: neither key nor address are looked at.
	if got := lines(g.give(request(packet.WriteOnly, 1, nil))); got != "Acknowledge 0x1f @1" {
		t.Error(got)
	}
}

func TestRead(t *testing.T) {
	g := newRig(t, small)
	copy(g.mem, fill(600))
	p := g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600)
	got := g.give(p)
	if s := lines(got); s != "RDMA READ response First 0x1f @fffffe, RDMA READ response Middle @ffffff, RDMA READ response Last 0x1f @0" {
		t.Fatal(s)
	}
	if !bytes.Equal(slices.Concat(got[0].data, got[1].data, got[2].data), g.mem[:600]) {
		t.Error("other bytes")
	}
	if s := lines(g.give(request(packet.ReadRequest, 1, nil))); s != "RDMA READ response Only 0x1f @1" {
		t.Error("READ of nothing:", s)
	}
	// What was missing of it is asked for again.
	if s := lines(g.give(g.to(request(packet.ReadRequest, 0xffffff, nil), 256, 344))); s != "RDMA READ response First 0x1f @ffffff, RDMA READ response Last 0x1f @0" {
		t.Error("the rest, again:", s)
	}
	for name, p := range map[string]packet.Packet{
		"elsewhere": g.to(request(packet.ReadRequest, 0xffffff, nil), 0, 344),
		"longer":    g.to(request(packet.ReadRequest, 0xffffff, nil), 256, 345),
		"too old":   g.to(request(packet.ReadRequest, 0xfffff0, nil), 0, 600),
	} {
		if s := lines(g.give(p)); s != "" {
			t.Errorf("%s: %s", name, s)
		}
	}
	if g.Err() != nil {
		t.Error(g.Err())
	}
}

func TestAtomics(t *testing.T) {
	g := newRig(t, small)
	op := func(op packet.Opcode, psn packet.PSN, swapOrAdd, compare uint64) uint64 {
		p := request(op, psn, nil)
		p.AtomicETH = packet.AtomicETH{VA: 8, RKey: g.key, SwapOrAdd: swapOrAdd, Compare: compare}
		got := g.give(p)
		if len(got) != 1 || got[0].Op != packet.AtomicAcknowledge || got[0].PSN != psn || got[0].AETH.Syndrome != packet.ACK {
			t.Fatalf("%v answered by %v", op, lines(got))
		}
		return got[0].Original
	}
	for i, e := range []struct {
		op                packet.Opcode
		swapOrAdd, cmp    uint64
		original, becomes uint64
	}{
		{packet.FetchAdd, 5, 99, 0, 5},
		{packet.CompareSwap, 7, 5, 5, 7},
		{packet.CompareSwap, 9, 5, 7, 7},
		{packet.FetchAdd, ^uint64(0), 0, 7, 6},
	} {
		for range 2 { // the second time as a duplicate
			if got := op(e.op, small.PSN.Add(i), e.swapOrAdd, e.cmp); got != e.original {
				t.Errorf("%d: %v returned %d, want %d", i, e.op, got, e.original)
			}
			if got := uint64(g.mem[8]); got != e.becomes {
				t.Errorf("%d: %v left %d, want %d", i, e.op, got, e.becomes)
			}
		}
	}
}

// An atomic operation is on the word that its address names, up to the last one of a region and none that
// lies across its end (§9.4.5: the address is a multiple of 8).
func TestAtomicPlaces(t *testing.T) {
	for _, tt := range []struct {
		va uint64
		ok bool
	}{{0, true}, {8, true}, {rigMemory/2 - 8, true}, {rigMemory / 2, true}, {rigMemory - 8, true}, {rigMemory - 4, false}, {rigMemory, false}, {1, false}, {4, false}, {7, false}} {
		g := newRig(t, small)
		p := request(packet.FetchAdd, small.PSN, nil)
		p.AtomicETH = packet.AtomicETH{VA: tt.va, RKey: g.key, SwapOrAdd: 5}
		got := g.give(p)
		if ok := len(got) == 1 && got[0].AETH.Syndrome == packet.ACK; ok != tt.ok {
			t.Errorf("at %#x: %s", tt.va, lines(got))
		}
		sum := 0
		for _, b := range g.mem {
			sum += int(b)
		}
		if at := tt.va &^ 7; tt.ok && (sum != 5 || g.mem[at] != 5) || !tt.ok && sum != 0 {
			t.Errorf("at %#x: the memory has %d", tt.va, sum)
		}
	}
}

// PSNs come again: a duplicate is that of the atomic operation of now, not of one under
// the same number 2^24 packets ago, which is remembered still.
func TestAtomicUnderTheSameNumber(t *testing.T) {
	g := newRig(t, small)
	p := request(packet.FetchAdd, small.PSN, nil)
	p.AtomicETH = packet.AtomicETH{RKey: g.key, SwapOrAdd: 1}
	g.give(p)
	g.expect = small.PSN
	for range 2 {
		if got := g.give(p); len(got) != 1 || got[0].Original != 1 || g.mem[0] != 2 {
			t.Errorf("%v, memory %d", got, g.mem[0])
		}
	}
}

// A WRITE with immediate data of several packets that meets no buffer at its end goes on
// from its last packet when there is one.
func TestNoBufferForTheLastPacket(t *testing.T) {
	g := newRig(t, small)
	data := fill(300)
	g.give(g.to(request(packet.WriteFirst, small.PSN, data[:256]), 0, 300))
	last := request(packet.WriteLastImm, small.PSN.Add(1), data[256:])
	last.Imm = 9
	for range 2 {
		if s := lines(g.give(last)); s != "Acknowledge 0x2c @ffffff" || g.mem[256] != 0 {
			t.Errorf("%s, memory %d", s, g.mem[256])
		}
	}
	g.post(t, 0)
	if s := lines(g.give(last)); s != "Acknowledge 0x1f @ffffff" || !bytes.Equal(g.mem[:300], data) {
		t.Error(s)
	}
	if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0].Opcode != verbs.WCRecvImm || wcs[0].ByteLen != 300 || wcs[0].Imm != 9 {
		t.Errorf("%+v", wcs)
	}
}

// One NAK for what is missing, an acknowledgement before it, and then silence, until the
// peer has gone back and it is still missing.
func TestAhead(t *testing.T) {
	g := newRig(t, small)
	for range 4 {
		g.post(t, 10)
	}
	at := func(i int) packet.Packet { return request(packet.SendOnly, small.PSN.Add(i), []byte{byte(i)}) }
	if s := lines(g.give(at(1))); s != "Acknowledge 0x60 @fffffe" {
		t.Error("nothing executed, so nothing acknowledged:", s)
	}
	for _, e := range []struct {
		i    int
		want string
	}{
		{2, ""},
		{0, "Acknowledge 0x1f @fffffe"},
		{2, "Acknowledge 0x1f @fffffe, Acknowledge 0x60 @ffffff"},
		{3, ""},
		{2, "Acknowledge 0x1f @fffffe, Acknowledge 0x60 @ffffff"},
		{3, ""},
		{1, "Acknowledge 0x1f @ffffff"},
		{2, "Acknowledge 0x1f @0"},
	} {
		p := at(e.i)
		p.AckReq = false // each is acknowledged all the same, after a loss
		if s := lines(g.give(p)); s != e.want {
			t.Errorf("packet %d: %q, want %q", e.i, s, e.want)
		}
	}
	if st := g.Stats(); st.OutOfSeq != 6 || st.Requests != 9 || st.Duplicates != 0 {
		t.Errorf("%+v", st)
	}
}

// What is forged does not get a NAK each: a gap has a few of them.
func TestNAKsAreBounded(t *testing.T) {
	g := newRig(t, small)
	g.post(t, 10)
	for gap := range 2 {
		naks := 0
		for range 20 {
			for _, a := range g.give(request(packet.SendOnly, small.PSN.Add(gap+5), nil)) {
				if a.AETH.Syndrome == packet.NAKSequence {
					naks++
				}
			}
		}
		if naks != 1+saidAgain {
			t.Errorf("gap %d: %d NAKs", gap, naks)
		}
		g.give(request(packet.SendOnly, small.PSN.Add(gap), nil))
	}
}

// Duplicates are acknowledged, as far as no READ is in between, and not executed.
func TestDuplicates(t *testing.T) {
	g := newRig(t, small)
	for range 3 {
		g.post(t, 10)
	}
	at := func(i int) packet.Packet { return request(packet.SendOnly, small.PSN.Add(i), []byte{byte(i)}) }
	g.give(at(0))
	g.give(at(1))
	g.give(g.to(request(packet.ReadRequest, 0, nil), 0, 300)) // PSNs 0 and 1
	g.give(at(4))
	for i, want := range map[int]string{
		0: "Acknowledge 0x1f @fffffe",
		1: "Acknowledge 0x1f @ffffff",
		4: "Acknowledge 0x1f @2",
	} {
		if s := lines(g.give(at(i))); s != want {
			t.Errorf("%d again: %q, want %q", i, s, want)
		}
	}
	if wcs := g.TakeWCs(nil); len(wcs) != 3 {
		t.Errorf("%d completions of 3 messages", len(wcs))
	}
	if g.Stats().Duplicates != 3 {
		t.Errorf("%+v", g.Stats())
	}
	// A READ that comes again while it is being answered: from there on.
	p := g.to(request(packet.ReadRequest, 3, nil), 0, 700)
	g.Receive(&p)
	if !g.Next(&g.out) {
		t.Fatal("no answer")
	}
	g.out.Release()
	g.Receive(&p)
	if s := lines(g.drain()); s != "RDMA READ response First 0x1f @3, RDMA READ response Middle @4, RDMA READ response Last 0x1f @5" {
		t.Error(s)
	}
}

func TestNoBuffer(t *testing.T) {
	g := newRig(t, small)
	send := request(packet.SendOnly, small.PSN, []byte("x"))
	next := request(packet.SendOnly, small.PSN.Add(1), []byte("y"))
	for range 2 {
		if s := lines(g.give(send)); s != "Acknowledge 0x2c @fffffe" {
			t.Error("without a buffer:", s)
		}
		if s := lines(g.give(next)); s != "" {
			t.Error("what came behind it was not lost:", s)
		}
	}
	g.post(t, 1)
	g.post(t, 1)
	if s := lines(g.give(send)) + lines(g.give(next)); s != "Acknowledge 0x1f @fffffeAcknowledge 0x1f @ffffff" {
		t.Error("with one:", s)
	}
	// A WRITE with immediate data places nothing without one.
	w := g.to(request(packet.WriteOnlyImm, 0, []byte("w")), 0, 1)
	if s := lines(g.give(w)); s != "Acknowledge 0x2c @0" || g.mem[0] != 0 {
		t.Errorf("%s, memory %q", s, g.mem[0])
	}
	g.post(t, 0)
	if s := lines(g.give(w)); s != "Acknowledge 0x1f @0" || g.mem[0] != 'w' {
		t.Errorf("%s, memory %q", s, g.mem[0])
	}
	if g.Stats().RNRs != 3 {
		t.Errorf("%+v", g.Stats())
	}
}

// What ends a connection: the NAK, and the receive completions.
func TestRefused(t *testing.T) {
	mtu := fill(256)
	req, reth := request, func(g *rig, op packet.Opcode, psn packet.PSN, b []byte, va uint64, n int) packet.Packet {
		return g.to(request(op, psn, b), va, n)
	}
	const psn = packet.PSN(0xfffffe)
	for name, e := range map[string]struct {
		packets func(g *rig) []packet.Packet
		nak     packet.Syndrome
		wcs     []verbs.Status
		reason  string
	}{
		"middle without a first":     {func(*rig) []packet.Packet { return []packet.Packet{req(packet.SendMiddle, psn, mtu)} }, packet.NAKInvalidRequest, nil, "no such message"},
		"WRITE last without a first": {func(*rig) []packet.Packet { return []packet.Packet{req(packet.WriteLast, psn, mtu)} }, packet.NAKInvalidRequest, nil, "no such message"},
		"SEND within a WRITE": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.WriteFirst, psn, mtu, 0, 512), req(packet.SendLast, psn+1, mtu)}
		}, packet.NAKInvalidRequest, nil, "no such message"},
		"READ within a SEND": {func(g *rig) []packet.Packet {
			return []packet.Packet{req(packet.SendFirst, psn, mtu), reth(g, packet.ReadRequest, psn+1, nil, 0, 8)}
		}, packet.NAKInvalidRequest, []verbs.Status{verbs.StatusFlushed}, "has not ended"},
		"short first": {func(*rig) []packet.Packet { return []packet.Packet{req(packet.SendFirst, psn, mtu[:255])} }, packet.NAKInvalidRequest, nil, "path MTU"},
		"long only":   {func(*rig) []packet.Packet { return []packet.Packet{req(packet.SendOnly, psn, fill(260))} }, packet.NAKInvalidRequest, nil, "path MTU"},
		"empty last": {func(*rig) []packet.Packet {
			return []packet.Packet{req(packet.SendFirst, psn, mtu), req(packet.SendLast, psn+1, nil)}
		}, packet.NAKInvalidRequest, []verbs.Status{verbs.StatusFlushed}, "nothing in the last"},
		"an answer":           {func(*rig) []packet.Packet { return []packet.Packet{req(packet.Acknowledge, psn, nil)} }, packet.NAKInvalidRequest, nil, "no request"},
		"WRITE shorter":       {func(g *rig) []packet.Packet { return []packet.Packet{reth(g, packet.WriteOnly, psn, mtu, 0, 257)} }, packet.NAKInvalidRequest, nil, "256 bytes where 257 of 257"},
		"WRITE longer":        {func(g *rig) []packet.Packet { return []packet.Packet{reth(g, packet.WriteOnly, psn, mtu, 0, 255)} }, packet.NAKInvalidRequest, nil, "256 bytes where 255"},
		"WRITE ends too soon": {func(g *rig) []packet.Packet { return []packet.Packet{reth(g, packet.WriteFirst, psn, mtu, 0, 256)} }, packet.NAKInvalidRequest, nil, "256 bytes where 256"},
		"WRITE too long": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.WriteFirst, psn, mtu, 0, packet.MaxMessage+1)}
		}, packet.NAKInvalidRequest, nil, "a message of"},
		"READ too long": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.ReadRequest, psn, nil, 0, packet.MaxMessage+1)}
		}, packet.NAKInvalidRequest, nil, "a READ of"},
		"WRITE outside": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.WriteFirst, psn, mtu, rigMemory-512, 513)}
		}, packet.NAKRemoteAccess, nil, "outside"},
		"READ outside": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.ReadRequest, psn, nil, rigMemory, 1)}
		}, packet.NAKRemoteAccess, nil, "outside"},
		"READ around": {func(g *rig) []packet.Packet {
			return []packet.Packet{reth(g, packet.ReadRequest, psn, nil, ^uint64(0), 2)}
		}, packet.NAKRemoteAccess, nil, "wraps"},
		"key of nothing": {func(g *rig) []packet.Packet {
			p := reth(g, packet.WriteOnly, psn, mtu, 0, 256)
			p.RETH.RKey ^= 1 << 20
			return []packet.Packet{p}
		}, packet.NAKRemoteAccess, nil, "no such region"},
		"another key of the region": {func(g *rig) []packet.Packet {
			p := reth(g, packet.ReadRequest, psn, nil, 0, 256)
			p.RETH.RKey ^= 1
			return []packet.Packet{p}
		}, packet.NAKRemoteAccess, nil, "no such region"},
		"three READs where two may be": {func(g *rig) (ps []packet.Packet) {
			for i := range 3 {
				ps = append(ps, reth(g, packet.ReadRequest, psn.Add(i), nil, 0, 8))
			}
			return ps
		}, packet.NAKInvalidRequest, nil, "more than 2"},
		"atomic beside the word": {func(g *rig) []packet.Packet {
			p := req(packet.FetchAdd, psn, nil)
			p.AtomicETH = packet.AtomicETH{VA: 4, RKey: g.key}
			return []packet.Packet{p}
		}, packet.NAKInvalidRequest, nil, "no multiple of 8"},
		"atomic outside": {func(g *rig) []packet.Packet {
			p := req(packet.CompareSwap, psn, nil)
			p.AtomicETH = packet.AtomicETH{VA: rigMemory, RKey: g.key}
			return []packet.Packet{p}
		}, packet.NAKRemoteAccess, nil, "outside"},
		"longer than the buffer": {func(*rig) []packet.Packet {
			return []packet.Packet{req(packet.SendFirst, psn, mtu), req(packet.SendMiddle, psn+1, mtu), req(packet.SendLast, 0, mtu)}
		}, packet.NAKInvalidRequest, []verbs.Status{verbs.StatusLocalLength}, "600 bytes of the receive buffer"},
		"key that may not be invalidated": {func(g *rig) []packet.Packet {
			p := req(packet.SendOnlyInv, psn, nil)
			p.InvRKey = g.key ^ 1
			return []packet.Packet{p}
		}, packet.ACK, []verbs.Status{verbs.StatusRemoteInvalid}, "nothing that this peer may invalidate"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, small)
			g.post(t, 600)
			ps := e.packets(g)
			for i := range ps {
				if g.Err() != nil {
					t.Fatalf("ended before packet %d: %v", i, g.Err())
				}
				ps[i].AckReq = i == len(ps)-1
				g.Receive(&ps[i])
			}
			var refused *Refused
			if !errors.As(g.Err(), &refused) || refused.Syndrome != e.nak || !strings.Contains(refused.Error(), e.reason) {
				t.Errorf("%v; want %v because of %q", g.Err(), e.nak, e.reason)
			}
			out := g.drain()
			if l := out[len(out)-1]; l.Op != packet.Acknowledge || l.AETH.Syndrome != e.nak || l.PSN != ps[len(ps)-1].PSN {
				t.Errorf("%s", lines(out))
			}
			var got []verbs.Status
			for _, wc := range g.TakeWCs(nil) {
				got = append(got, wc.Status)
			}
			if !slices.Equal(got, e.wcs) {
				t.Errorf("completions %v, want %v", got, e.wcs)
			}
			p := request(packet.SendOnly, g.expect, nil)
			if s := lines(g.give(p)); s != "" {
				t.Error("answers after the end:", s)
			}
		})
	}
}

// Packets of other services, which others at the peer's address may send, change nothing.
func TestOtherServices(t *testing.T) {
	g := newRig(t, small)
	g.post(t, 8)
	for _, service := range []packet.Opcode{packet.UC, packet.UD} {
		for _, ahead := range []int{-1, 0, 1} {
			p := request(service|packet.SendOnly, small.PSN.Add(ahead), nil)
			p.AckReq = true
			if s := lines(g.give(p)); s != "" || g.Err() != nil {
				t.Errorf("%v: answered %q, %v", p.Op, s, g.Err())
			}
		}
	}
	if g.give(request(packet.SendOnly, small.PSN, []byte("eight by"))); len(g.TakeWCs(nil)) != 1 {
		t.Error("the connection does not go on")
	}
	if n := g.Stats().Foreign; n != 6 {
		t.Errorf("%d packets were counted", n)
	}
}

// A key that is revoked in the middle ends what uses it.
func TestRevoked(t *testing.T) {
	g := newRig(t, small)
	p := g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600)
	g.Receive(&p)
	g.Next(&g.out)
	g.out.Release()
	g.region.Revoke()
	// Linux's rxe takes a NAK in the middle for the end of the answer.
	if s := lines(g.drain()); s != "" || g.Err() == nil {
		t.Error("READ:", s, g.Err())
	}
	g = newRig(t, small)
	g.Receive(&p)
	g.region.Revoke()
	if s := lines(g.drain()); s != "Acknowledge 0x62 @fffffe" || g.Err() == nil {
		t.Error("READ, before its answer:", s, g.Err())
	}
	g = newRig(t, small)
	g.give(g.to(request(packet.WriteFirst, small.PSN, fill(256)), 0, 512))
	g.region.Revoke()
	if s := lines(g.give(request(packet.WriteLast, small.PSN.Add(1), fill(256)))); s != "Acknowledge 0x62 @ffffff" || g.mem[256] != 0 {
		t.Error("WRITE:", s)
	}
}

// A READ that came twice may be answered for the second time when the peer has done with the
// memory: that ends the answer alone.
func TestRevokedBehindADuplicate(t *testing.T) {
	g := newRig(t, small)
	p := g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600)
	g.give(p)
	g.Receive(&p)
	g.Next(&g.out)
	g.out.Release()
	g.region.Revoke()
	if s := lines(g.drain()); s != "" || g.Err() != nil {
		t.Error(s, g.Err())
	}
}

// A READ that comes again for memory that has been taken back meanwhile: a peer that still waits
// is told so, one that does not must not lose the connection by it.
func TestDuplicateOfARevokedRead(t *testing.T) {
	for name, e := range map[string]struct {
		revoke  func(g *rig)
		again   func(g *rig) packet.Packet
		answers string
	}{
		"all of it": {func(g *rig) { g.region.Revoke() },
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600) }, "Acknowledge 0x62 @fffffe"},
		"the rest": {func(g *rig) { g.region.Revoke() },
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 0xffffff, nil), 256, 344) }, ""},
		"another key by now": {func(g *rig) { g.region.Open(nil, [][]byte{g.mem}, everything) },
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600) }, "Acknowledge 0x62 @fffffe"},
		"no longer readable": {func(g *rig) { g.region.OpenKey(nil, [][]byte{g.mem}, mem.RemoteWrite, uint8(g.key)) },
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600) }, "Acknowledge 0x62 @fffffe"},
		"not revoked": {func(*rig) {},
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 0, nil), 512, 88) }, "RDMA READ response Only 0x1f @0"},
		"of nothing": {func(g *rig) { g.region.Revoke() },
			func(*rig) packet.Packet { return request(packet.ReadRequest, 1, nil) }, "RDMA READ response Only 0x1f @1"},
		"not remembered": {func(g *rig) { g.region.Revoke() },
			func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 0xfffff0, nil), 0, 600) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, small)
			g.post(t, 1)
			g.give(g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600))
			g.give(request(packet.ReadRequest, 1, nil))
			e.revoke(g)
			for range 2 {
				if s := lines(g.give(e.again(g))); s != e.answers {
					t.Errorf("%q, want %q", s, e.answers)
				}
			}
			if s := lines(g.give(request(packet.SendOnly, 2, nil))); s != "Acknowledge 0x1f @2" || g.Err() != nil {
				t.Errorf("what comes behind it: %q, %v", s, g.Err())
			}
		})
	}
}

// Who goes on asking for the rest of such a READ waits for it, and learns of it by the end.
func TestRestOfARevokedRead(t *testing.T) {
	g := newRig(t, small)
	g.give(g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600))
	g.region.Revoke()
	for i := 1; i <= restAsked; i++ {
		if s := lines(g.give(g.to(request(packet.ReadRequest, 0xffffff, nil), 256, 344))); s != "" || (g.Err() != nil) != (i == restAsked) {
			t.Errorf("asked %d times: %q, %v", i, s, g.Err())
		}
	}
}

func TestSendInvalidates(t *testing.T) {
	g := newRig(t, small)
	g.post(t, 10)
	p := request(packet.SendOnlyInv, small.PSN, []byte("z"))
	p.InvRKey = g.key
	g.give(p)
	if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0].Flags&verbs.WCWithInv == 0 || wcs[0].InvSTag != g.key || g.region.State().Valid {
		t.Errorf("%+v, region %+v", wcs, g.region.State())
	}
}

// Memory that cannot be touched ends the connection, not the process.
func TestUntouchable(t *testing.T) {
	const page = 4096
	key := func(g *rig, s *mem.Stream) (p []byte, key uint32) {
		p = faultmap.New(t, 4*page, page)
		_, r := g.open(t, p, everything)
		key, _ = r.Open(s, [][]byte{p}, everything)
		return p, key
	}
	for name, p := range map[string]packet.Packet{
		"WRITE":  {BTH: packet.BTH{Op: packet.WriteOnly, PSN: small.PSN}, RETH: packet.RETH{VA: 2 * page, Len: 1}, Payload: []byte{1}},
		"atomic": {BTH: packet.BTH{Op: packet.FetchAdd, PSN: small.PSN}, AtomicETH: packet.AtomicETH{VA: 2 * page}},
	} {
		g := newRig(t, small)
		_, p.RETH.RKey = key(g, nil)
		p.AtomicETH.RKey = p.RETH.RKey
		if s := lines(g.give(p)); s != "Acknowledge 0x63 @fffffe" {
			t.Errorf("%s: %s", name, s)
		}
	}
	// Who owns a window asks it: the connection goes on.
	g := newRig(t, small)
	_, k := key(g, &g.qp.Mem)
	w := packet.Packet{BTH: packet.BTH{Op: packet.WriteOnly, PSN: small.PSN, AckReq: true}, RETH: packet.RETH{VA: 2 * page, Len: 1, RKey: k}, Payload: []byte{1}}
	if s := lines(g.give(w)); s != "Acknowledge 0x1f @fffffe" || g.qp.Dev.Table.Lookup(k).Faults() != 1 || g.Stats().Faults != 1 {
		t.Errorf("WRITE to a window: %s, %d faults", s, g.qp.Dev.Table.Lookup(k).Faults())
	}

	g = newRig(t, small)
	b, _ := key(g, nil)
	g.qp.RQ.Lock()
	buf, _ := g.qp.RQ.PostLocked(1)
	buf.Add(b[2*page:], mem.LocalKey)
	g.qp.RQ.Unlock()
	if s := lines(g.give(request(packet.SendOnly, small.PSN, []byte{1}))); s != "Acknowledge 0x63 @fffffe" {
		t.Error("SEND:", s)
	}
	if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0].Status != verbs.StatusLocalFault {
		t.Errorf("%+v", wcs)
	}
}

// A peer that never takes its answers has a bounded number of them kept for it.
func TestAnswersAreBounded(t *testing.T) {
	g := newRig(t, small)
	read := g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600)
	g.Receive(&read)
	for i := range 1000 {
		again := g.to(request(packet.ReadRequest, small.PSN.Add(i%3), nil), uint64(i%3*256), 600-i%3*256)
		g.Receive(&again)
		ahead := request(packet.SendOnly, small.PSN.Add(9), nil)
		g.Receive(&ahead)
	}
	if g.answers.n > len(g.answers.ring) || len(g.answers.ring) > 8 {
		t.Errorf("%d answers of %d", g.answers.n, len(g.answers.ring))
	}
	if g.Err() != nil || len(g.drain()) == 0 {
		t.Error(g.Err())
	}
}

func TestNothingIsAllocated(t *testing.T) {
	g := newRig(t, Params{MTU: packet.MTU4096, Resources: 4})
	data := fill(4096)
	write, read := g.to(request(packet.WriteOnly, 0, data), 0, 4096), g.to(request(packet.ReadRequest, 0, nil), rigMemory/2-100, 4096)
	if n := alloctest.PerRun(100, func() {
		write.PSN = g.expect
		g.Receive(&write)
		read.PSN = g.expect
		g.Receive(&read)
		for g.Next(&g.out) {
			g.out.Release()
		}
	}); n != 0 || g.Err() != nil {
		t.Errorf("%v allocations for a WRITE and a READ, %v", n, g.Err())
	}
}

// A plain memory region is not the peer's to invalidate, nor is that of another domain
// or connection.
func TestMayNotInvalidate(t *testing.T) {
	for name, r := range map[string]func(g *rig) *mem.Region{
		"plain region": func(g *rig) *mem.Region { r := &mem.Region{}; r.Init(g.qp.PD); return r },
		"other domain": func(*rig) *mem.Region {
			r := &mem.Region{Remote: true}
			r.Init(&mem.Domain{Revoked: func(*mem.Region) {}})
			return r
		},
	} {
		g := newRig(t, small)
		g.post(t, 1)
		reg := r(g)
		if err := g.qp.Dev.Table.Insert(reg); err != nil {
			t.Fatal(err)
		}
		p := request(packet.SendOnlyInv, small.PSN, nil)
		p.InvRKey, _ = reg.Open(nil, [][]byte{{1}}, everything)
		g.give(p)
		if wcs := g.TakeWCs(nil); len(wcs) != 1 || wcs[0].Status != verbs.StatusRemoteInvalid || !reg.State().Valid || g.Err() == nil {
			t.Errorf("%s: %+v, region %+v, %v", name, wcs, reg.State(), g.Err())
		}
	}
}

// Nothing that has been answered holds its memory: whoever revokes a key must not wait.
func TestNothingStaysHeld(t *testing.T) {
	g := newRig(t, small)
	atom := request(packet.FetchAdd, small.PSN, nil)
	atom.AtomicETH.RKey = g.key
	g.give(atom)
	g.give(g.to(request(packet.WriteOnly, 0xffffff, []byte{1}), 0, 1))
	g.give(g.to(request(packet.ReadRequest, 0, nil), 0, 300))
	if !g.region.TryHold() {
		t.Fatal("locked")
	}
	g.region.Release()
	g.region.Revoke() // would wait for whoever held it
	g.Receive(&packet.Packet{BTH: packet.BTH{Op: packet.WriteOnly, PSN: 2}, RETH: packet.RETH{RKey: g.key, Len: 1}, Payload: []byte{1}})
	if g.Err() == nil {
		t.Error("a revoked key is good")
	}
}

// What a region's owner has taken back is not written to; what cannot be touched is
// counted for him.
func TestDiscardedAndFaulted(t *testing.T) {
	g := newRig(t, small)
	g.region.Discard()
	if s := lines(g.give(g.to(request(packet.WriteOnly, small.PSN, []byte{7}), 0, 1))); s != "Acknowledge 0x1f @fffffe" || g.mem[0] != 0 {
		t.Error(s, g.mem[0])
	}
	key, reg := g.open(t, faultmap.New(t, 8192, 0), everything)
	p := request(packet.WriteOnly, 0xffffff, []byte{7})
	p.RETH = packet.RETH{RKey: key, Len: 1}
	g.give(p)
	if reg.Faults() != 1 {
		t.Errorf("%d faults counted", reg.Faults())
	}
}

// The word of an atomic operation must lie aligned in memory, whatever its address is
// called.
func TestAtomicOnUnalignedMemory(t *testing.T) {
	g := newRig(t, small)
	for _, p := range [][]byte{g.mem[4:1028], g.mem[:12]} { // beside a word; cut by the pieces of open
		g := newRig(t, small)
		key, _ := g.open(t, p, everything)
		a := request(packet.FetchAdd, small.PSN, nil)
		a.AtomicETH = packet.AtomicETH{RKey: key, SwapOrAdd: 1}
		if len(p) == 12 {
			r := &mem.Region{}
			r.Init(g.qp.PD)
			if err := g.qp.Dev.Table.Insert(r); err != nil {
				t.Fatal(err)
			}
			a.AtomicETH.RKey, _ = r.Open(nil, [][]byte{p[:4], p[4:]}, everything)
		}
		if s := lines(g.give(a)); s != "Acknowledge 0x63 @fffffe" {
			t.Errorf("%d bytes: %s", len(p), s)
		}
	}
}

// What waits for an atomic or READ is not doubled when that comes again; the answers to what
// follows it stay.
func TestDuplicateBeforeItsAnswer(t *testing.T) {
	g := newRig(t, small)
	g.post(t, 1)
	atom := request(packet.FetchAdd, small.PSN, nil)
	atom.AtomicETH = packet.AtomicETH{RKey: g.key, SwapOrAdd: 1}
	send := request(packet.SendOnly, 0xffffff, nil)
	for range 3 {
		g.Receive(&atom)
		g.Receive(&send)
	}
	if s := lines(g.drain()); s != "ATOMIC Acknowledge @fffffe, Acknowledge 0x1f @ffffff" {
		t.Error(s)
	}
	// A READ under an atomic's number is neither, nor the other way round.
	for _, p := range []packet.Packet{g.to(request(packet.ReadRequest, small.PSN, nil), 0, 0), {BTH: packet.BTH{Op: packet.FetchAdd, PSN: 0xffffff}}} {
		if s := lines(g.give(p)); s != "" {
			t.Errorf("%v: %s", p.Op, s)
		}
	}
}

// A peer that asks once more for one answer, or a network that doubles the packet, is still owed
// the others that wait.
func TestDuplicateLeavesOtherAnswers(t *testing.T) {
	for name, e := range map[string]struct {
		sent  int // packets of answers before it comes again
		again func(g *rig) packet.Packet
		want  string
	}{
		"before its answer": {0, func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600) },
			"RDMA READ response First 0x1f @fffffe, RDMA READ response Middle @ffffff, RDMA READ response Last 0x1f @0, " +
				"RDMA READ response First 0x1f @1, RDMA READ response Last 0x1f @2, Acknowledge 0x1f @3"},
		"in the middle of it": {2, func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 0xffffff, nil), 256, 344) },
			"RDMA READ response First 0x1f @ffffff, RDMA READ response Last 0x1f @0, " +
				"RDMA READ response First 0x1f @1, RDMA READ response Last 0x1f @2, Acknowledge 0x1f @3"},
		"in the middle of the next one": {4, func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 0, nil), 512, 88) },
			"RDMA READ response Only 0x1f @0, RDMA READ response Last 0x1f @2, Acknowledge 0x1f @3"},
		"of the next one": {0, func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, 1, nil), 0, 300) },
			"RDMA READ response First 0x1f @fffffe, RDMA READ response Middle @ffffff, RDMA READ response Last 0x1f @0, " +
				"RDMA READ response First 0x1f @1, RDMA READ response Last 0x1f @2, Acknowledge 0x1f @3"},
		"a part of it": {1, func(g *rig) packet.Packet { return g.to(request(packet.ReadRequest, small.PSN, nil), 0, 300) },
			"RDMA READ response First 0x1f @fffffe, RDMA READ response Last 0x1f @ffffff, RDMA READ response Middle @ffffff, RDMA READ response Last 0x1f @0, " +
				"RDMA READ response First 0x1f @1, RDMA READ response Last 0x1f @2, Acknowledge 0x1f @3"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, small)
			g.post(t, 1)
			send := request(packet.SendOnly, 3, nil)
			for _, p := range []packet.Packet{g.to(request(packet.ReadRequest, small.PSN, nil), 0, 600), g.to(request(packet.ReadRequest, 1, nil), 0, 300), send} {
				g.Receive(&p)
			}
			for range e.sent {
				if !g.Next(&g.out) {
					t.Fatal("no answer")
				}
				g.out.Release()
			}
			again := e.again(g)
			g.Receive(&again)
			if s := lines(g.drain()); s != e.want || g.Err() != nil {
				t.Errorf("%s, %v; want %s", s, g.Err(), e.want)
			}
		})
	}
}

// A READ or atomic that has come again because its answer was late does not count as
// outstanding: the answer may have come since, and the peer asks for more.
func TestDuplicatesAreNotOutstanding(t *testing.T) {
	one := small
	one.Resources = 1
	g := newRig(t, one)
	atom := func(i int) packet.Packet {
		p := request(packet.FetchAdd, one.PSN.Add(i), nil)
		p.AtomicETH = packet.AtomicETH{RKey: g.key, SwapOrAdd: 1}
		return p
	}
	read := func(i int) packet.Packet { return g.to(request(packet.ReadRequest, one.PSN.Add(i), nil), 0, 1) }
	g.give(read(0))
	for _, p := range []packet.Packet{read(0), atom(1)} {
		g.Receive(&p)
	}
	if s := lines(g.drain()); s != "RDMA READ response Only 0x1f @fffffe, ATOMIC Acknowledge @ffffff" {
		t.Errorf("%q, %v", s, g.Err())
	}
	for _, p := range []packet.Packet{atom(1), read(2)} {
		g.Receive(&p)
	}
	if s := lines(g.drain()); s != "ATOMIC Acknowledge @ffffff, RDMA READ response Only 0x1f @0" {
		t.Errorf("%q, %v", s, g.Err())
	}
}

// Completions are handed out once.
func TestTakeWCsTakes(t *testing.T) {
	g := newRig(t, small)
	g.post(t, 1)
	g.give(request(packet.SendOnly, small.PSN, nil))
	if a, b := len(g.TakeWCs(nil)), len(g.TakeWCs(nil)); a != 1 || b != 0 {
		t.Errorf("%d, then %d", a, b)
	}
}
