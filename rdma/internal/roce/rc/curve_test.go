package rc

import (
	"testing"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

// goodput is what a stream of WRITEs of 512 KiB brings over a way of 2.5 GB/s and a round
// trip of 200 µs that loses a share of the packets in both directions, bytes per second of
// its own time.
func goodput(t testing.TB, seed uint64, lost float64) (float64, RequesterStats) {
	l := newLinkWith(t, seed, lossy.Faults{Lost: lost}, RequesterParams{MTU: packet.MTU4096, Window: 128, AckTimeout: 537 * time.Millisecond, Retries: 7})
	l.Pace = lossy.Rate
	const size, messages = rigMemory / 2, 128
	data := fill(size)
	from, to := l.ends[0], l.ends[1]
	for done := 0; done < messages; {
		for done < messages && from.queue(verbs.OpWrite, func(q *verbs.WQE) {
			q.Add(data, mem.LocalKey)
			q.Remote = verbs.RemoteAddr{STag: to.key}
		}) {
			done++
		}
		l.run()
	}
	if err := from.req.Err(); err != nil || len(from.ids) != messages {
		t.Fatalf("%d of %d messages: %v", len(from.ids), messages, err)
	}
	return size * messages / l.Now.Seconds(), from.req.Stats()
}

// TestLossCurve: what is lost costs what has to be sent again, and no time-outs, up to one
// packet in a hundred. It runs in a time of its own: the figures are those of the protocol,
// whatever else the machine does.
func TestLossCurve(t *testing.T) {
	best := 0.0
	lossy.Curve(t, []string{"RC 512 KiB B/s", "repeated", "timeouts", "probes"}, func(lost float64) []float64 {
		bw, s := goodput(t, 1, lost)
		best = max(best, bw)
		if lost <= 0.01 && s.Timeouts > 0 {
			t.Errorf("%v lost: %d time-outs", lost, s.Timeouts)
		}
		if lost <= 0.0001 && bw < best/2 {
			t.Errorf("%v lost: %.0f MB/s of %.0f", lost, bw/1e6, best/1e6)
		}
		return []float64{bw, float64(s.Repeated), float64(s.Timeouts), float64(s.Probes)}
	})
}
