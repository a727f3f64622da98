package rows

import (
	"context"
	"fmt"
	"strings"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Names of contenders.
const (
	iser       = "iSER"
	iserNoCRC  = "iSER, CRC off"
	iserWait   = "iSER, waiting"
	iserPoll   = "iSER, busy_poll"
	tcp        = "iSCSI over TCP"
	nbdkit     = "nbdkit memory"
	tgt        = "tgt"
	attached   = "attach (iSER)"
	qemuNBD    = "qemu-nbd of tgt"
	nbdkitUnix = "nbdkit memory (unix)"
	nbdkitReno = "nbdkit memory, reno"
)

// busyPoll is long enough to span a round trip at queue depth 1.
const busyPoll = "--busy-poll=50us"

// Our targets by configuration: the row's server of that name.
var targets = map[string]peers.TargetConfig{
	"ours":          {},
	"ours, no CRC":  {CRC: "off"},
	"ours, RoCE":    {RoCE: true},
	"ours, waiting": {BusyPoll: "0"},
	"ours, polling": {BusyPoll: "50"},
	"ours, metrics": {Metrics: true},
	"both, no CRC":  {CRC: "off", NVMe: true},
	"both, metrics": {CRC: "off", NVMe: true, Metrics: true},
	"both, polling": {CRC: "off", NVMe: true, BusyPoll: "50"},
	"ours, slow volume": {
		Volumes: "  - {name: slow0, type: memory, size: 64MiB, fault: {read_delay: 50ms}}\n",
		LUNs:    "      - {lun: 1, volume: slow0}\n",
	},
}

// fill starts one of targets and fills its volume: with digests, so that the kernel and the target's
// own code have both touched each page, whichever of them a contender has at work there.
func fill(name string) func(context.Context, *Stage) error {
	return func(ctx context.Context, st *Stage) error {
		if st.started(name) != nil {
			return nil
		}
		s, err := st.server(name, func(e *peers.Env) (*peers.Server, error) { return peers.Target(e, targets[name]) })
		if err != nil {
			return err
		}
		return st.Fill(ctx, s, peers.TCPDigest(s.URL))
	}
}

// fillTarget is for contenders that use our target as it is by default.
var fillTarget = fill("ours")

// ours is our target under our generator. extra are options of the generator.
func ours(name, target string, l peers.Load, url func(string) string, extra ...string) Contender {
	l.Extra = append(l.Extra, extra...)
	return Contender{Name: name, Prepare: fill(target), Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
		return st.Bench(ctx, st.started(target), st.urlOf(target, url), l)
	}}
}

// trio is our target over iSER, over iSER without CRC (not in quick runs), and
// over plain TCP.
func trio(l peers.Load) []Contender {
	noCRC := ours(iserNoCRC, "ours, no CRC", l, nil, "--crc=off")
	noCRC.Slow = true
	return []Contender{ours(iser, "ours", l, nil), noCRC, ours(tcp, "ours", l, peers.TCP)}
}

// fioOn is an NBD server under fio.
func fioOn(name string, start func(*peers.Env) (*peers.Server, error), l peers.Load, needs ...string) Contender {
	return Contender{
		Name: name, Needs: append(needs, "fio"),
		Prepare: func(ctx context.Context, st *Stage) error {
			if st.started(name) != nil {
				return nil
			}
			s, err := st.server(name, start)
			if err != nil {
				return err
			}
			return st.FillFio(ctx, s)
		},
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) { return st.Fio(ctx, st.started(name), l) },
	}
}

func diskRows() (rows []Row) {
	for _, place := range []proc.Placement{proc.Pinned, proc.Free} {
		for _, rw := range []string{"randread", "randwrite"} {
			rows = append(rows, qd1Row(rw, place))
		}
	}
	rows = append(rows, autoRow(proc.Pinned), autoRow(proc.Free),
		deepRow("randread", 32, proc.Pinned), deepRow("randwrite", 32, proc.Pinned), deepRow("randread", 128, proc.Pinned),
		deepRow("randread", 32, proc.Free), deepRow("randread", 128, proc.Free))
	for _, rw := range []string{"read", "write"} {
		for _, depth := range []int{8, 32} {
			rows = append(rows, largeRow(rw, depth))
		}
	}
	rows = append(rows, mixRow(), databaseRow())
	return append(rows, sweepRows()...)
}

