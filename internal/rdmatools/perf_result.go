package rdmatools

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"softiser/rdma"
)

// perfResult is the outcome of one measurement. MB is 10^6 bytes, as in iperf3
// and fio's "MB"; perftest's own MB are 2^20, which --json gives as MiB too.
type perfResult struct {
	iters int
	took  time.Duration
	lat   []time.Duration

	doc perfDoc
}

// perfDoc is what --json prints.
type perfDoc struct {
	Test       string   `json:"test"`
	Provider   string   `json:"provider"`
	QPType     string   `json:"qp_type"`
	Size       int      `json:"size_bytes"`
	Iterations int      `json:"iterations"`
	Depth      int      `json:"tx_depth"`
	CRC        bool     `json:"crc"`
	FPDU       int      `json:"fpdu_bytes,omitempty"`
	MTU        int      `json:"path_mtu,omitempty"`
	Seconds    float64  `json:"seconds"`
	MBps       float64  `json:"bw_mb_per_s,omitempty"`
	MiBps      float64  `json:"bw_mib_per_s,omitempty"`
	MsgRate    float64  `json:"messages_per_s"`
	Latency    *latency `json:"latency_us,omitempty"`
}

// latency is in microseconds.
type latency struct {
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Typical float64 `json:"typical"` // median
	Avg     float64 `json:"avg"`
	Stdev   float64 `json:"stdev"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
}

// fill computes what the report says from the times of a run.
func (r *perfResult) fill(p *perf, info *rdma.ConnInfo) {
	sec := r.took.Seconds()
	r.doc = perfDoc{
		Test: p.kind.name, Size: p.size, Iterations: r.iters, Depth: p.depth, CRC: info.CRC, FPDU: info.MPA.FPDUSize, MTU: info.RoCE.PathMTU, Provider: p.provider, QPType: p.qpType.String(),
		Seconds: sec, MsgRate: float64(r.iters) / sec,
	}
	if !p.kind.latency {
		bytes := float64(r.iters) * float64(p.size)
		r.doc.MBps, r.doc.MiBps = bytes/sec/1e6, bytes/sec/(1<<20)
		return
	}
	if len(r.lat) == 0 {
		return // a single message at the end that answers
	}
	slices.Sort(r.lat)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	at := func(q float64) float64 { return us(r.lat[min(int(q*float64(len(r.lat))), len(r.lat)-1)]) }
	var sum, sq float64
	for _, d := range r.lat {
		sum += us(d)
	}
	avg := sum / float64(len(r.lat))
	for _, d := range r.lat {
		sq += (us(d) - avg) * (us(d) - avg)
	}
	r.doc.Latency = &latency{
		Min: us(r.lat[0]), Max: us(r.lat[len(r.lat)-1]), Typical: at(0.5), Avg: avg,
		Stdev: math.Sqrt(sq / float64(len(r.lat))), P99: at(0.99), P999: at(0.999),
	}
}

func (r *perfResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, &r.doc)
	}
	d := &r.doc
	var err error
	if l := d.Latency; l != nil {
		fmt.Fprintln(w, " #bytes  #iterations   t_min[usec]   t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec]  99%[usec]  99.9%[usec]")
		_, err = fmt.Fprintf(w, " %-7d %-13d %-13.2f %-12.2f %-16.2f %-12.2f %-14.2f %-10.2f %.2f\n", d.Size, d.Iterations, l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
		return err
	}
	fmt.Fprintln(w, " #bytes   #iterations   BW average[MB/sec]   BW average[MiB/sec]   MsgRate[Mpps]")
	_, err = fmt.Fprintf(w, " %-8d %-13d %-20.2f %-21.2f %.6f\n", d.Size, d.Iterations, d.MBps, d.MiBps, d.MsgRate/1e6)
	return err
}
