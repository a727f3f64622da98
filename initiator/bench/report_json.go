package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
)

// The JSON report has fio's names, nesting, order and units: bw in KiB/s,
// runtime in ms, latencies in ns, shares in per cent. What fio does not have
// ("session", "verify", "error_message") stands at the end of a job.

// float is a number with fio's six decimals.
type float float64

func (f float) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(f), 'f', 6, 64), nil
}

// pairs is an object whose keys keep their order.
type pairs []pair

type pair struct {
	key   string
	value any
}

func (p pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, kv := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(kv.key)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(kv.value)
		if err != nil {
			return nil, err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// WriteJSON prints the report as fio's --output-format=json does; plus adds the
// latency buckets of json+.
func (r *Report) WriteJSON(w io.Writer, global []KV, plus bool) error {
	now := r.Started
	root := pairs{
		{"fio version", version},
		{"timestamp", now.Unix()},
		{"timestamp_ms", now.UnixMilli()},
		{"time", now.Format("Mon Jan _2 15:04:05 2006")},
	}
	if len(global) > 0 {
		var g pairs
		for _, kv := range global {
			g = append(g, pair{kv.Key, kv.Value})
		}
		root = append(root, pair{"global options", g})
	}
	jobs := []pairs{}
	for _, s := range r.Groups {
		jobs = append(jobs, s.json(plus))
	}
	root = append(root, pair{"jobs", jobs}, pair{"disk_util", []any{}})
	b, err := json.Marshal(root)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	out.WriteByte('\n')
	_, err = w.Write(out.Bytes())
	return err
}

// json is a job's part of fio's JSON report; plus adds the bins of json+.
func (s *Stats) json(plus bool) pairs {
	j := s.Job
	opts := pairs{{"name", j.Name}}
	for _, k := range j.order {
		opts = append(opts, pair{k, j.explicit[k]})
	}
	p := pairs{{"jobname", j.Name}, {"groupid", j.group}}
	if j.Description != "" {
		p = append(p, pair{"desc", j.Description})
	}
	p = append(p,
		pair{"error", s.Code},
		pair{"eta", 0},
		pair{"elapsed", int64((s.Elapsed + time.Second - 1) / time.Second)},
		pair{"job options", opts},
	)
	for d := range datas {
		p = append(p, pair{dir(d).String(), s.jsonDir(dir(d), plus)})
	}
	sy := &s.Dir[dirSync]
	lat := jsonMoments(&sy.Lat)
	if sy.IOs > 0 {
		lat = append(lat, pair{"percentile", jsonPercentiles(sy.ClatHist, j.Percentiles)})
	}
	p = append(p, pair{"sync", pairs{{"total_ios", sy.IOs}, {"lat_ns", lat}}})
	el := max(s.Elapsed.Seconds(), 1e-9)
	p = append(p,
		pair{"job_runtime", s.Elapsed.Milliseconds()},
		pair{"usr_cpu", float(100 * s.Usage.user.Seconds() / el)},
		pair{"sys_cpu", float(100 * s.Usage.sys.Seconds() / el)},
		pair{"ctx", s.Usage.ctx},
		pair{"majf", s.Usage.majf},
		pair{"minf", s.Usage.minf},
	)
	p = append(p, s.jsonDepths()...)
	ns, us, ms, over := s.latencyShares()
	p = append(p,
		pair{"latency_ns", jsonShares(latencyNs, ns)},
		pair{"latency_us", jsonShares(latencyUs, us)},
		pair{"latency_ms", append(jsonShares(latencyMs, ms), pair{">=2000", float(over)})},
		pair{"latency_depth", s.depth()},
		pair{"latency_target", j.LatencyTarget.Target.Nanoseconds()},
		pair{"latency_percentile", float(j.LatencyTarget.Percent)},
		pair{"latency_window", j.LatencyTarget.Window.Microseconds()},
	)
	if ss := s.Steady; ss != nil {
		p = append(p, pair{"steadystate", ss.json()})
	}
	t := &s.Session
	p = append(p, pair{"session", pairs{
		{"commands", t.Commands}, {"retries", t.Retries}, {"losses", t.Losses}, {"replayed", t.Replayed},
		{"payload_copied_bytes", t.PayloadCopied}, {"send_calls", t.SendCalls}, {"receive_calls", t.ReceiveCalls},
	}})
	if j.Verify != VerifyNone {
		bad := []string{}
		for _, m := range s.Mismatches {
			bad = append(bad, m.Error())
		}
		v := pairs{{"blocks", s.Verified}, {"bad", s.Bad}, {"mismatches", bad}}
		if why := s.verifiedNothing(); why != "" {
			v = append(v, pair{"note", why})
		}
		p = append(p, pair{"verify", v})
	}
	if s.FirstErr != nil {
		p = append(p, pair{"error_message", s.FirstErr.Error()})
	}
	return p
}

// jsonDir is what the JSON report says of one direction.
func (s *Stats) jsonDir(d dir, plus bool) pairs {
	t, j := &s.Dir[d], s.Job
	bw := perSec(t.Bytes, t.Runtime)
	lat := func(m *Moments, h *Histogram, percentiles bool) pairs {
		p := jsonMoments(m)
		if percentiles && t.IOs > 0 {
			p = append(p, pair{"percentile", jsonPercentiles(h, j.Percentiles)})
			if plus {
				p = append(p, pair{"bins", h.bins()})
			}
		}
		return p
	}
	share := 0.0
	if bw > 0 {
		share = min(100, 100*t.BW.sum/bw)
	}
	return pairs{
		{"io_bytes", t.Bytes},
		{"io_kbytes", t.Bytes >> 10},
		{"bw_bytes", int64(bw)},
		{"bw", int64(bw) >> 10},
		{"iops", float(perSec(t.IOs, t.Runtime))},
		{"runtime", t.Runtime.Milliseconds()},
		{"total_ios", t.IOs},
		{"short_ios", 0},
		{"drop_ios", 0},
		{"slat_ns", lat(&t.Slat, t.SlatHist, j.SlatPercentile)},
		{"clat_ns", lat(&t.Clat, t.ClatHist, j.ClatPercentile)},
		{"lat_ns", lat(&t.Lat, t.LatHist, j.LatPercentile)},
		{"bw_min", t.BW.Min >> 10},
		{"bw_max", t.BW.Max >> 10},
		{"bw_agg", float(share)},
		{"bw_mean", float(t.BW.sum / 1024)},
		{"bw_dev", float(t.BW.Stddev() / 1024)},
		{"bw_samples", t.BW.N},
		{"iops_min", t.Rate.Min},
		{"iops_max", t.Rate.Max},
		{"iops_mean", float(t.Rate.sum)},
		{"iops_stddev", float(t.Rate.Stddev())},
		{"iops_samples", t.Rate.N},
	}
}

func jsonMoments(m *Moments) pairs {
	return pairs{{"min", m.Min}, {"max", m.Max}, {"mean", float(m.Mean)}, {"stddev", float(m.Stddev())}, {"N", m.N}}
}

func jsonPercentiles(h *Histogram, list []float64) pairs {
	p := pairs{}
	for i, v := range h.Percentiles(list) {
		p = append(p, pair{fmt.Sprintf("%.6f", list[i]), v})
	}
	return p
}

// bins lists the buckets that are not empty, as json+ does.
func (h *Histogram) bins() pairs {
	p := pairs{}
	for i, c := range h.count {
		if c > 0 {
			p = append(p, pair{strconv.FormatInt(bucketValue(i), 10), c})
		}
	}
	return p
}

func jsonShares(bounds []int64, v []float64) pairs {
	p := pairs{}
	for i, b := range bounds {
		p = append(p, pair{strconv.FormatInt(b, 10), float(v[i])})
	}
	return p
}

// jsonDepths: every submission and every completion is one request.
func (s *Stats) jsonDepths() pairs {
	level, batch := pairs{}, pairs{}
	v := s.depthShares()
	for i, k := range []string{"1", "2", "4", "8", "16", "32", ">=64"} {
		level = append(level, pair{k, float(v[i])})
	}
	for _, k := range []string{"0", "4", "8", "16", "32", "64", ">=64"} {
		share := float(0)
		if k == "4" {
			share = 100
		}
		batch = append(batch, pair{k, share})
	}
	return pairs{{"iodepth_level", level}, {"iodepth_submit", batch}, {"iodepth_complete", batch}}
}
