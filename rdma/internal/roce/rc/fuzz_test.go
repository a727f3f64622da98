package rc

import (
	"testing"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// FuzzReceive: whatever packets a peer sends, near the PSNs that are expected of it, the
// machines touch nothing that is not open to it, and owe it no more answers than there
// is room for.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{byte(packet.SendOnly), 0, 4, 0, byte(packet.ReadRequest), 1, 200, 1, byte(packet.ReadResponseOnly), 0, 16, 0x1f})
	f.Add([]byte{byte(packet.WriteFirst), 0, 255, 2, byte(packet.SendMiddle), 1, 255, 0, byte(packet.Acknowledge), 0, 0, 0x60})
	f.Add([]byte{byte(packet.FetchAdd), 0, 0, 8, byte(packet.Acknowledge), 3, 0, 0x2c, byte(packet.FetchAdd), 0, 0, 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		a := newAsker(t, nil)
		private := make([]byte, 64)
		closed, _ := a.open(t, private, mem.LocalWrite|mem.ZeroBased) // not for the peer
		for range 3 {
			a.post(t, 300)
		}
		a.queue(t, verbs.OpRead, 0, 600)
		a.queue(t, verbs.OpCmpSwap, 0, 8)
		a.queue(t, verbs.OpSend, 0, 600)
		payload := fill(packet.MaxPayload)
		for ; len(b) >= 4; b = b[4:] {
			op, place, n, more := packet.Opcode(b[0]), int(int8(b[1])), int(b[2]), b[3]
			t := op.Traits()
			p := packet.Packet{BTH: packet.BTH{Op: op, AckReq: more&1 != 0}}
			if t&(packet.Send|packet.Write) != 0 || t&(packet.Read|packet.Response) == packet.Read|packet.Response {
				p.Payload = payload[:n+int(more&3)]
			}
			key, va := a.key, uint64(n&7)*8
			if more&0x80 != 0 {
				key = closed
			}
			p.RETH = packet.RETH{VA: va, RKey: key, Len: uint32(n) * uint32(more)}
			if more&4 != 0 {
				p.RETH.Len = uint32(len(p.Payload))
			}
			p.AtomicETH = packet.AtomicETH{VA: va, RKey: key, SwapOrAdd: 1}
			p.AETH, p.InvRKey = packet.AETH{Syndrome: packet.Syndrome(more)}, a.key^1
			a.sent(0)
			if t&packet.Response != 0 {
				p.PSN = firstPSN.Add(place)
				a.qp.Mu.Lock()
				a.req.Receive(&p, 0)
				a.qp.Mu.Unlock()
				continue
			}
			p.PSN = a.expect.Add(place)
			a.Receive(&p)
			if more&2 != 0 {
				a.drain()
			}
		}
		if a.answers.n > len(a.answers.ring) {
			t.Errorf("%d answers wait", a.answers.n)
		}
		for i, c := range private {
			if c != 0 {
				t.Fatalf("byte %d of memory that is not open is %#x", i, c)
			}
		}
	})
}
