package bench

import (
	"fmt"
	"io"
	"strings"
)

// WriteTerse prints one line per job in fio's terse format, version 3
// (fio(1), "TERSE OUTPUT"): fields separated by semicolons, bandwidth in
// KiB/s, latencies in µs.
func (r *Report) WriteTerse(w io.Writer) {
	for _, s := range r.Groups {
		f := []string{"3", version, s.Job.Name, fmt.Sprint(s.Job.group), fmt.Sprint(s.Code)}
		for _, d := range []dir{dirRead, dirWrite} {
			f = append(f, s.terseDir(d)...)
		}
		el := max(s.Elapsed.Seconds(), 1e-9)
		f = append(f, fmt.Sprintf("%.6f%%", 100*s.Usage.user.Seconds()/el), fmt.Sprintf("%.6f%%", 100*s.Usage.sys.Seconds()/el),
			fmt.Sprint(s.Usage.ctx), fmt.Sprint(s.Usage.majf), fmt.Sprint(s.Usage.minf))
		for _, v := range s.depthShares() {
			f = append(f, fmt.Sprintf("%.1f%%", v))
		}
		_, us, ms, over := s.latencyShares()
		for _, v := range append(append(us, ms...), over) {
			f = append(f, fmt.Sprintf("%.2f%%", v))
		}
		fmt.Fprintln(w, strings.Join(f, ";"))
	}
}

// tersePercentiles is how many percentile fields terse always has.
const tersePercentiles = 20

// terseDir is the fields of one direction in fio's terse format, version 3: times in
// microseconds, sizes in KiB.
func (s *Stats) terseDir(d dir) []string {
	t := &s.Dir[d]
	bw := perSec(t.Bytes, t.Runtime)
	f := []string{fmt.Sprint(t.Bytes >> 10), fmt.Sprint(int64(bw) >> 10), fmt.Sprint(int64(perSec(t.IOs, t.Runtime))), fmt.Sprint(t.Runtime.Milliseconds())}
	moments := func(m *Moments) {
		f = append(f, fmt.Sprint(m.Min/1000), fmt.Sprint(m.Max/1000), fmt.Sprintf("%.6f", m.Mean/1000), fmt.Sprintf("%.6f", m.Stddev()/1000))
	}
	moments(&t.Slat)
	moments(&t.Clat)
	var values []int64
	if t.ClatHist != nil {
		values = t.ClatHist.Percentiles(s.Job.Percentiles)
	}
	for i := range tersePercentiles {
		switch {
		case i < len(s.Job.Percentiles) && values != nil:
			f = append(f, fmt.Sprintf("%.6f%%=%d", s.Job.Percentiles[i], values[i]/1000))
		case i < len(s.Job.Percentiles):
			f = append(f, fmt.Sprintf("%.6f%%=0", s.Job.Percentiles[i]))
		default:
			f = append(f, "0%=0")
		}
	}
	moments(&t.Lat)
	share := 0.0
	if bw > 0 {
		share = min(100, 100*t.BW.sum/bw)
	}
	return append(f, fmt.Sprint(t.BW.Min>>10), fmt.Sprint(t.BW.Max>>10), fmt.Sprintf("%.6f%%", share),
		fmt.Sprintf("%.6f", t.BW.sum/1024), fmt.Sprintf("%.6f", t.BW.Stddev()/1024))
}
