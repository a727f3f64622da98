package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// version is what reports call the program, in place of fio's.
const version = "iser-initiator-1.0"

// WriteHeader prints the lines that fio prints before a run.
func WriteHeader(w io.Writer, jobs []*Job) {
	clones := 0
	for _, j := range jobs {
		fmt.Fprintf(w, "%s: (g=%d): rw=%s, bs=(R) %v, (W) %v, (T) %v, ioengine=softiser, iodepth=%d\n",
			j.Name, j.group, j.RWName, j.BS[dirRead], j.BS[dirWrite], j.BS[dirTrim], j.IODepth)
		if clones += j.NumJobs; j.NumJobs > 1 {
			fmt.Fprintln(w, "...")
		}
	}
	plural := ""
	if clones > 1 {
		plural = "s"
	}
	fmt.Fprintf(w, "%s\nStarting %d job%s\n\n", version, clones, plural)
}

// WriteText prints the report as fio does for people.
func (r *Report) WriteText(w io.Writer) {
	for _, s := range r.Groups {
		s.writeText(w, r.Started)
	}
	r.writeGroups(w)
}

// writeText writes a job's part of the report as fio prints it.
func (s *Stats) writeText(w io.Writer, started time.Time) {
	j := s.Job
	fmt.Fprintf(w, "%s: (groupid=%d, jobs=%d): err=%2d", j.Name, j.group, s.Jobs, s.Code)
	if s.FirstErr != nil {
		fmt.Fprintf(w, " (%v)", s.FirstErr)
	}
	fmt.Fprintf(w, ": %s\n", started.Format("Mon Jan _2 15:04:05 2006"))
	if j.Description != "" {
		fmt.Fprintf(w, "  Description  : [%s]\n", j.Description)
	}
	for d := range datas {
		if s.Dir[d].IOs > 0 {
			s.writeDir(w, dir(d))
		}
	}
	if sy := &s.Dir[dirSync]; sy.IOs > 0 {
		fmt.Fprintf(w, "  fsync/fdatasync/sync_file_range:\n")
		writeMoments(w, "sync", &sy.Lat)
		writePercentiles(w, "sync", sy.ClatHist, j.Percentiles)
	}
	s.writeShares(w)
	el := max(s.Elapsed.Seconds(), 1e-9)
	fmt.Fprintf(w, "  cpu          : usr=%.2f%%, sys=%.2f%%, ctx=%d, majf=%d, minf=%d\n",
		100*s.Usage.user.Seconds()/el, 100*s.Usage.sys.Seconds()/el, s.Usage.ctx, s.Usage.majf, s.Usage.minf)
	depth := s.depthShares()
	fmt.Fprintf(w, "  IO depths    : 1=%s, 2=%s, 4=%s, 8=%s, 16=%s, 32=%s, >=64=%s\n",
		pct(depth[0]), pct(depth[1]), pct(depth[2]), pct(depth[3]), pct(depth[4]), pct(depth[5]), pct(depth[6]))
	one := "0=0.0%, 4=100.0%, 8=0.0%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.0%"
	fmt.Fprintf(w, "     submit    : %s\n     complete  : %s\n", one, one)
	fmt.Fprintf(w, "     issued rwts: total=%d,%d,%d,%d short=0,0,0,0 dropped=0,0,0,0\n",
		s.Dir[dirRead].IOs, s.Dir[dirWrite].IOs, s.Dir[dirTrim].IOs, s.Dir[dirSync].IOs)
	l := j.LatencyTarget
	fmt.Fprintf(w, "     latency   : target=%d, window=%d, percentile=%.2f%%, depth=%d\n", l.Target.Nanoseconds(), l.Window.Microseconds(), l.Percent, s.depth())
	if s.Steady != nil {
		s.Steady.writeText(w)
	}
	t := &s.Session
	fmt.Fprintf(w, "  session      : commands=%d, retries=%d, losses=%d, replayed=%d, payload copied=%dB, syscalls=%d/%d\n",
		t.Commands, t.Retries, t.Losses, t.Replayed, t.PayloadCopied, t.SendCalls, t.ReceiveCalls)
	s.writeVerify(w)
}

// depth is the one that latency_target has found, or iodepth.
func (s *Stats) depth() int {
	if s.FoundDepth > 0 {
		return s.FoundDepth
	}
	return s.Job.IODepth
}

