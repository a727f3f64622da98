package rdma_test

import (
	"net/netip"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// The ports of a process tell how many queue pairs and packets there are, of those that have
// ended too; what nobody knows is counted as dropped.
func TestRoCEPorts(t *testing.T) {
	a, b := rdmatest.NewPair(t, overRoCE())
	at := func(e *rdmatest.End) (p rdma.RoCEPort) {
		addr := netip.AddrPort(e.QP.Info().LocalAddr.(rdma.RoCEAddr)).Addr()
		for _, q := range rdma.RoCEPorts() {
			if q.Addr == addr {
				return q
			}
		}
		t.Fatalf("the port of %v is not there", addr)
		return p
	}
	b.Recv(t, 1, make([]byte, 100))
	a.Post(t, rdma.SendWR{ID: 2, Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 100))}})
	a.Want(t, 2, rdma.WCSend, rdma.StatusSuccess)
	b.Want(t, 1, rdma.WCRecv, rdma.StatusSuccess)
	await.True(t, "a packet each way", func() bool {
		p, q := at(a), at(b)
		return p.Counters.SentPkts > 0 && p.Counters.RcvdPkts > 0 && q.Counters.SentPkts > 0 && q.Counters.RcvdBytes > 100 && q.Counters.CMRequests == 1
	})
	p := at(a)
	if p.QPs != 1 || p.ActiveMTU != 4096 || p.RecvBuffer == 0 || p.Counters.RepeatedPkts != 0 {
		t.Errorf("%+v", p)
	}
	a.QP.Abort(nil)
	_ = a.WaitDone(t)
	await.True(t, "no queue pair is left", func() bool { return at(a).QPs == 0 && at(b).QPs == 0 })
	if at(a).Counters.SentPkts < p.Counters.SentPkts {
		t.Error("what has ended is not counted any more")
	}
}
