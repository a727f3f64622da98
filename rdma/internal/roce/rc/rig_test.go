package rc

import (
	"testing"

	"softiser/internal/leaktest"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// rig is a responder with memory for everything.
type rig struct {
	*Responder
	v      *verbstest.QP
	mem    []byte
	region *mem.Region
	key    uint32
	out    Outgoing
}

const (
	rigMemory  = 1 << 20
	everything = mem.RemoteRead | mem.RemoteWrite | mem.RemoteAtomic | mem.ZeroBased
)

func newRig(t testing.TB, cfg Params) *rig {
	t.Helper()
	return newRigOf(t, cfg, rigMemory)
}

// newRigOf is newRig with so much memory.
func newRigOf(t testing.TB, cfg Params, memory int) *rig {
	t.Helper()
	v := verbstest.NewQP(t)
	g := &rig{Responder: NewResponder(v.QP, cfg), v: v, mem: make([]byte, memory)}
	g.key, g.region = g.open(t, g.mem, everything)
	return g
}

// open makes a region that the peer may invalidate.
func (g *rig) open(t testing.TB, p []byte, a mem.Access) (key uint32, r *mem.Region) {
	t.Helper()
	return g.v.Open(t, p, a)
}

// post posts a receive buffer of n bytes in two pieces and returns it.
func (g *rig) post(t testing.TB, n int) []byte {
	t.Helper()
	return g.v.Buffer(t, n)
}

// reply is an answer with its payload copied.
type reply struct {
	packet.Packet
	data []byte
}

// drain takes all answers that there are.
func (g *rig) drain() (out []reply) {
	for g.Next(&g.out) {
		r := reply{Packet: g.out.Packet}
		for _, p := range g.out.Payload {
			r.data = append(r.data, p...)
		}
		g.out.Release()
		out = append(out, r)
	}
	return out
}

// give has one packet received and returns the answers.
func (g *rig) give(p packet.Packet) []reply {
	g.Receive(&p)
	return g.drain()
}

// request makes a packet of a request that asks for an acknowledgement.
func request(op packet.Opcode, psn packet.PSN, payload []byte) packet.Packet {
	return packet.Packet{BTH: packet.BTH{Op: op, PSN: psn, AckReq: true}, Payload: payload}
}

// to adds the RETH.
func (g *rig) to(p packet.Packet, va uint64, n int) packet.Packet {
	p.RETH = packet.RETH{VA: va, RKey: g.key, Len: uint32(n)}
	return p
}
