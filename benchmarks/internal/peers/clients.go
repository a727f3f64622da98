package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"softiser/benchmarks/internal/result"
)

// Load is an access pattern in fio's terms.
type Load struct {
	RW    string // randread, randwrite, randrw, read, write
	Reads int    // share of reads in randrw, percent
	BS    string
	Depth int
	Jobs  int      // clones, each with its own connection; zero: 1
	Bytes int64    // moved once, instead of for a time
	Once  int64    // moved once at most, and not longer than for that time, bytes
	Extra []string // further options of our bench
	Job   string   // of our bench: the job that counts, of those that Extra names; empty: all
}

// pattern are the options of what is moved, which fio and our bench have in common.
func (l *Load) pattern() []string {
	argv := []string{"--rw=" + l.RW, "--bs=" + l.BS, fmt.Sprintf("--iodepth=%d", l.Depth), fmt.Sprintf("--numjobs=%d", max(l.Jobs, 1))}
	if l.Reads > 0 {
		argv = append(argv, fmt.Sprintf("--rwmixread=%d", l.Reads))
	}
	return argv
}

// fioReport is the part of fio's JSON that is used; our bench prints the same.
type fioReport struct {
	Jobs []struct {
		Jobname     string
		Error       int
		Read, Write fioDir
		Session     struct{ Losses int } // ours only
	}
}

type fioDir struct {
	Bytes float64 `json:"io_bytes"`
	BW    float64 `json:"bw_bytes"`
	IOPS  float64
	Clat  struct{ Percentile map[string]float64 } `json:"clat_ns"`
	Lat   struct{ Percentile map[string]float64 } `json:"lat_ns"`
}

// parseFio reads figures and bytes moved out of fio's JSON.
func parseFio(b []byte) (result.Values, float64, error) { return parseJob(b, "") }

// parseJob is parseFio for the job of that name alone; the others count only as the reason
// of a failure.
func parseJob(b []byte, name string) (result.Values, float64, error) {
	if i := bytes.IndexByte(b, '{'); i > 0 {
		b = b[i:] // fio's notes come first
	}
	var r fioReport
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, 0, fmt.Errorf("not fio's JSON: %w", err)
	}
	v := result.Values{}
	total := 0.0
	for _, j := range r.Jobs {
		if j.Error != 0 {
			return nil, 0, fmt.Errorf("the load failed with error %d", j.Error)
		}
		if j.Session.Losses != 0 {
			return nil, 0, fmt.Errorf("the session was lost %d times", j.Session.Losses)
		}
		if name != "" && j.Jobname != name {
			continue
		}
		for _, d := range []fioDir{j.Read, j.Write} {
			if d.Bytes == 0 {
				continue
			}
			total += d.Bytes
			v[result.IOPS] += d.IOPS
			v[result.BW] += d.BW
			p := d.Lat.Percentile
			if p == nil {
				p = d.Clat.Percentile
			}
			v[result.P50] = max(v[result.P50], p["50.000000"])
			v[result.P99] = max(v[result.P99], p["99.000000"])
			if x, ok := p["99.900000"]; ok {
				v[result.P999] = max(v[result.P999], x)
			}
		}
	}
	if total == 0 {
		return nil, 0, errors.New("nothing was moved")
	}
	return v, total, nil
}

// Bench loads s by our own generator; url may differ from s.URL.
func (e *Env) Bench(ctx context.Context, s *Server, url string, l Load) (result.Values, error) {
	return e.benchUnder(ctx, nil, s, url, l)
}

// benchUnder is Bench started by another program.
func (e *Env) benchUnder(ctx context.Context, under []string, s *Server, url string, l Load) (result.Values, error) {
	parse := func(b []byte) (result.Values, float64, error) { return parseJob(b, l.Job) }
	return e.client(ctx, s, nil, slices.Concat(under, e.benchArgs(url, l)), parse)
}

// benchArgs is the command line of our generator.
func (e *Env) benchArgs(url string, l Load) []string {
	return slices.Concat([]string{e.Ours("iser-initiator"), "bench", url}, l.pattern(), e.extent(l, "--time-based"),
		[]string{"--group-reporting", "--lat-percentiles=1", "--eta=never", "--output-format=json"}, l.Extra)
}

// extent are the options of how much l moves: for the time of a measurement (timed is what
// says so), or so many bytes.
func (e *Env) extent(l Load, timed string) []string {
	switch {
	case l.Bytes > 0:
		return []string{fmt.Sprintf("--size=%d", l.Bytes)}
	case l.Once > 0:
		return []string{fmt.Sprintf("--size=%d", l.Once), fmt.Sprintf("--runtime=%dms", e.Dur.Milliseconds())}
	}
	return []string{timed, fmt.Sprintf("--runtime=%dms", e.Dur.Milliseconds())}
}

