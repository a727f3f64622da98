package rc

import (
	"testing"

	"softiser/internal/leaktest"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// nobody is a front that does not want to know.
type nobody struct{}

func (nobody) StateChanged(_, _ verbs.State) func() { return func() {} }
func (nobody) Cause(err error) error                { return err }
func (nobody) Ended(error)                          {}
func (nobody) Event(verbs.Event)                    {}

// rig is a responder with memory for everything.
type rig struct {
	*Responder
	mem    []byte
	region *mem.Region
	key    uint32
	nextID uint64
	out    Outgoing
}

const (
	rigMemory  = 1 << 20
	everything = mem.RemoteRead | mem.RemoteWrite | mem.RemoteAtomic | mem.ZeroBased
)

func newRig(t testing.TB, cfg Params) *rig {
	t.Helper()
	d, cq, v := new(verbs.Device), new(verbs.CQ), new(verbs.QP)
	d.Table.Limit(1 << 10)
	cq.Init(1024, nil)
	dom := &mem.Domain{Revoked: func(*mem.Region) {}}
	v.Mem = mem.Stream{Opened: func(*mem.Region) {}, Closed: func(*mem.Region) {}, Revoked: func(*mem.Region) {}}
	v.Dev, v.PD, v.SendCQ, v.RecvCQ, v.MaxSend = d, dom, cq, cq, 16
	v.Init(nobody{}, 64)
	g := &rig{Responder: NewResponder(v, cfg), mem: make([]byte, rigMemory)}
	g.key, g.region = g.open(t, g.mem, everything)
	return g
}

// open makes a region that the peer may invalidate.
func (g *rig) open(t testing.TB, p []byte, a mem.Access) (key uint32, r *mem.Region) {
	t.Helper()
	r = &mem.Region{Remote: true}
	r.Init(g.qp.PD)
	if err := g.qp.Dev.Table.Insert(r); err != nil {
		t.Fatal(err)
	}
	// In two pieces, so that nothing relies on one.
	half := len(p) / 2 &^ 7
	key, _ = r.Open(&g.qp.Mem, [][]byte{p[:half], p[half:]}, a)
	return key, r
}

// post posts a receive buffer of n bytes in two pieces and returns it.
func (g *rig) post(t testing.TB, n int) []byte {
	t.Helper()
	g.qp.RQ.Lock()
	defer g.qp.RQ.Unlock()
	g.nextID++
	b, err := g.qp.RQ.PostLocked(g.nextID)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, n)
	b.Add(p[:n/3], mem.LocalKey)
	b.Add(p[n/3:], mem.LocalKey)
	return p
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
