package rc

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/roce/lossy"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
)

var curve = flag.String("curve", "", "write the throughput over a lossy way to this file, with all points")

// goodput is what a stream of WRITEs of 512 KiB brings over a way of 2.5 GB/s and a round
// trip of 200 µs that loses a share of the packets in both directions, bytes per second of
// its own time.
func goodput(t testing.TB, seed uint64, lost float64) (float64, RequesterStats) {
	l := newLinkWith(t, seed, lossy.Faults{Lost: lost}, RequesterParams{MTU: packet.MTU4096, Window: 128, AckTimeout: 537 * time.Millisecond, Retries: 7})
	l.Pace = 2.5e9
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
	points := []float64{0, 0.0001, 0.001, 0.01, 0.05}
	if *curve != "" {
		points = []float64{0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05}
	}
	var table strings.Builder
	fmt.Fprintln(&table, "lost,bytes_per_second,repeated,timeouts,probes")
	best := 0.0
	for _, p := range points {
		bw, s := goodput(t, 1, p)
		fmt.Fprintf(&table, "%g,%.0f,%d,%d,%d\n", p, bw, s.Repeated, s.Timeouts, s.Probes)
		best = max(best, bw)
		if p <= 0.01 && s.Timeouts > 0 {
			t.Errorf("%v lost: %d time-outs", p, s.Timeouts)
		}
		if p <= 0.0001 && bw < best/2 {
			t.Errorf("%v lost: %.0f MB/s of %.0f", p, bw/1e6, best/1e6)
		}
	}
	if t.Logf("\n%s", &table); *curve != "" {
		if err := os.WriteFile(*curve, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
