package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// sessionRows: the same load over more and more sessions.
func sessionRows() []Row {
	row := Row{
		Row: result.Row{ID: "sessions", Title: "4 KiB randread over 1 to 256 sessions, queue depth 4 each", Metrics: []string{result.IOPS, result.P99, result.CPUBoth}},
	}
	for _, n := range []int{1, 4, 16, 64, 256} {
		row.Contenders = append(row.Contenders, Contender{Name: sessionsName(n), Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			s := st.started("ours")
			return st.Bench(ctx, s, s.URL, peers.Load{RW: "randread", BS: "4k", Depth: 4, Jobs: n})
		}})
	}
	row.Ratios = []result.Ratio{{Name: "IOPS of 256 sessions over the best number of sessions", Num: sessionsName(256), Den: result.Best, Metric: result.IOPS, Op: ">=", Want: 0.9}}
	// From 16 sessions on the target is busy, and each further request waits for
	// those before it: a fair queue makes p99 grow as the number of requests does.
	for _, n := range []int{64, 256} {
		row.Ratios = append(row.Ratios, result.Ratio{
			Name: fmt.Sprintf("p99 of %d sessions over that of 16 sessions (the queue is %d times as long)", n, n/16),
			Num:  sessionsName(n), Den: sessionsName(16), Metric: result.P99, Op: "<=", Want: float64(n / 16),
		})
	}
	return []Row{row}
}

func sessionsName(n int) string { return fmt.Sprintf("%d sessions", n) }
