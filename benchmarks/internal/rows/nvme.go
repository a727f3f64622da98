package rows

import (
	"context"
	"fmt"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
	"softiser/initiator/bench"
	"softiser/initiator/nvmf"
)

// Names of contenders over NVMe; digests of NVMe/TCP are off unless the name has them, and
// so is the CRC of MPA under NVMe/RDMA.
const (
	nvmeRDMA     = "NVMe/RDMA, no CRC"
	nvmeRDMAPoll = "NVMe/RDMA, no CRC, busy_poll"
	nvmeTCP      = "NVMe/TCP"
	nvmePoll     = "NVMe/TCP, busy_poll"
	nvmeDigests  = "NVMe/TCP, digests"
	nvmeQueues   = "NVMe/TCP, 4 queues"
)

// fourQueues has the host connect four I/O queues instead of one.
const fourQueues = "--nr-queues=4"

// digests are both of NVMe/TCP: over headers and over data.
var digests = []string{"--hdr-digest", "--data-digest"}

// nvmeRows: one volume, at once a namespace over NVMe/TCP and NVMe/RDMA and a LUN over iSER
// without CRC, beside nbdkit. Several queues are measured where both sides may use both cores.
func nvmeRows() []Row {
	return []Row{
		nvmeQD1Row(),
		nvmeDepthRow(32, proc.Pinned), nvmeDepthRow(32, proc.Free),
		nvmeDepthRow(128, proc.Pinned), nvmeDepthRow(128, proc.Free),
		nvmeLargeRow("read"), nvmeLargeRow("write"),
		nvmeSyscallRow(), nvmeAllocRow(),
	}
}

// overNVMe is our host and target over NVMe/TCP.
func overNVMe(name string, l peers.Load, extra ...string) Contender {
	return ours(name, "both, no CRC", l, peers.NVMe, extra...)
}

// overNVMeRDMA is the same over NVMe/RDMA.
func overNVMeRDMA(name, target string, l peers.Load, extra ...string) Contender {
	return ours(name, target, l, peers.NVMeRDMA, append(extra, "--crc=off")...)
}

// besideNVMe are those that NVMe/TCP is compared with: iSER with the same target, and nbdkit.
func besideNVMe(l peers.Load) []Contender {
	return []Contender{ours(iserNoCRC, "both, no CRC", l, nil, "--crc=off"), fioOn(nbdkit, peers.Nbdkit, l, "nbdkit")}
}

func nvmeQD1Row() Row {
	l := peers.Load{RW: "randread", BS: "4k", Depth: 1}
	over := func(num string) result.Ratio {
		return result.Ratio{Name: "4 KiB randread QD1, " + num + ": median over nbdkit's", Num: num, Den: nbdkit, Metric: result.P50}
	}
	poll := over(nvmePoll)
	poll.Op, poll.Want = "<=", 0.25
	return Row{
		Row: result.Row{
			ID: "nvme-randread-4k-qd1", Title: "NVMe: 4 KiB randread, queue depth 1, pinned",
			Metrics: []string{result.P50, result.P99, result.IOPS, result.CPUBoth},
			Ratios:  []result.Ratio{poll, over(nvmeTCP), over(nvmeRDMAPoll), over(iserPoll)},
		},
		Reps: 3,
		Contenders: []Contender{
			overNVMe(nvmeTCP, l),
			ours(nvmePoll, "both, polling", l, peers.NVMe, busyPoll),
			overNVMeRDMA(nvmeRDMAPoll, "both, polling", l, busyPoll),
			ours(iserPoll, "both, polling", l, nil, "--crc=off", busyPoll),
			fioOn(nbdkit, peers.Nbdkit, l, "nbdkit"),
		},
	}
}

