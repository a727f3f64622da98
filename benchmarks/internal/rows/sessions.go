package rows

import (
	"context"
	"fmt"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// sessionRows: the same load over more and more sessions, and one session that asks for
// much beside many that ask for little.
func sessionRows() []Row {
	return []Row{manyRow(), fairRow(), loadMemoryRow()}
}

// manyRow: more and more sessions of four commands each, and in C as many connections, whose
// commands have nothing or 6 KiB of memory for themselves.
func manyRow() Row {
	row := Row{
		Row: result.Row{ID: "sessions", Title: "4 KiB randread over 1 to 256 sessions, queue depth 4 each", Metrics: []string{result.IOPS, result.P99, result.P999, result.CPUBoth}},
	}
	for _, n := range []int{1, 4, 16, 64, 256} {
		row.Contenders = append(row.Contenders, Contender{Name: sessionsName(n), Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			s := st.started("ours")
			return st.Bench(ctx, s, s.URL, peers.Load{RW: "randread", BS: "4k", Depth: 4, Jobs: n})
		}})
	}
	connections := func(n, lines int) string {
		if lines > 0 {
			return fmt.Sprintf("%s%d connections, %d lines", result.BoundPrefix, n, lines)
		}
		return fmt.Sprintf("%s%d connections", result.BoundPrefix, n)
	}
	few, most := connections(16, 0), connections(256, 0)
	for _, lines := range []int{0, 96} { // 96: 6 KiB that belong to each command alone
		for _, n := range []int{16, 256} {
			row.Contenders = append(row.Contenders, pages(connections(n, lines), n, 4, lines))
		}
	}
	row.Ratios = []result.Ratio{
		{Name: "IOPS of 256 sessions over the best number of sessions", Num: sessionsName(256), Den: result.Best, Metric: result.IOPS, Op: ">=", Want: 0.9, Bound: most, BoundDen: few},
		{Name: "IOPS of 256 sessions over that of 16 sessions", Num: sessionsName(256), Den: sessionsName(16), Metric: result.IOPS, Bound: connections(256, 96), BoundDen: connections(16, 96)},
	}
	// From 16 sessions on the target is busy, and each further request waits for
	// those before it: a fair queue makes p99 grow as the number of requests does.
	for _, n := range []int{64, 256} {
		q := result.Ratio{
			Name: fmt.Sprintf("p99 of %d sessions over that of 16 sessions (the queue is %d times as long)", n, n/16),
			Num:  sessionsName(n), Den: sessionsName(16), Metric: result.P99, Op: "<=", Want: float64(n / 16),
		}
		if n == 256 {
			q.Bound, q.BoundDen = most, few
		}
		row.Ratios = append(row.Ratios, q)
	}
	return row
}

func sessionsName(n int) string { return fmt.Sprintf("%d sessions", n) }

// fairRow: 64 sessions with one command each, alone and beside one with 128: both loads in
// one process, whose receivers take turns as the target's do, and each in a process of its
// own, which the kernel gives turns on the clients' processor.
func fairRow() Row {
	const alone, together, beside = "64 sessions alone", "64 sessions and one at depth 128 in one process", "64 sessions beside one at depth 128"
	few := peers.Load{RW: "randread", BS: "4k", Depth: 1, Jobs: 64}
	const aloneC, besideC, late = result.BoundPrefix + "64 connections alone", result.BoundPrefix + "64 connections beside one of 128", result.BoundPrefix + "waking up beside a busy process"
	both := few
	both.Job = "few"
	both.Extra = []string{"--name=few", "--name=deep", "--new-group", "--numjobs=1", "--iodepth=128"}
	return Row{
		Row: result.Row{
			ID: "fair", Title: "64 sessions of one command beside one session of 128", Metrics: []string{result.P99, result.P50, result.P999, result.IOPS},
			Ratios: []result.Ratio{
				{Name: "p99 of 64 sessions at depth 1 with one at depth 128 in the same process, over alone", Num: together, Den: alone, Metric: result.P99, Op: "<=", Want: 2},
				{Name: "p99 of 64 sessions at depth 1 beside one at depth 128, over alone", Num: beside, Den: alone, Metric: result.P99, Op: "<=", Want: 2, Bound: besideC, BoundDen: aloneC},
				{Name: "median of 64 sessions at depth 1 beside one at depth 128, over alone", Num: beside, Den: alone, Metric: result.P50, Bound: besideC, BoundDen: aloneC},
				{Name: "99th percentile of how late a process wakes up that has a busy one beside it on its processor", Num: late, Metric: result.P99},
			},
		},
		Contenders: []Contender{
			{Name: alone, Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s := st.started("ours")
				return st.Bench(ctx, s, s.URL, few)
			}},
			{Name: together, Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s := st.started("ours")
				return st.Bench(ctx, s, s.URL, both)
			}},
			{Name: beside, Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s := st.started("ours")
				end, err := st.Beside(s.URL, peers.Load{RW: "randread", BS: "4k", Depth: 128})
				if err != nil {
					return nil, err
				}
				v, err := st.Bench(ctx, s, s.URL, few)
				if e := end(); err == nil {
					err = e
				}
				return v, err
			}},
			pages(aloneC, 64, 1, 0),
			besideDeep(pages(besideC, 64, 1, 0)),
			byItself(late, "late", "beside", millis),
		},
	}
}

// besideDeep has a connection of 128 requests beside what pages measures, as another process.
func besideDeep(c Contender) Contender {
	few := c.Measure
	c.Measure = func(ctx context.Context, st *Stage) (result.Values, error) {
		end, err := st.ProgramBeside(st.started("pages"), "ask", "1", "128", "0", "600000") // until it is ended
		if err != nil {
			return nil, err
		}
		v, err := few(ctx, st)
		if e := end(); err == nil {
			err = e
		}
		return v, err
	}
	return c
}

// loadMemoryRow: what both ends hold while they are busy, what is under way included.
func loadMemoryRow() Row {
	r := Row{
		Row: result.Row{
			ID: "memory-busy", Title: "memory of both ends under full load, 16 sessions", Metrics: []string{result.Bytes, result.ClientMem, result.IOPS, result.BW},
		},
		Place: proc.Free, Reps: 3, More: time.Second / 2,
	}
	for _, x := range []struct {
		name string
		l    peers.Load
	}{
		{"4 KiB randread QD128", peers.Load{RW: "randread", BS: "4k", Depth: 128, Jobs: 16}},
		{"1 MiB read QD8", peers.Load{RW: "read", BS: "1m", Depth: 8, Jobs: 16}},
		{"1 MiB write QD8", peers.Load{RW: "write", BS: "1m", Depth: 8, Jobs: 16}},
	} {
		own, ref := iser+", "+x.name, nbdkit+", "+x.name
		r.Contenders = append(r.Contenders,
			Contender{Name: own, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s, err := st.newTarget(peers.TargetConfig{}) // without what earlier loads have left in its pools
				if s != nil {
					defer s.Close()
				}
				if err != nil {
					return nil, err
				}
				return st.BenchMemory(ctx, s, s.URL, x.l)
			}},
			Contender{Name: ref, Needs: []string{"nbdkit", "fio"}, Prepare: fioOn(nbdkit, peers.Nbdkit, x.l).Prepare, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				return st.FioMemory(ctx, st.started(nbdkit), x.l)
			}})
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: "memory of the target, 16 sessions, " + x.name, Num: own, Metric: result.Bytes},
			result.Ratio{Name: "memory of the client, 16 sessions, " + x.name + ": over fio's", Num: own, Den: ref, Metric: result.ClientMem})
	}
	return r
}
