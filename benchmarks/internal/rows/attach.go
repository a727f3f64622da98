package rows

import (
	"context"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// attachRows: the local block device, two hops, against qemu-nbd in front of
// tgt; fio's nbd engine is the client of both. Pinned, both servers of a
// contender share core 0 and the client has core 1.
func attachRows() (rows []Row) {
	for _, x := range []struct {
		id, title, metric string
		l                 peers.Load
		place             proc.Placement
		oneHop            float64 // wanted, over nbdkit
	}{
		{"attach-randread-4k", "attach: 4 KiB randread QD32", result.IOPS, peers.Load{RW: "randread", BS: "4k", Depth: 32}, proc.Pinned, 0.9},
		{"attach-randread-4k-free", "attach: 4 KiB randread QD32, free", result.IOPS, peers.Load{RW: "randread", BS: "4k", Depth: 32}, proc.Free, 0.9},
		{"attach-randwrite-4k", "attach: 4 KiB randwrite QD32", result.IOPS, peers.Load{RW: "randwrite", BS: "4k", Depth: 32}, proc.Pinned, 0.9},
		{"attach-read-1m", "attach: 1 MiB read QD8", result.BW, peers.Load{RW: "read", BS: "1m", Depth: 8}, proc.Pinned, 0.8},
		{"attach-read-1m-free", "attach: 1 MiB read QD8, free", result.BW, peers.Load{RW: "read", BS: "1m", Depth: 8}, proc.Free, 0.8},
		{"attach-write-1m", "attach: 1 MiB write QD8", result.BW, peers.Load{RW: "write", BS: "1m", Depth: 8}, proc.Pinned, 0.8},
		{"attach-write-1m-free", "attach: 1 MiB write QD8, free", result.BW, peers.Load{RW: "write", BS: "1m", Depth: 8}, proc.Free, 0.8},
	} {
		bound, bounds := boundHop, []Contender{hop(x.l)}
		if x.l.RW == "write" {
			bound, bounds = boundKept, []Contender{kept(boundKept, x.l, true)}
			if x.place == proc.Pinned {
				bounds = append(bounds, kept(boundUnasked, x.l, false))
			}
		}
		rows = append(rows, Row{
			Place: x.place, Reps: 3,
			Row: result.Row{
				ID: x.id, Title: x.title, Metrics: []string{x.metric, result.CPUBoth, result.P50, result.P99},
				Ratios: []result.Ratio{
					{Name: x.title + ": over qemu-nbd of tgt", Num: attached, Den: qemuNBD, Metric: x.metric, Op: ">=", Want: 1.5},
					{Name: x.title + ": over nbdkit (one hop)", Num: attached, Den: nbdkitUnix, Metric: x.metric, Op: ">=", Want: x.oneHop, Bound: bound},
				},
			},
			Contenders: append([]Contender{
				{
					Name: attached, Needs: []string{"fio"},
					Prepare: func(ctx context.Context, st *Stage) error {
						if err := fillTarget(ctx, st); err != nil {
							return err
						}
						behind := st.started("ours")
						_, err := st.server("attach", func(e *peers.Env) (*peers.Server, error) { return peers.Attach(e, behind, behind.URL) })
						return err
					},
					Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
						return st.Fio(ctx, st.started("attach"), x.l)
					},
				},
				{
					Name: qemuNBD, Needs: []string{"qemu-nbd", "tgtd", "tgtadm", "fio"},
					Prepare: func(ctx context.Context, st *Stage) error {
						if err := startTgt(ctx, st); err != nil {
							return err
						}
						behind := st.started("tgt")
						_, err := st.server("qemu-nbd", func(e *peers.Env) (*peers.Server, error) { return peers.QemuNBD(e, behind) })
						return err
					},
					Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
						return st.Fio(ctx, st.started("qemu-nbd"), x.l)
					},
				},
				fioOn(nbdkitUnix, peers.NbdkitUnix, x.l, "nbdkit"),
			}, bounds...),
		})
	}
	return rows
}

// hop is one process in C between fio and the row's nbdkit.
func hop(l peers.Load) Contender {
	return Contender{
		Name: boundHop, Needs: []string{"cc", "nbdkit", "fio"},
		Prepare: func(_ context.Context, st *Stage) error {
			behind := st.started(nbdkitUnix)
			if behind == nil {
				return &peers.Unable{Why: "nbdkit does not run"}
			}
			_, err := st.server("hop", func(e *peers.Env) (*peers.Server, error) { return peers.Hop(e, behind) })
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) { return st.Fio(ctx, st.started("hop"), l) },
	}
}

// kept are a server and a process in front of it in C, over TCP, which do with payload what ours do.
func kept(name string, l peers.Load, asks bool) Contender {
	return Contender{
		Name: name, Needs: []string{"cc", "fio"},
		Prepare: func(_ context.Context, st *Stage) error {
			_, err := st.server(name, func(e *peers.Env) (*peers.Server, error) { return peers.Kept(e, served[0], l.Depth, asks) })
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) { return st.Fio(ctx, st.started(name), l) },
	}
}
