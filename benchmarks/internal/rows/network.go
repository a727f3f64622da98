package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Names of contenders below the block layer.
const (
	writeReuse = "RDMA Write, one buffer"
	writeWalk  = "RDMA Write, walking 1 GiB"
	writeCRC   = "RDMA Write, one buffer, CRC on"
	iperf      = "iperf3"
	iperfReno  = "iperf3 -C reno"
	writeReno  = "RDMA Write, one buffer, reno"
)

func networkRows() (rows []Row) {
	rows = append(rows, Row{
		Row: result.Row{
			ID: "rdma-write-1m", Title: "one stream, 1 MiB messages", Metrics: []string{result.BW, result.CPUServer, result.CPUClient},
			Ratios: []result.Ratio{
				{Name: "RDMA Write 1 MiB, CRC off, one buffer: over iperf3", Num: writeReuse, Den: iperf, Metric: result.BW, Op: ">=", Want: 0.95},
				{Name: "RDMA Write 1 MiB, CRC off, walking 1 GiB: over iperf3", Num: writeWalk, Den: iperf, Metric: result.BW, Op: ">=", Want: 0.75},
				{Name: "RDMA Write 1 MiB: CRC on over CRC off", Num: writeCRC, Den: writeReuse, Metric: result.BW, Op: ">=", Want: 0.7},
				{Name: "RDMA Write 1 MiB, CRC off, one buffer, reno: over iperf3 with reno", Num: writeReno, Den: iperfReno, Metric: result.BW},
			},
		},
		Quick: true,
		Contenders: []Contender{
			verbs(writeReuse, "--op=write", "--size=1048576", "--depth=8"),
			verbs(writeWalk, "--op=write", "--size=1048576", "--depth=8", "--region=1073741824"),
			verbs(writeCRC, "--op=write", "--size=1048576", "--depth=8", "--crc"),
			verbs(writeReno, "--op=write", "--size=1048576", "--depth=8", "--congestion=reno"),
			iperfContender(iperf, ""), iperfContender(iperfReno, "reno"),
		},
	}, messagesRow())
	for _, size := range []int{8, 4096} {
		rows = append(rows, pingRow(size, proc.Pinned), pingRow(size, proc.Free))
	}
	return append(rows, pacedRow())
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

// verbs is our rdma package under the harness's own client.
func verbs(name string, args ...string) Contender {
	return helper(name, "verbs-client", peers.Verbs, args)
}

// tcpref is plain TCP in Go.
func tcpref(name string, args ...string) Contender {
	return helper(name, "tcp-client", peers.TCPRef, args)
}

func helper(name, client string, start func(*peers.Env) (*peers.Server, error), args []string) Contender {
	return Contender{
		Name: name,
		Prepare: func(ctx context.Context, st *Stage) error {
			_, err := st.server(client, start)
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.HelperRun(ctx, st.started(client), client, args...)
		},
	}
}

// messagesRow: 4 KiB messages, 32 outstanding.
func messagesRow() Row {
	r := Row{Row: result.Row{ID: "rdma-4k-qd32", Title: "4 KiB messages, 32 outstanding", Metrics: []string{result.IOPS, result.CPUServer, result.CPUClient}}}
	for _, op := range []struct{ name, op string }{{"RDMA Write", "write"}, {"RDMA Read", "read"}, {"Send", "send"}} {
		r.Contenders = append(r.Contenders, verbs(op.name+", CRC off", "--op="+op.op, "--size=4096", "--depth=32"),
			verbs(op.name+", CRC on", "--op="+op.op, "--size=4096", "--depth=32", "--crc"))
	}
	for _, test := range []string{"ucp_put_bw", "ucp_get", "ucp_am_bw"} {
		r.Contenders = append(r.Contenders, Contender{Name: "UCX " + test, Needs: []string{"ucx_perftest"}, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.UCX(ctx, test, 4096, 32)
		}})
	}
	ratio := func(num, den string) result.Ratio {
		return result.Ratio{Name: num + " 4 KiB QD32: messages/s over " + den, Num: num, Den: den, Metric: result.IOPS, Op: ">=", Want: 2}
	}
	r.Ratios = []result.Ratio{
		ratio("RDMA Write, CRC off", "UCX ucp_put_bw"), ratio("RDMA Read, CRC off", "UCX ucp_get"), ratio("Send, CRC off", "UCX ucp_am_bw"),
	}
	return r
}

// pingRow: one message each way.
func pingRow(size int, place proc.Placement) Row {
	sz := fmt.Sprintf("--size=%d", size)
	r := Row{
		Row: result.Row{
			ID: fmt.Sprintf("ping-%d-%v", size, place), Title: fmt.Sprintf("ping-pong of %d bytes, %v", size, place),
			Metrics: []string{result.P50, result.P99},
		},
		Place: place,
		Contenders: []Contender{
			verbs("Send", "--op=ping-send", sz, "--depth=4", "--crc"),
			verbs("RDMA Write + Send", "--op=ping-write", sz, "--depth=4", "--crc"),
			tcpref("Go net.Conn", "--op=ping", sz),
		},
	}
	r.Ratios = []result.Ratio{{Name: fmt.Sprintf("Send ping-pong of %d bytes, waiting, %v: median over Go net.Conn's", size, place), Num: "Send", Den: "Go net.Conn", Metric: result.P50, Op: "<=", Want: 1.25}}
	if place == proc.Pinned {
		r.Contenders = append(r.Contenders,
			verbs("Send, busy_poll", "--op=ping-send", sz, "--depth=4", "--crc", busyPoll),
			tcpref("spinning Go", "--op=spin", sz))
		r.Ratios = append(r.Ratios, result.Ratio{Name: fmt.Sprintf("Send ping-pong of %d bytes, busy_poll: median over spinning Go's", size), Num: "Send, busy_poll", Den: "spinning Go", Metric: result.P50, Op: "<=", Want: 1.25})
	}
	return r
}

// pacedRow: READ responses of 100 KB at 10 Gb/s, what a core has left.
func pacedRow() Row {
	const rate = 1_250_000_000
	paced := peers.Load{RW: "read", BS: "102400", Depth: 8, Extra: []string{fmt.Sprintf("--rate=%d", rate)}}
	return Row{
		Row: result.Row{
			ID: "paced-10g", Title: "100 KB READ responses at 10 Gb/s", Metrics: []string{result.CPUShare, result.BW, result.CPUServer},
			Ratios: []result.Ratio{
				{Name: "100 KB READs at 10 Gb/s: target CPU over plain write()", Num: iser, Den: "plain write()", Metric: result.CPUServer, Op: "<=", Want: 0.8},
				{Name: "100 KB READs at 10 Gb/s: share of a core", Num: iser, Metric: result.CPUShare},
			},
		},
		Contenders: []Contender{
			ours(iser, "ours", paced, nil), ours(tcp, "ours", paced, peers.TCP),
			tcpref("plain write()", "--op=paced", "--size=102400", fmt.Sprintf("--rate=%d", rate)),
		},
	}
}