// writeVerify adds what fio leaves to its stderr.
func (s *Stats) writeVerify(w io.Writer) {
	if s.Job.Verify == VerifyNone {
		return
	}
	fmt.Fprintf(w, "  verify       : crc32c, blocks=%d, bad=%d\n", s.Verified, s.Bad)
	if why := s.verifiedNothing(); why != "" {
		fmt.Fprintf(w, "     %s\n", why)
	}
	for _, m := range s.Mismatches {
		fmt.Fprintf(w, "     %v\n", m)
	}
	if n := s.Bad - uint64(len(s.Mismatches)); n > 0 {
		fmt.Fprintf(w, "     … and %d more\n", n)
	}
}

// verifiedNothing says so of a job that was only to verify, and why; "" of others. It is no error: a run
// that is killed before its first flush leaves a ledger that promises nothing.
func (s *Stats) verifiedNothing() string {
	j := s.Job
	if checks := j.VerifyOnly || j.VerifyState != "" && !j.writes(); !checks || s.Verified > 0 || s.doing != "" {
		return ""
	}
	known := "acknowledged"
	if s.Job.VerifyDurable {
		known = "flushed"
	}
	return "nothing was verified: of the blocks that were read none is known to have been " + known
}

// writeDir writes what the report says of one direction.
func (s *Stats) writeDir(w io.Writer, d dir) {
	t, j := &s.Dir[d], s.Job
	bw := perSec(t.Bytes, t.Runtime)
	tail := ""
	if d == dirWrite {
		tail = "; 0 zone resets"
	}
	fmt.Fprintf(w, "  %s: IOPS=%s, BW=%s (%s)(%s/%dmsec)%s\n", d, num2str(perSec(t.IOs, t.Runtime), 4, 1000, ""),
		binRate(bw), decRate(bw), num2str(float64(t.Bytes), 4, 1024, "B"), t.Runtime.Milliseconds(), tail)
	writeMoments(w, "slat", &t.Slat)
	writeMoments(w, "clat", &t.Clat)
	writeMoments(w, " lat", &t.Lat)
	if j.SlatPercentile {
		writePercentiles(w, "slat", t.SlatHist, j.Percentiles)
	}
	if j.ClatPercentile {
		writePercentiles(w, "clat", t.ClatHist, j.Percentiles)
	}
	if j.LatPercentile {
		writePercentiles(w, "lat", t.LatHist, j.Percentiles)
	}
	if t.BW.N > 0 {
		div, unit := 1024.0, "KiB/s"
		if t.BW.Max >= 1<<30 {
			div, unit = 1<<20, "MiB/s"
		}
		mean := t.BW.sum / div
		fmt.Fprintf(w, "   bw (%5s): min=%5.0f, max=%5.0f, per=%3.2f%%, avg=%5.2f, stdev=%5.2f, samples=%d\n", unit,
			float64(t.BW.Min)/div, float64(t.BW.Max)/div, math.Min(100, 100*t.BW.sum/max(bw, 1)), mean, t.BW.Stddev()/div, t.BW.N)
		fmt.Fprintf(w, "   iops        : min=%5d, max=%5d, avg=%5.2f, stdev=%5.2f, samples=%d\n",
			t.Rate.Min, t.Rate.Max, t.Rate.sum, t.Rate.Stddev(), t.Rate.N)
	}
}

// writeMoments prints a slat/clat/lat line in the unit that fio would choose.
func writeMoments(w io.Writer, name string, m *Moments) {
	div, unit := latencyUnit(m.Min, m.Max, m.Stddev())
	fmt.Fprintf(w, "    %s (%s): min=%s, max=%s, avg=%5.2f, stdev=%5.2f\n", name, unit,
		num2str(float64(m.Min/int64(div)), 6, 1000, ""), num2str(float64(m.Max/int64(div)), 6, 1000, ""), m.Mean/div, m.Stddev()/div)
}

// latencyUnit chooses nsec, usec or msec as fio does: the largest in which the
// line keeps its meaning.
func latencyUnit(lo, hi int64, dev float64) (div float64, unit string) {
	switch {
	case float64(lo) > 2_000_000 && float64(hi) > 99_999_000 && dev > 1_000_000:
		return 1e6, "msec"
	case float64(lo) > 2000 && float64(hi) > 99_999 && dev > 1000:
		return 1e3, "usec"
	}
	return 1, "nsec"
}

// writePercentiles prints fio's table, four to a line.
func writePercentiles(w io.Writer, name string, h *Histogram, list []float64) {
	if h == nil || len(list) == 0 {
		return
	}
	v := h.Percentiles(list)
	div, unit := int64(1), "nsec"
	if v[0] > 2000 && v[len(v)-1] > 99_999 {
		div, unit = 1000, "usec"
		if v[0] > 2_000_000 && v[len(v)-1] > 99_999_000 {
			div, unit = 1_000_000, "msec"
		}
	}
	fmt.Fprintf(w, "    %s percentiles (%s):", name, unit)
	for i, p := range list {
		if i%4 == 0 {
			fmt.Fprint(w, "\n     | ")
		}
		end := ", "
		if i == len(list)-1 {
			end = ""
		} else if i%4 == 3 {
			end = ","
		}
		fmt.Fprintf(w, "%5.2fth=[%5d]%s", p, (v[i]+div/2)/div, end)
	}
	fmt.Fprintln(w)
}

