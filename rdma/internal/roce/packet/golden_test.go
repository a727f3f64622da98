package packet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/roce/packet"
)

// Every packet that Linux's rdma_rxe sent is decoded, comes out as it was, and has the
// ICRC that Flow computes; what Check solves for is the identification of its IP header.
func TestCaptures(t *testing.T) {
	seen := map[packet.Opcode]int{}
	total := 0
	for _, name := range pcaptest.RoCENames(t, "") {
		ids := map[netip.Addr]*packet.IDs{}
		for i, d := range pcaptest.RoCE(t, name) {
			b := d.Payload()
			p, err := packet.Parse(b)
			if err != nil {
				t.Fatalf("%s: packet %d: %v", name, i, err)
			}
			seen[p.Op]++
			total++
			out := packet.Append(nil, &p, len(p.Payload))
			flow, id := packet.NewFlow(d.Src(), d.Dst()), identification(d.IP)
			sum := flow.Begin(out, len(b), id).Add(p.Payload)
			out = sum.AppendTrailer(append(out, p.Payload...), len(p.Payload))
			if !bytes.Equal(out, b) {
				t.Errorf("%s: packet %d, %v, encoded as\n%x, was\n%x", name, i, p.Op, out, b)
			}
			if p.Op.Len(len(p.Payload)) != len(b) {
				t.Errorf("%s: packet %d: Len says %d of %d bytes", name, i, p.Op.Len(len(p.Payload)), len(b))
			}
			got, ok := flow.Check(b, 0)
			if !ok || got != id {
				t.Errorf("%s: packet %d: identification %#04x, %v; it was %#04x", name, i, got, ok, id)
			}
			if ids[d.Src().Addr()] == nil {
				ids[d.Src().Addr()] = &packet.IDs{}
			}
			if !ids[d.Src().Addr()].Accept(got, d.At) {
				t.Errorf("%s: packet %d of %v: identification %#04x is not believed", name, i, d.Src().Addr(), got)
			}
		}
	}
	if total < 3000 {
		t.Errorf("%d packets only", total)
	}
	for _, op := range []packet.Opcode{
		packet.SendFirst, packet.SendMiddle, packet.SendLast, packet.SendLastImm, packet.SendOnly, packet.SendOnlyImm,
		packet.WriteFirst, packet.WriteMiddle, packet.WriteLast, packet.WriteLastImm, packet.WriteOnly, packet.WriteOnlyImm,
		packet.ReadRequest, packet.ReadResponseFirst, packet.ReadResponseMid, packet.ReadResponseLast, packet.ReadResponseOnly,
		packet.Acknowledge, packet.AtomicAcknowledge, packet.CompareSwap, packet.FetchAdd, packet.SendOnlyInv,
		packet.UC | packet.SendFirst, packet.UC | packet.SendMiddle, packet.UC | packet.SendLast, packet.UD | packet.SendOnly, packet.UD | packet.SendOnlyImm,
	} {
		if seen[op] == 0 {
			t.Errorf("no %v in the captures", op)
		}
	}
	t.Log(total, seen)
}

func identification(ip []byte) uint16 {
	if ip[0]>>4 == 4 {
		return binary.BigEndian.Uint16(ip[4:])
	}
	return 0
}

