package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// roceRows: verbs over RoCE, of which every packet has its ICRC, beside iWARP with its CRC,
// UCX over TCP and plain UDP, and iSER over both.
func roceRows() []Row {
	rows := []Row{roceMessagesRow(), roceStreamRow()}
	for _, size := range []int{8, 4000} {
		rows = append(rows, rocePingRow(size))
	}
	return append(rows,
		roceISERRow("roce-iser-4k", "iSER, 4 KiB randread QD32", result.IOPS, peers.Load{RW: "randread", BS: "4k", Depth: 32}),
		roceISERRow("roce-iser-1m", "iSER, 1 MiB read QD8", result.BW, peers.Load{RW: "read", BS: "1m", Depth: 8}))
}

// verbsRoCE is our rdma package over RoCE under the harness's own client.
func verbsRoCE(name string, args ...string) Contender {
	return helper(name, "verbs, RoCE", "verbs-client", peers.VerbsRoCE, append(args, "--roce"))
}

// verbsOps are what is measured of both providers, and what UCX has of the kind.
var verbsOps = []struct{ name, op, ucx string }{{"Write", "write", "ucp_put_bw"}, {"Read", "read", "ucp_get"}, {"Send", "send", "ucp_am_bw"}}

// roceOps are the contenders of a row over all operations, at one size.
func roceOps(size, depth int) (out []Contender) {
	for _, op := range verbsOps {
		args := []string{"--op=" + op.op, fmt.Sprintf("--size=%d", size), fmt.Sprintf("--depth=%d", depth)}
		out = append(out, verbsRoCE("RoCE "+op.name, args...), verbs("iWARP "+op.name, append(args, "--crc")...))
	}
	for _, op := range verbsOps {
		out = append(out, Contender{Name: "UCX " + op.ucx, Needs: []string{"ucx_perftest"}, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.UCX(ctx, op.ucx, size, depth)
		}})
	}
	return out
}

func roceMessagesRow() Row {
	r := Row{
		Row:        result.Row{ID: "roce-4k-qd32", Title: "RoCE: 4 KiB messages, 32 outstanding", Metrics: []string{result.IOPS, result.CPUServer, result.CPUClient}},
		Contenders: roceOps(4096, 32),
		Reps:       3,
	}
	for _, op := range verbsOps {
		name := "RoCE " + op.name
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: name + " 4 KiB QD32: messages/s", Num: name, Metric: result.IOPS, Op: ">=", Want: 150_000},
			result.Ratio{Name: name + " 4 KiB QD32: messages/s over iWARP's with CRC", Num: name, Den: "iWARP " + op.name, Metric: result.IOPS},
			result.Ratio{Name: name + " 4 KiB QD32: messages/s over UCX " + op.ucx, Num: name, Den: "UCX " + op.ucx, Metric: result.IOPS})
	}
	return r
}

func roceStreamRow() Row {
	r := Row{
		Row:        result.Row{ID: "roce-1m", Title: "RoCE: one stream, 1 MiB messages, path MTU 4096", Metrics: []string{result.BW, result.CPUServer, result.CPUClient}},
		Contenders: roceOps(1<<20, 8),
		Reps:       3,
	}
	for _, op := range verbsOps {
		name := "RoCE " + op.name
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: name + " 1 MiB: bandwidth, bytes/s", Num: name, Metric: result.BW, Op: ">=", Want: 2.5e9},
			result.Ratio{Name: name + " 1 MiB: bandwidth over iWARP's with CRC", Num: name, Den: "iWARP " + op.name, Metric: result.BW},
			result.Ratio{Name: name + " 1 MiB: bandwidth over UCX " + op.ucx, Num: name, Den: "UCX " + op.ucx, Metric: result.BW})
	}
	return r
}

// rocePingRow: a Send each way beside a datagram each way. Both ends sleep, or look as
// connections do by default, or always look.
func rocePingRow(size int) Row {
	sz := fmt.Sprintf("--size=%d", size)
	const send, auto, polling, udp = "RoCE Send", "RoCE Send, auto", "RoCE Send, busy_poll", "Go UDP"
	over := func(num string) result.Ratio {
		return result.Ratio{Name: fmt.Sprintf("%s ping-pong of %d bytes: median over plain UDP's", num, size), Num: num, Den: udp, Metric: result.P50, Op: "<=", Want: 1.3}
	}
	return Row{
		Row: result.Row{
			ID: fmt.Sprintf("roce-ping-%d", size), Title: fmt.Sprintf("RoCE: ping-pong of %d bytes", size), Metrics: []string{result.P50, result.P99},
			Ratios: []result.Ratio{over(send), over(auto), over(polling)},
		},
		Reps: 3,
		Contenders: []Contender{
			verbsRoCE(send, "--op=ping-send", sz, "--depth=4"),
			verbsRoCE(auto, "--op=ping-send", sz, "--depth=4", "--auto-poll"),
			verbsRoCE(polling, "--op=ping-send", sz, "--depth=4", busyPoll),
			helper(udp, "udp", "udp-client", peers.UDPRef, []string{sz}),
		},
	}
}

func roceISERRow(id, title, metric string, l peers.Load) Row {
	const over, base = "iSER over RoCE", "iSER over iWARP"
	return Row{
		Row: result.Row{
			ID: id, Title: title + ", over RoCE and iWARP", Metrics: []string{metric, result.CPUServer, result.CPUClient},
			Ratios: []result.Ratio{
				{Name: title + ": over RoCE as much as over iWARP with CRC", Num: over, Den: base, Metric: metric},
				{Name: title + ": target CPU-s/GiB over RoCE as over iWARP with CRC", Num: over, Den: base, Metric: result.CPUServer},
			},
		},
		Reps:       3,
		Contenders: []Contender{ours(over, "ours, RoCE", l, peers.RoCE), ours(base, "ours, RoCE", l, nil)},
	}
}
