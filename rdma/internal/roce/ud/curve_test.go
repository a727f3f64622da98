package ud

import (
	"math"
	"testing"

	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// goodput is what of a stream of datagrams of 4 KiB arrives over a lossy way, bytes per second
// of its own time.
func goodput(t testing.TB, seed uint64, lost float64) float64 {
	const size, count = 4096, 8192
	g, ah, net := newRigOf(t, packet.MTU4096), &verbs.AddressHandle{Addr: there}, lossy.New(t, seed, lossy.Faults{Lost: lost})
	net.Pace = lossy.Rate
	data, arrived, posted := make([]byte, size), 0, 0
	arrive := func(left int) {
		for net.InFlight() > left {
			_, p, _ := net.Take()
			g.rx.Receive(there, here, &p)
			arrived += len(g.rx.TakeWCs(nil))
		}
	}
	for range count {
		for posted-arrived < 2 {
			g.Buffer(t, GRHLen+size)
			posted++
		}
		if !g.Queue(verbs.OpSend, data, func(e *verbs.WQE) { e.Dest = verbs.Destination{AH: ah, QPN: 7, QKey: qkey} }) {
			t.Fatal("no room in the send queue")
		}
		for _, ok := g.tx.Next(&g.out); ok; _, ok = g.tx.Next(&g.out) {
			net.Send(0, &g.out)
		}
		g.tx.Sent()
		g.Completions()
		arrive(128) // what the way holds
	}
	arrive(0)
	return float64(arrived*size) / net.Now.Seconds()
}

// TestLossCurve: what is lost is missing, and nothing else.
func TestLossCurve(t *testing.T) {
	best := 0.0
	lossy.Curve(t, []string{"UD 4 KiB B/s"}, func(lost float64) []float64 {
		bw := goodput(t, 1, lost)
		if best = max(best, bw); math.Abs(bw/best-(1-lost)) > 0.005 {
			t.Errorf("%v lost: %.0f of %.0f MB/s", lost, bw/1e6, best/1e6)
		}
		return []float64{bw}
	})
}
