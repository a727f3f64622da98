package rows

import (
	"context"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// Names of contenders below the block layer.
const (
	writeReuse = "RDMA Write, one buffer"
	writeWalk  = "RDMA Write, walking 1 GiB"
	writeCRC   = "RDMA Write, one buffer, CRC on"
	iperf      = "iperf3"
	iperfReno  = "iperf3 -C reno"
)

func networkRows() []Row {
	return []Row{{
		Row: result.Row{
			ID: "rdma-write-1m", Title: "one stream, 1 MiB messages", Metrics: []string{result.BW, result.CPUServer, result.CPUClient},
			Ratios: []result.Ratio{
				{Name: "RDMA Write 1 MiB, CRC off, one buffer: over iperf3", Num: writeReuse, Den: iperf, Metric: result.BW, Op: ">=", Want: 0.95},
				{Name: "RDMA Write 1 MiB, CRC off, walking 1 GiB: over iperf3", Num: writeWalk, Den: iperf, Metric: result.BW, Op: ">=", Want: 0.75},
				{Name: "RDMA Write 1 MiB: CRC on over CRC off", Num: writeCRC, Den: writeReuse, Metric: result.BW, Op: ">=", Want: 0.7},
			},
		},
		Quick:      true,
		Contenders: []Contender{iperfContender(iperf, ""), iperfContender(iperfReno, "reno")},
	}}
}

func iperfContender(name, congestion string) Contender {
	return Contender{
		Name: name, Needs: []string{"iperf3"},
		Prepare: func(ctx context.Context, st *Stage) error {
			_, err := st.server("iperf3", peers.Iperf3)
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.IperfRun(ctx, st.started("iperf3"), congestion)
		},
	}
}
