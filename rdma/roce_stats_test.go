package rdma_test

import (
	"slices"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// What an operator can read of a connection over RoCE and of the way that it takes.
func TestRoCEStats(t *testing.T) {
	if a, _ := rdmatest.Pair(t); len(a.Dev.RoCEPaths()) != 0 {
		t.Error("paths of RoCE over iWARP")
	} else if _, ok := a.QP.RoCEStats(); ok {
		t.Error("figures of RoCE over iWARP")
	}
	a, b := rdmatest.NewPair(t, overRoCE())
	for i := range 20 {
		b.Recv(t, uint64(i), make([]byte, 8192))
		a.Post(t, rdma.SendWR{ID: uint64(i), Op: rdma.OpSend, SGL: []rdma.SGE{a.SGE(make([]byte, 8192))}})
		a.Want(t, uint64(i), rdma.WCSend, rdma.StatusSuccess)
		b.Want(t, uint64(i), rdma.WCRecv, rdma.StatusSuccess)
	}
	s, ok := a.QP.RoCEStats()
	if !ok || s.Window == 0 || s.RTT == 0 || s.Packets-s.Repeated != 40 {
		t.Errorf("%+v, %v", s, ok)
	}
	ps := a.Dev.RoCEPaths()
	if len(ps) != 1 || ps[0].Rate == 0 || ps[0].Limit == 0 || ps[0].MinRTT == 0 || ps[0].InFlight != 0 || ps[0].Connections != 0 || ps[0].QPs != 1 {
		t.Errorf("%+v", ps)
	}
	ports := rdma.RoCEPorts()
	if i := slices.IndexFunc(ports, func(p rdma.RoCEPort) bool { return p.Addr == ps[0].Local }); i < 0 || len(ports[i].Paths) != 1 || ports[i].Paths[0] != ps[0] {
		t.Errorf("%+v of %+v", ps, ports)
	}
	_ = a.QP.Close()
	if ps := a.Dev.RoCEPaths(); len(ps) != 1 || ps[0].QPs != 0 || ps[0].Limit == 0 {
		t.Errorf("of a way that is remembered: %+v", ps)
	}
	for _, p := range rdma.RoCEPorts() {
		if p.Addr == ps[0].Local && len(p.Paths) != 0 {
			t.Errorf("nobody is connected: %+v", p)
		}
	}
}

// An acknowledgement waits for the handler of what it acknowledges, but not for long: one
// that does not come back holds nobody up.
func TestAcknowledgedBesideAHandler(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	o := overRoCE()
	o.Handlers = [2]func(*rdma.CQ){func(*rdma.CQ) {}, func(cq *rdma.CQ) {
		entered <- struct{}{}
		<-release
	}}
	done := make(chan struct{}, 8)
	o.Handlers[0] = func(cq *rdma.CQ) {
		var wcs [4]rdma.WC
		for range cq.Poll(wcs[:]) {
			done <- struct{}{}
		}
	}
	defer close(release)
	a, b := rdmatest.NewPair(t, o)
	for i := range 3 {
		b.Recv(t, uint64(i), nil)
		a.Post(t, rdma.SendWR{ID: uint64(i), Op: rdma.OpSend})
		select {
		case <-done:
		case <-time.After(rdmatest.Timeout):
			t.Fatalf("Send %d is not acknowledged while a handler runs", i)
		}
	}
	<-entered
}