// Packets whose ICRC was computed by another program, byte by byte.
func TestWorkedExamples(t *testing.T) {
	for _, e := range []struct{ name, from, to, packet, icrc string }{
		{"SEND Only of one byte", "10.9.0.2:54771", "10.9.0.1:4791", "0430ffff0000001180d3231c 41", "c52ebe7b"},
		{"its ACK", "10.9.0.1:54771", "10.9.0.2:4791", "1100ffff0000001100d3231c 1f000002", "23be0db1"},
		{"ACK over IPv6", "[fd00:9::1]:54187", "[fd00:9::2]:4791", "1100ffff0000001100400f79 1f000001", "ee9a5bec"},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(e.packet, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		id := map[string]uint16{"SEND Only of one byte": 0xa953, "its ACK": 0x5db8}[e.name]
		n := len(b) + packet.Pad(len(b)) + packet.ICRCLen
		f := packet.NewFlow(netip.MustParseAddrPort(e.from), netip.MustParseAddrPort(e.to))
		out := f.Begin(b, n, id).AppendTrailer(nil, len(b))
		if got := hex.EncodeToString(out[packet.Pad(len(b)):]); got != e.icrc {
			t.Errorf("%s: ICRC %s, want %s", e.name, got, e.icrc)
		}
	}
}

// The fields of three packets as another decoder shows them.
func TestFields(t *testing.T) {
	for _, e := range []struct {
		hex  string
		want packet.Packet
	}{
		{"0aa0ffff40abcdef80fffffe 0102030405060708 11223344 00000002 5566 0000 00000000", packet.Packet{
			BTH:     packet.BTH{Op: packet.WriteOnly, Solicited: true, PKey: 0xffff, BECN: true, QPN: 0xabcdef, AckReq: true, PSN: 0xfffffe},
			RETH:    packet.RETH{VA: 0x0102030405060708, RKey: 0x11223344, Len: 2},
			Payload: []byte{0x55, 0x66},
		}},
		{"13407fff80000001 00000000 0000000000000ff8 00000005 1111111111111111 2222222222222222 00000000", packet.Packet{
			BTH:       packet.BTH{Op: packet.CompareSwap, Migrated: true, PKey: 0x7fff, FECN: true, QPN: 1},
			AtomicETH: packet.AtomicETH{VA: 0xff8, RKey: 5, SwapOrAdd: 0x1111111111111111, Compare: 0x2222222222222222},
			Payload:   []byte{},
		}},
		{"6500ffff00000001 80000007 80010000 00000012 0a0b0c0d 00000000", packet.Packet{
			BTH:     packet.BTH{Op: packet.UD | packet.SendOnlyImm, PKey: 0xffff, QPN: 1, AckReq: true, PSN: 7},
			DETH:    packet.DETH{QKey: 0x80010000, SrcQPN: 0x12},
			Imm:     0x0a0b0c0d,
			Payload: []byte{},
		}},
		{"1200ffff00000011 00000008 1f000003 0000000000000009 00000000", packet.Packet{
			BTH:      packet.BTH{Op: packet.AtomicAcknowledge, PKey: 0xffff, QPN: 0x11, PSN: 8},
			AETH:     packet.AETH{Syndrome: packet.ACK, MSN: 3},
			Original: 9,
			Payload:  []byte{},
		}},
		{"1720ffff00000011 00000009 080001cb 4142 0000 00000000", packet.Packet{
			BTH:     packet.BTH{Op: packet.SendOnlyInv, PKey: 0xffff, QPN: 0x11, PSN: 9},
			InvRKey: 0x080001cb,
			Payload: []byte("AB"),
		}},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(e.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		p, err := packet.Parse(b)
		if err != nil {
			t.Errorf("%s: %v", e.hex, err)
			continue
		}
		payload := p.Payload
		if !bytes.Equal(payload, e.want.Payload) {
			t.Errorf("%v: payload %x, want %x", p.Op, payload, e.want.Payload)
		}
		p.Payload, e.want.Payload = nil, nil
		if g, w := p, e.want; g.BTH != w.BTH || g.DETH != w.DETH || g.RETH != w.RETH || g.AtomicETH != w.AtomicETH ||
			g.AETH != w.AETH || g.Original != w.Original || g.Imm != w.Imm || g.InvRKey != w.InvRKey {
			t.Errorf("%+v,\nwant %+v", g, w)
		}
		if got := packet.Append(nil, &p, len(payload)); !bytes.Equal(got, b[:len(got)]) {
			t.Errorf("%v encoded as\n%x, was\n%x", p.Op, got, b)
		}
	}
}