func qd1Row(rw string, place proc.Placement) Row {
	l := peers.Load{RW: rw, BS: "4k", Depth: 1}
	how := strings.TrimPrefix(rw, "rand")
	r := Row{
		Row: result.Row{
			ID: fmt.Sprintf("%s-4k-qd1-%v", rw, place), Title: fmt.Sprintf("4 KiB %s, queue depth 1, %v", rw, place),
			Metrics: []string{result.P50, result.P99, result.P999, result.IOPS, result.CPUServer},
			Ratios:  []result.Ratio{{Name: fmt.Sprintf("4 KiB %s QD1 %v, busy_poll auto (default): median over nbdkit's", rw, place), Num: iser, Den: nbdkit, Metric: result.P50, Op: "<=", Want: 0.6, Bound: boundSpin}},
		},
		Place: place, Quick: rw == "randread" && place == proc.Pinned,
		Contenders: append(trio(l), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")),
	}
	r.Contenders = append(r.Contenders, ours(iserWait, "ours, waiting", l, nil, "--busy-poll=0"))
	r.Ratios = append(r.Ratios, result.Ratio{Name: fmt.Sprintf("4 KiB %s QD1 %v, waiting (busy_poll 0): median over nbdkit's", rw, place), Num: iserWait, Den: nbdkit, Metric: result.P50, Op: "<=", Want: 0.9, Bound: boundWait})
	poll := ours(iserPoll, "ours, polling", l, nil, busyPoll)
	poll.Slow = rw != "randread"
	r.Contenders = append(r.Contenders, poll, onePage(boundWait, "wait", how), onePage(boundSpin, "spin", how))
	q := result.Ratio{Name: fmt.Sprintf("4 KiB %s QD1 %v, busy_poll: median over nbdkit's", rw, place), Num: iserPoll, Den: nbdkit, Metric: result.P50, Bound: boundSpin}
	if place == proc.Pinned { // unpinned, both ends may come to spin on one core
		q.Op, q.Want = "<=", 0.25
	}
	r.Ratios = append(r.Ratios, q)
	return r
}

// onePage is a command at a time in C, "read" or "write", whose ends wait or spin.
func onePage(name, how, op string) Contender {
	return inC(name, "pingpong", served, how, op, millis)
}

// autoRow is the default at depth 1 ten times: it is not to be fast in one run and slow in another.
func autoRow(place proc.Placement) Row {
	l := peers.Load{RW: "randread", BS: "4k", Depth: 1}
	spread := func(what, metric string) result.Ratio {
		return result.Ratio{Name: fmt.Sprintf("4 KiB randread QD1 %v, busy_poll auto (default), ten runs: largest %s over least", place, what),
			Num: iser, Metric: metric, Spread: true, Op: "<=", Want: 1.5, Bound: boundSpin}
	}
	spin := onePage(boundSpin, "spin", "read")
	return Row{
		Row: result.Row{
			ID: fmt.Sprintf("randread-4k-qd1-auto-%v", place), Title: fmt.Sprintf("4 KiB randread, queue depth 1, busy_poll auto, ten runs, %v", place),
			Metrics: []string{result.P50, result.P99, result.IOPS},
			Ratios:  []result.Ratio{spread("median", result.P50), spread("99th percentile", result.P99)},
		},
		Place: place, Least: 10,
		Contenders: []Contender{ours(iser, "ours", l, nil), spin},
	}
}

// deepRow is 4 KiB at random with many commands outstanding. Writes have no program in C beside
// them, and a limit of their own for what they cost.
func deepRow(rw string, depth int, place proc.Placement) Row {
	l := peers.Load{RW: rw, BS: "4k", Depth: depth}
	id, load, title := fmt.Sprintf("%s-4k-qd%d", rw, depth), fmt.Sprintf("4 KiB %s QD%d", rw, depth), fmt.Sprintf("4 KiB %s, queue depth %d", rw, depth)
	if place == proc.Free {
		id, load, title = id+"-free", load+" free", title+", free"
	}
	r := Row{
		Row: result.Row{
			ID: id, Title: title,
			Metrics: []string{result.IOPS, result.CPUBoth, result.CPUServer, result.P50, result.P99, result.P999},
		},
		Place: place, Quick: rw == "randread" && depth == 32 && place == proc.Pinned,
		Contenders: append(trio(l), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")),
	}
	crc, off := boundPagesCRC, boundPages
	if rw == "randread" {
		r.Contenders = append(r.Contenders, pages(off, 1, depth, 0), pages(crc, 1, depth, 0, "crc"))
	} else {
		crc, off = "", ""
	}
	ratio := func(name, num, den, metric string, op string, want float64, bound, boundDen string) {
		if want == 0 {
			op = ""
		}
		r.Ratios = append(r.Ratios, result.Ratio{Name: load + name, Num: num, Den: den, Metric: metric, Op: op, Want: want, Bound: bound, BoundDen: boundDen})
	}
	iops, cpu, cpuOff, overOff, overISER := 0.0, 0.18, 0.16, 0.0, 0.0 // wanted
	if depth == 32 {
		overOff, overISER = 0.9, 0.85
		if place == proc.Pinned {
			iops = 3
		}
	}
	if rw == "randwrite" {
		cpu, cpuOff = 0.35, 0
	}
	ratio(": 99.9th percentile over nbdkit's", iser, nbdkit, result.P999, "", 0, "", "")
	ratio(": IOPS over nbdkit's", iser, nbdkit, result.IOPS, ">=", iops, crc, "")
	ratio(": CPU-s/GiB of both sides over nbdkit's", iser, nbdkit, result.CPUBoth, "<=", cpu, crc, "")
	ratio(", CRC off: CPU-s/GiB of both sides over nbdkit's", iserNoCRC, nbdkit, result.CPUBoth, "<=", cpuOff, off, "")
	ratio(", CRC off: IOPS over nbdkit's", iserNoCRC, nbdkit, result.IOPS, "", 0, off, "")
	ratio(": IOPS with CRC over without", iser, iserNoCRC, result.IOPS, ">=", overOff, crc, off)
	ratio(": IOPS of iSCSI over TCP over iSER's", tcp, iser, result.IOPS, ">=", overISER, "", "")
	return r
}

// mixRow is seven reads and three writes in ten.
func mixRow() Row {
	l := peers.Load{RW: "randrw", Reads: 70, BS: "4k", Depth: 32}
	return Row{
		Row: result.Row{
			ID: "randrw70-4k-qd32", Title: "4 KiB randrw, 70 % reads, queue depth 32",
			Metrics: []string{result.IOPS, result.CPUBoth, result.P50, result.P99, result.P999},
			Ratios: []result.Ratio{
				{Name: "4 KiB randrw 70/30 QD32: IOPS over nbdkit's", Num: iser, Den: nbdkit, Metric: result.IOPS, Op: ">=", Want: 3},
				{Name: "4 KiB randrw 70/30 QD32: 99.9th percentile over nbdkit's", Num: iser, Den: nbdkit, Metric: result.P999},
			},
		},
		Reps:       3,
		Contenders: append(trio(l), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")),
	}
}

// databaseRow writes pages of databases, the longest writes that travel with their commands over
// iSER (ADR 223).
func databaseRow() Row {
	l := peers.Load{RW: "randwrite", BS: "16k", Depth: 8}
	return Row{
		Row: result.Row{
			ID: "randwrite-16k-qd8", Title: "16 KiB randwrite, queue depth 8",
			Metrics: []string{result.IOPS, result.BW, result.CPUBoth, result.P50, result.P99},
			Ratios: []result.Ratio{
				{Name: "16 KiB randwrite QD8: IOPS over nbdkit's", Num: iser, Den: nbdkit, Metric: result.IOPS},
				{Name: "16 KiB randwrite QD8: CPU-s/GiB of both sides over nbdkit's", Num: iser, Den: nbdkit, Metric: result.CPUBoth},
				{Name: "16 KiB randwrite QD8, CRC off: IOPS over those of iSCSI over TCP", Num: iserNoCRC, Den: tcp, Metric: result.IOPS},
			},
		},
		Reps:       3,
		Contenders: append(trio(l), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")),
	}
}

// largeRow compares with our own RDMA Write under the congestion control that
// our target chooses within one host.
func largeRow(rw string, depth int) Row {
	l := peers.Load{RW: rw, BS: "1m", Depth: depth}
	name := fmt.Sprintf("1 MiB %s QD%d", rw, depth)
	r := Row{
		Row: result.Row{
			ID: fmt.Sprintf("%s-1m-qd%d", rw, depth), Title: fmt.Sprintf("1 MiB %s, queue depth %d", rw, depth),
			Metrics: []string{result.BW, result.CPUServer, result.CPUClient, result.P99},
			Ratios: []result.Ratio{
				{Name: name + ": bandwidth over nbdkit's", Num: iser, Den: nbdkit, Metric: result.BW, Op: ">=", Want: 1, Bound: boundFPDUsCRC},
				{Name: name + ": bandwidth with CRC over without", Num: iser, Den: iserNoCRC, Metric: result.BW, Op: ">=", Want: 0.85, Bound: boundFPDUsCRC, BoundDen: boundFPDUs},
				{Name: name + ": bandwidth over nbdkit's with reno", Num: iser, Den: nbdkitReno, Metric: result.BW},
				{Name: name + ": bandwidth over our RDMA Write walking 1 GiB, reno", Num: iser, Den: writeWalkReno, DenRow: "rdma-write-1m", Metric: result.BW, Op: ">=", Want: 0.9},
				{Name: name + ", CRC off: bandwidth over our RDMA Write walking 1 GiB, reno", Num: iserNoCRC, Den: writeWalkReno, DenRow: "rdma-write-1m", Metric: result.BW},
			},
		},
		Quick:      rw == "read" && depth == 8,
		Contenders: append(trio(l), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")),
	}
	reno := fioOn(nbdkitReno, peers.NbdkitReno, l, "nbdkit", "ip", "bash")
	reno.Slow = true
	how := map[string]string{"read": "take", "write": "send"}[rw] // what the client does
	r.Contenders = append(r.Contenders, reno,
		inC(boundFPDUs, "stream", served, how, "fpdu", "1024", millis, "spin"), inC(boundFPDUsCRC, "stream", served, how, "crc", "1024", millis, "spin")) // as ours do by default
	if rw == "read" {
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: name + ": target CPU-s/GiB over nbdkit's", Num: iser, Den: nbdkit, Metric: result.CPUServer, Op: "<=", Want: 0.7, Bound: boundFPDUsCRC},
			result.Ratio{Name: name + ", CRC off: target CPU-s/GiB over nbdkit's", Num: iserNoCRC, Den: nbdkit, Metric: result.CPUServer, Bound: boundFPDUs})
	}
	return r
}

// sweepRows are for the plots: throughput and latency by block size and depth.
func sweepRows() (rows []Row) {
	for _, depth := range []int{1, 4, 16, 64} {
		rows = append(rows, sweepRow("4k", depth))
	}
	for _, bs := range []string{"16k", "64k", "256k", "1m"} {
		rows = append(rows, sweepRow(bs, 16))
	}
	return rows
}

func sweepRow(bs string, depth int) Row {
	l := peers.Load{RW: "randread", BS: bs, Depth: depth}
	return Row{
		Row: result.Row{
			ID: fmt.Sprintf("sweep-%s-qd%d", bs, depth), Title: fmt.Sprintf("sweep: %s randread, queue depth %d", bs, depth),
			Metrics: []string{result.IOPS, result.BW, result.P50, result.P99, result.CPUBoth},
		},
		Reps:       3,
		Contenders: []Contender{ours(iser, "ours", l, nil), ours(tcp, "ours", l, peers.TCP), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")},
	}
}
