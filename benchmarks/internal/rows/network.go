package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Names of contenders below the block layer. What moves bulk data is measured
// twice: with the host's congestion control, and with reno, which our
// connections choose within one host. All of them wait, as iperf3 does, but for the two
// that do as a connection does by default.
const (
	writeReuse     = "RDMA Write, one buffer, host's"
	writeWalk      = "RDMA Write, walking 1 GiB, host's"
	iperf          = "iperf3"
	writeReuseReno = "RDMA Write, one buffer, reno"
	writeWalkReno  = "RDMA Write, walking 1 GiB, reno"
	writeCRCReno   = "RDMA Write, one buffer, reno, CRC on"
	walkCRCReno    = "RDMA Write, walking 1 GiB, reno, CRC on"
	writeReuseAuto = "RDMA Write, one buffer, reno, auto"
	writeWalkAuto  = "RDMA Write, walking 1 GiB, reno, auto"
	iperfReno      = "iperf3 -C reno"
)

// networkRows are streams and ping-pongs below any block protocol: RDMA verbs beside
// iperf3 and plain TCP.
func networkRows() (rows []Row) {
	over := func(name, num, den string, want float64) result.Ratio {
		return result.Ratio{Name: "RDMA Write 1 MiB, " + name, Num: num, Den: den, Metric: result.BW, Op: ">=", Want: want}
	}
	// stream is the same bytes in C, into the server, over so many MiB.
	stream := func(name, how, mib string, more ...string) Contender {
		return inC(name, "stream", served, "send", append([]string{how, mib, millis}, more...)...)
	}
	bounded := func(q result.Ratio, bound, den string) result.Ratio {
		q.Bound, q.BoundDen = bound, den
		return q
	}
	const walk, crc, host, reno, auto = "--region=1073741824", "--crc", "--congestion=host", "--congestion=reno", "--auto-poll"
	write := func(name string, args ...string) Contender {
		return verbs(name, append([]string{"--op=write", "--size=1048576", "--depth=8"}, args...)...)
	}
	slow := func(c Contender) Contender { c.Slow = true; return c }
	rows = append(rows, Row{
		Row: result.Row{
			ID: "rdma-write-1m", Title: "one stream, 1 MiB messages", Metrics: []string{result.BW, result.CPUServer, result.CPUClient},
			Ratios: []result.Ratio{
				over("CRC off, one buffer, the host's congestion control: over iperf3", writeReuse, iperf, 0.95),
				over("CRC off, walking 1 GiB, the host's congestion control: over iperf3", writeWalk, iperf, 0.75),
				bounded(over("CRC off, one buffer, reno: over iperf3 with reno", writeReuseReno, iperfReno, 0.9), boundReuse, ""),
				bounded(over("CRC off, walking 1 GiB, reno: over iperf3 with reno", writeWalkReno, iperfReno, 0.75), boundWalk, ""),
				bounded(over("CRC off, one buffer, reno, busy_poll auto (default): over iperf3 with reno", writeReuseAuto, iperfReno, 0.9), boundReuseSpin, ""),
				bounded(over("CRC off, walking 1 GiB, reno, busy_poll auto (default): over iperf3 with reno", writeWalkAuto, iperfReno, 0.75), boundWalkSpin, ""),
				over("one buffer, reno: CRC on over CRC off", writeCRCReno, writeReuseReno, 0.7),
				bounded(result.Ratio{Name: "RDMA Write 1 MiB, walking 1 GiB, reno: CRC on over CRC off", Num: walkCRCReno, Den: writeWalkReno, Metric: result.BW}, boundWalkCRC, boundWalk),
			},
		},
		Quick: true,
		Contenders: []Contender{
			write(writeReuse, host), slow(write(writeWalk, walk, host)), iperfContender(iperf, ""),
			write(writeReuseReno, reno), write(writeWalkReno, walk, reno), iperfContender(iperfReno, "reno"),
			write(writeReuseAuto, reno, auto), write(writeWalkAuto, walk, reno, auto),
			write(writeCRCReno, reno, crc), slow(write(walkCRCReno, walk, reno, crc)),
			stream(boundReuse, "fpdu", "1"), stream(boundReuseSpin, "fpdu", "1", "spin"),
			stream(boundWalk, "fpdu", "1024"), stream(boundWalkSpin, "fpdu", "1024", "spin"), stream(boundWalkCRC, "crc", "1024"),
		},
	}, queuePairsRow(), messagesRow())
	for _, size := range []int{8, 4096} {
		rows = append(rows, pingRow(size, proc.Pinned), pingRow(size, proc.Free))
	}
	return append(rows, pacedRow())
}

// queuePairsRow: streams in parallel. One stream has a processor at each end to itself already.
func queuePairsRow() Row {
	const size, streams = "--size=1048576", 4
	name := func(n int) string { return fmt.Sprintf("RDMA Write, queue pairs: %d", n) }
	r := Row{
		Row:   result.Row{ID: "rdma-write-1m-qps", Title: "1 to 4 streams at once, 1 MiB messages", Metrics: []string{result.BW, result.CPUServer, result.CPUClient}},
		Place: proc.Free, Reps: 3,
	}
	for _, n := range []int{1, 2, streams} {
		r.Contenders = append(r.Contenders, verbs(name(n), "--op=write", size, "--depth=8", "--congestion=reno", fmt.Sprintf("--qps=%d", n)))
	}
	const many = iperfReno + " -P 4"
	r.Contenders = append(r.Contenders, parallelIperf(many, "reno", streams))
	r.Ratios = []result.Ratio{
		{Name: "RDMA Write 1 MiB, four queue pairs at once, left free: bandwidth over one's", Num: name(streams), Den: name(1), Metric: result.BW, Op: ">=", Want: 0.9},
		{Name: "RDMA Write 1 MiB, four queue pairs at once, left free: bandwidth over four streams of iperf3 with reno", Num: name(streams), Den: many, Metric: result.BW},
	}
	return r
}