// bounds of fio's latency shares, in the unit of each list.
var (
	latencyNs = []int64{2, 4, 10, 20, 50, 100, 250, 500, 750, 1000}
	latencyUs = latencyNs
	latencyMs = []int64{2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000}
)

// latencyShares returns the percentage of operations in each of fio's latency
// classes: below the n-th bound of ns, us, ms, and above the last.
func (s *Stats) latencyShares() (ns, us, ms []float64, over float64) {
	var all Histogram
	for d := range datas {
		all.Merge(s.Dir[d].ClatHist)
	}
	bounds := append([]int64{}, latencyNs...)
	for _, b := range latencyUs {
		bounds = append(bounds, b*1000)
	}
	for _, b := range latencyMs {
		bounds = append(bounds, b*1_000_000)
	}
	v := all.shares(bounds)
	n, u := len(latencyNs), len(latencyNs)+len(latencyUs)
	return v[:n], v[n:u], v[u : len(v)-1], v[len(v)-1]
}

func (s *Stats) writeShares(w io.Writer) {
	ns, us, ms, over := s.latencyShares()
	line := func(unit string, bounds []int64, v []float64, over float64) {
		var parts []string
		for i, p := range v {
			if p > 0 {
				parts = append(parts, fmt.Sprintf("%d=%s", bounds[i], share(p)))
			}
		}
		if over > 0 {
			parts = append(parts, fmt.Sprintf(">=%d=%s", bounds[len(bounds)-1], share(over)))
		}
		for len(parts) > 0 {
			n := min(5, len(parts))
			fmt.Fprintf(w, "  lat (%s)   : %s\n", unit, strings.Join(parts[:n], ", "))
			parts = parts[n:]
		}
	}
	line("nsec", latencyNs, ns, 0)
	line("usec", latencyUs, us, 0)
	line("msec", latencyMs, ms, over)
}

func (s *Stats) depthShares() (v [7]float64) {
	total := uint64(0)
	for _, n := range s.Depth {
		total += n
	}
	for i, n := range s.Depth {
		if total > 0 {
			v[i] = 100 * float64(n) / float64(total)
		}
	}
	return v
}

// pct and share never round something to nothing, as in fio.
func pct(p float64) string {
	if p > 0 && p < 0.1 {
		p = 0.1
	}
	return fmt.Sprintf("%.1f%%", p)
}

func share(p float64) string { return fmt.Sprintf("%.2f%%", max(p, 0.01)) }

// writeGroups prints the run status of each group.
func (r *Report) writeGroups(w io.Writer) {
	last := -1
	for _, s := range r.Clones {
		g := s.Job.group
		if g == last {
			continue
		}
		last = g
		var members []*Stats
		for _, m := range r.Clones {
			if m.Job.group == g {
				members = append(members, m)
			}
		}
		fmt.Fprintf(w, "\nRun status group %d (all jobs):\n", g)
		for d := range datas {
			writeGroupLine(w, dir(d), members)
		}
	}
}

// writeGroupLine writes fio's line of a group and direction: bandwidth together, of the slowest and fastest job, and times.
func writeGroupLine(w io.Writer, d dir, members []*Stats) {
	var bytes uint64
	var lo, hi float64
	var short, long time.Duration
	n := 0
	for _, m := range members {
		t := &m.Dir[d]
		if t.IOs == 0 {
			continue
		}
		bw := perSec(t.Bytes, t.Runtime)
		if n++; n == 1 {
			lo, hi, short, long = bw, bw, t.Runtime, t.Runtime
		}
		lo, hi = min(lo, bw), max(hi, bw)
		short, long = min(short, t.Runtime), max(long, t.Runtime)
		bytes += t.Bytes
	}
	if n == 0 {
		return
	}
	agg := perSec(bytes, long)
	fmt.Fprintf(w, "%7s: bw=%s (%s), %s-%s (%s-%s), io=%s (%s), run=%d-%dmsec\n", strings.ToUpper(d.String()),
		binRate(agg), decRate(agg), binRate(lo), binRate(hi), decRate(lo), decRate(hi),
		num2str(float64(bytes), 4, 1024, "B"), num2str(float64(bytes), 4, 1000, "B"), short.Milliseconds(), long.Milliseconds())
}

func perSec(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