// nvmeDepthRow is 4 KiB random reads at one queue depth: NVMe/TCP, and pinned NVMe/RDMA,
// beside iSER and nbdkit.
func nvmeDepthRow(depth int, place proc.Placement) Row {
	l := peers.Load{RW: "randread", BS: "4k", Depth: depth}
	load := fmt.Sprintf("4 KiB randread QD%d %v", depth, place)
	over := func(num, den, metric, what string) result.Ratio {
		return result.Ratio{Name: fmt.Sprintf("%s, %s: %s over %s", load, num, what, den), Num: num, Den: den, Metric: metric}
	}
	overISER, overNBD := over(nvmeTCP, iserNoCRC, result.IOPS, "IOPS"), over(nvmeTCP, nbdkit, result.IOPS, "IOPS")
	r := Row{
		Row: result.Row{
			ID: fmt.Sprintf("nvme-randread-4k-qd%d-%v", depth, place), Title: fmt.Sprintf("NVMe: 4 KiB randread, queue depth %d, %v", depth, place),
			Metrics: []string{result.IOPS, result.CPUBoth, result.CPUServer, result.P50, result.P99},
		},
		Place: place, Reps: 3,
		Contenders: append([]Contender{overNVMe(nvmeTCP, l)}, besideNVMe(l)...),
	}
	if place == proc.Free {
		r.Contenders = append(r.Contenders, overNVMe(nvmeQueues, l, fourQueues))
		r.Ratios = []result.Ratio{overISER, overNBD, over(nvmeQueues, nvmeTCP, result.IOPS, "IOPS")}
		return r
	}
	if depth == 32 {
		overISER.Op, overISER.Want = ">=", 0.95
		overNBD.Op, overNBD.Want = ">=", 4
	}
	r.Contenders = append(r.Contenders, overNVMe(nvmeDigests, l, digests...), overNVMeRDMA(nvmeRDMA, "both, no CRC", l))
	r.Ratios = []result.Ratio{
		overISER, overNBD,
		over(nvmeRDMA, iserNoCRC, result.IOPS, "IOPS"),
		over(nvmeRDMA, iserNoCRC, result.CPUBoth, "CPU-s/GiB of both sides"),
		over(nvmeTCP, nbdkit, result.CPUBoth, "CPU-s/GiB of both sides"),
		over(nvmeDigests, nvmeTCP, result.IOPS, "IOPS"),
	}
	return r
}

func nvmeLargeRow(rw string) Row {
	l := peers.Load{RW: rw, BS: "1m", Depth: 8}
	over := func(num, den string) result.Ratio {
		return result.Ratio{Name: fmt.Sprintf("1 MiB %s QD8, %s: bandwidth over that of %s", rw, num, den), Num: num, Den: den, Metric: result.BW}
	}
	wanted := over(nvmeTCP, nbdkit)
	wanted.Op, wanted.Want, wanted.Bound = ">=", 1.2, boundStream
	how := map[string]string{"read": "take", "write": "send"}[rw] // what the client does
	return Row{
		Row: result.Row{
			ID: "nvme-" + rw + "-1m", Title: "NVMe: 1 MiB " + rw + ", queue depth 8",
			Metrics: []string{result.BW, result.CPUServer, result.CPUClient, result.P99},
			Ratios:  []result.Ratio{wanted, over(nvmeDigests, nbdkit), over(nvmeTCP, iserNoCRC), over(nvmeRDMA, iserNoCRC)},
		},
		Contenders: append(append([]Contender{overNVMe(nvmeTCP, l), overNVMe(nvmeDigests, l, digests...), overNVMeRDMA(nvmeRDMA, "both, no CRC", l)}, besideNVMe(l)...),
			inC(boundStream, "stream", served, how, "plain", "1024", millis, "spin")), // as ours do by default
	}
}

// nvmeSyscallRow counts the calls of both sides as syscallRow does.
func nvmeSyscallRow() Row {
	l := peers.Load{RW: "randread", BS: "4k", Depth: 32}
	r := Row{
		Row: result.Row{
			ID: "nvme-syscalls-qd32", Title: "NVMe/TCP: system calls per 4 KiB randread QD32",
			Metrics: []string{result.Count, result.DataCalls, result.WaitCalls, result.FutexCall, result.Naps, result.OwnCalls},
		},
		Reps: 3, More: time.Second / 2,
	}
	for _, side := range []string{"target", "initiator"} {
		r.Contenders = append(r.Contenders, callsOf(side, "both, no CRC", peers.NVMe, l))
	}
	return r
}

// nvmeAllocRow counts heap allocations as allocRow does.
func nvmeAllocRow() Row {
	r := Row{
		Row:  result.Row{ID: "nvme-allocations", Title: "NVMe/TCP: allocations per 4 KiB randread", Metrics: []string{result.Count}},
		Reps: 3, More: time.Second,
	}
	for _, side := range []struct {
		name  string
		count counter
	}{{"target", targetMallocs}, {"initiator", ownMallocs}} {
		r.Contenders = append(r.Contenders, allocContender(side.name, "randread", "both, metrics", openNVMe, side.count))
		r.Ratios = append(r.Ratios, result.Ratio{Name: r.Title + ", " + side.name, Num: side.name, Metric: result.Count, Op: "<=", Want: 0.01})
	}
	return r
}

// openNVMe opens the volume of a server over NVMe/TCP from this process.
func openNVMe(ctx context.Context, s *peers.Server) (bench.LUN, error) {
	cfg, err := nvmf.ParseURL(peers.NVMe(s.URL))
	if err != nil {
		return nil, err
	}
	ns, err := nvmf.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return ns, nil
}