func iperfContender(name, congestion string) Contender { return parallelIperf(name, congestion, 1) }

// parallelIperf is so many streams of one iperf3.
func parallelIperf(name, congestion string, streams int) Contender {
	return Contender{
		Name: name, Needs: []string{"iperf3"},
		Prepare: func(ctx context.Context, st *Stage) error {
			_, err := st.server("iperf3", peers.Iperf3)
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.IperfRun(ctx, st.started("iperf3"), congestion, streams)
		},
	}
}

// verbs is our rdma package under the harness's own client.
func verbs(name string, args ...string) Contender {
	return helper(name, "verbs", "verbs-client", peers.Verbs, args)
}

// tcpref is plain TCP in Go.
func tcpref(name string, args ...string) Contender {
	return helper(name, "tcp", "tcp-client", peers.TCPRef, args)
}

func helper(name, server, client string, start func(*peers.Env) (*peers.Server, error), args []string) Contender {
	return Contender{
		Name: name,
		Prepare: func(ctx context.Context, st *Stage) error {
			_, err := st.server(server, start)
			return err
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			return st.HelperRun(ctx, st.started(server), client, args...)
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

// pingRow: one message each way. RDMA Write tells the peer by an empty Send
// behind it, in the same segment of TCP.
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
			inC("waiting C", "pingpong", nil, "wait", fmt.Sprint(size), millis),
		},
	}
	ratio := func(op, how, num, den string) {
		r.Ratios = append(r.Ratios, result.Ratio{
			Name: fmt.Sprintf("%s ping-pong of %d bytes, %s: median over %s's", op, size, how, den),
			Num:  num, Den: den, Metric: result.P50, Op: "<=", Want: 1.25,
		})
	}
	ratio("Send", "waiting, "+place.String(), "Send", "Go net.Conn")
	ratio("RDMA Write", "waiting, "+place.String(), "RDMA Write + Send", "Go net.Conn")
	if place == proc.Pinned {
		r.Contenders = append(r.Contenders,
			verbs("Send, busy_poll", "--op=ping-send", sz, "--depth=4", "--crc", busyPoll),
			verbs("RDMA Write + Send, busy_poll", "--op=ping-write", sz, "--depth=4", "--crc", busyPoll),
			tcpref("spinning Go", "--op=spin", sz),
			inC("spinning C", "pingpong", nil, "spin", fmt.Sprint(size), millis))
		ratio("Send", "busy_poll", "Send, busy_poll", "spinning Go")
		ratio("RDMA Write", "busy_poll", "RDMA Write + Send, busy_poll", "spinning Go")
		r.Ratios = append(r.Ratios, result.Ratio{
			Name: fmt.Sprintf("Send ping-pong of %d bytes, busy_poll: median over spinning C's", size),
			Num:  "Send, busy_poll", Den: "spinning C", Metric: result.P50,
		})
	}
	return r
}

// pacedRow: READ responses of 100 KB at 10 Gb/s, and what a core has left. Our
// target chooses reno on a connection within one host, so the reference that
// counts has reno, too.
func pacedRow() Row {
	const rate = 1_250_000_000
	paced := peers.Load{RW: "read", BS: "102400", Depth: 8, Extra: []string{fmt.Sprintf("--rate=%d", rate)}}
	plain := []string{"--op=paced", "--size=102400", fmt.Sprintf("--rate=%d", rate)}
	const write, writeReno = "plain write(), host's", "plain write(), reno"
	part := func(name, how string, more ...string) Contender {
		return inC(name, "paced", served, how, append([]string{fmt.Sprint(rate), millis}, more...)...)
	}
	return Row{
		Row: result.Row{
			ID: "paced-10g", Title: "100 KB READ responses at 10 Gb/s", Metrics: []string{result.CPUShare, result.BW, result.CPUServer},
			Ratios: []result.Ratio{
				{Name: "100 KB READs at 10 Gb/s: target CPU over plain write() with reno", Num: iser, Den: writeReno, Metric: result.CPUServer, Op: "<=", Want: 0.8, Bound: boundEachCRC},
				{Name: "100 KB READs at 10 Gb/s, CRC off: target CPU over plain write() with reno", Num: iserNoCRC, Den: writeReno, Metric: result.CPUServer, Bound: boundEach},
				{Name: "100 KB READs at 10 Gb/s: target CPU over plain write() with the host's congestion control", Num: iser, Den: write, Metric: result.CPUServer},
				{Name: "100 KB READs at 10 Gb/s: share of a core", Num: iser, Metric: result.CPUShare, Op: "<=", Want: 0.2, Bound: boundEachCRC},
				{Name: "100 KB READs at 10 Gb/s: rate", Num: iser, Metric: result.BW},
			},
		},
		Contenders: append(trio(paced), tcpref(writeReno, plain...),
			helper(write, "tcp, host's", "tcp-client", peers.TCPRefHost, append(plain, "--congestion=host")),
			part(result.BoundPrefix+"write()", "plain"), part(boundAsked, "asked"), part(boundAskedCRC, "crc"),
			part(boundEach, "asked", "0"), part(boundEachCRC, "crc", "0")), // as our client asks
	}
}
