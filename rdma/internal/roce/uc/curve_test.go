package uc

import (
	"math"
	"testing"

	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// window is how many packets are on their way: what the way holds.
const window = 128

// goodput is what of a stream of WRITEs with immediate data arrives whole over a lossy way,
// bytes per second of its own time: a message counts with all of its packets or not at all.
func goodput(t testing.TB, seed uint64, lost float64, size, messages int) float64 {
	g, net := newRigOf(t, packet.MTU4096, size), lossy.New(t, seed, lossy.Faults{Lost: lost})
	net.Pace = lossy.Rate
	data := fill(size)
	arrived, posted := 0, 0
	arrive := func(left int) {
		for net.InFlight() > left {
			_, p, _ := net.Take()
			g.rx.Receive(&p)
			arrived += len(g.rx.TakeWCs(nil))
		}
	}
	for range messages {
		for posted-arrived < 16 {
			g.Buffer(t, 0)
			posted++
		}
		if !g.Queue(verbs.OpWriteImm, data, func(e *verbs.WQE) { e.Remote = verbs.RemoteAddr{STag: g.key} }) {
			t.Fatal("no room in the send queue")
		}
		for g.tx.Next(&g.out) {
			net.Send(0, &g.out)
		}
		g.tx.Sent()
		g.Completions()
		arrive(window)
	}
	arrive(0)
	return float64(arrived*size) / net.Now.Seconds()
}

// TestLossCurve: a message of n packets arrives with the probability that all of them do.
func TestLossCurve(t *testing.T) {
	best := [2]float64{}
	sizes := [2]int{512 << 10, 64 << 10}
	lossy.Curve(t, []string{"UC 512 KiB B/s", "UC 64 KiB B/s"}, func(lost float64) []float64 {
		got := make([]float64, len(sizes))
		for i, size := range sizes {
			got[i] = goodput(t, 1, lost, size, 32<<20/size)
			best[i] = max(best[i], got[i])
			if want := math.Pow(1-lost, float64(size)/4096); math.Abs(got[i]/best[i]-want) > 0.1 {
				t.Errorf("%d bytes, %v lost: %.3f of %.0f MB/s, want %.3f", size, lost, got[i]/best[i], best[i]/1e6, want)
			}
		}
		return got
	})
}