// Fill writes the whole volume once, so that no one reads holes.
func (e *Env) Fill(ctx context.Context, s *Server, url string) error {
	argv := []string{e.Ours("iser-initiator"), "bench", url, "--rw=write", "--bs=1m", "--iodepth=8", "--eta=never", "--output-format=json",
		fmt.Sprintf("--size=%d", VolumeSize)}
	_, err := e.client(ctx, s, nil, argv, parseFio)
	return err
}

// Fio loads an NBD server by fio's nbd engine.
func (e *Env) Fio(ctx context.Context, s *Server, l Load) (result.Values, error) {
	return e.client(ctx, s, nil, e.fioArgs(s, l, "--time_based", fmt.Sprintf("--runtime=%dms", e.Dur.Milliseconds())), parseFio)
}

// FillFio writes the whole volume once.
func (e *Env) FillFio(ctx context.Context, s *Server) error {
	_, err := e.client(ctx, s, nil, e.fioArgs(s, Load{RW: "write", BS: "1m", Depth: 8}), parseFio)
	return err
}

func (e *Env) fioArgs(s *Server, l Load, more ...string) []string {
	return slices.Concat(s.Under, []string{"fio", "--name=load", "--ioengine=nbd", "--uri=" + s.URL}, l.pattern(),
		[]string{fmt.Sprintf("--size=%d", VolumeSize), "--thread", "--group_reporting", "--lat_percentiles=1", "--output-format=json"}, more)
}

var perfAverage = regexp.MustCompile(`iops average (\d+)`)

// IscsiPerf loads an iSCSI target by libiscsi's iscsi-perf (reads only).
func (e *Env) IscsiPerf(ctx context.Context, s *Server, url string, l Load) (result.Values, error) {
	bs, err := parseSize(l.BS)
	if err != nil {
		return nil, err
	}
	secs := max(1, int(e.Dur.Seconds()+0.5))
	argv := []string{"iscsi-perf", "-m", strconv.Itoa(l.Depth), "-b", strconv.Itoa(bs / 512), "-t", strconv.Itoa(secs)}
	if strings.HasPrefix(l.RW, "rand") {
		argv = append(argv, "-r")
	}
	return e.client(ctx, s, nil, append(argv, url), func(b []byte) (result.Values, float64, error) {
		all := perfAverage.FindAllSubmatch(b, -1)
		if len(all) == 0 {
			return nil, 0, fmt.Errorf("no average in %q", b[max(0, len(b)-200):])
		}
		iops, err := strconv.ParseFloat(string(all[len(all)-1][1]), 64)
		return result.Values{result.IOPS: iops, result.BW: iops * float64(bs)}, iops * float64(bs*secs), err
	})
}

var qemuTook = regexp.MustCompile(`Run completed in ([0-9.]+) seconds`)

// QemuBench loads an iSCSI target by qemu-img bench: a fixed count of operations, one every
// 1 MiB and 4 KiB, around the volume.
func (e *Env) QemuBench(ctx context.Context, s *Server, url string, l Load) (result.Values, error) {
	bs, err := parseSize(l.BS)
	if err != nil {
		return nil, err
	}
	count := int(40_000 * e.Dur.Seconds())
	argv := []string{"qemu-img", "bench", "-f", "raw", "-t", "none", "-c", strconv.Itoa(count), "-d", strconv.Itoa(l.Depth), "-s", strconv.Itoa(bs), "-S", strconv.Itoa(1<<20 + bs)}
	if l.RW == "write" {
		argv = append(argv, "-w")
	}
	return e.client(ctx, s, nil, append(argv, url), func(b []byte) (result.Values, float64, error) {
		m := qemuTook.FindSubmatch(b)
		if m == nil {
			return nil, 0, fmt.Errorf("no time in %q", b[max(0, len(b)-200):])
		}
		secs, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil || secs <= 0 {
			return nil, 0, fmt.Errorf("a time of %q", m[1])
		}
		iops := float64(count) / secs
		return result.Values{result.IOPS: iops, result.BW: iops * float64(bs)}, float64(count) * float64(bs), nil
	})
}

func parseSize(s string) (int, error) {
	mul := 1
	switch {
	case strings.HasSuffix(s, "k"):
		mul, s = 1<<10, s[:len(s)-1]
	case strings.HasSuffix(s, "m"):
		mul, s = 1<<20, s[:len(s)-1]
	}
	n, err := strconv.Atoi(s)
	return n * mul, err
}
