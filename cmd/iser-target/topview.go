package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"softiser/target"
	"softiser/target/scsi"
)

// topView is what a target has done between two looks. Rates are per second.
type topView struct {
	State       string          `json:"state"`
	Uptime      time.Duration   `json:"uptime_ns"`
	Interval    time.Duration   `json:"interval_ns"`
	NotServed   int             `json:"not_served"` // LUNs and namespaces
	Total       topRates        `json:"total"`
	Volumes     []topVolume     `json:"volumes"`
	Sessions    []topSession    `json:"sessions"`
	Controllers []topController `json:"controllers"`
}

// topRates are operations and bytes per second.
type topRates struct {
	ReadIOPS   float64 `json:"read_iops"`
	ReadBytes  float64 `json:"read_bytes_per_second"`
	WriteIOPS  float64 `json:"write_iops"`
	WriteBytes float64 `json:"write_bytes_per_second"`
}

// topVolume is a volume, whoever uses it.
type topVolume struct {
	Name string `json:"name"`
	topRates
	ReadLatency  time.Duration `json:"read_latency_ns"` // mean; 0: nothing was read
	ReadP99      time.Duration `json:"read_p99_ns"`
	WriteLatency time.Duration `json:"write_latency_ns"`
	WriteP99     time.Duration `json:"write_p99_ns"`
	Queue        float64       `json:"queue"`           // reads and writes in execution, on average
	Waiting      int           `json:"waiting_for_qos"` // commands, now
}

// topSession is a session of an initiator.
type topSession struct {
	TSIH uint16 `json:"tsih"`
	topPeer
}

// topController is a controller of an NVMe host.
type topController struct {
	Subsystem string `json:"subsystem"`
	ID        uint16 `json:"controller_id"`
	topPeer
}

// topPeer is what both of them are.
type topPeer struct {
	Peer      string `json:"peer"` // name of the initiator or host
	Transport string `json:"transport"`
	Busy      int    `json:"outstanding_commands"` // now
	topRates
}

func (r *topRates) sum() float64 { return r.ReadIOPS + r.WriteIOPS }

// work is what something has done so far.
type work struct{ reads, read, writes, written uint64 }

// rates are those of what came to it since before, over a time. What was not there before, or
// has begun anew, has done all of it.
func (w work) rates(before work, over time.Duration) topRates {
	per := func(n, b uint64) float64 {
		if n < b {
			b = 0
		}
		return float64(n-b) / max(over.Seconds(), 1e-3)
	}
	return topRates{per(w.reads, before.reads), per(w.read, before.read), per(w.writes, before.writes), per(w.written, before.written)}
}

// newTopView compares two looks that lie so far apart.
func newTopView(before, now *target.Status, over time.Duration) *topView {
	v := &topView{State: now.State, Uptime: now.Uptime, Interval: over, Volumes: []topVolume{}, Sessions: []topSession{}, Controllers: []topController{}}
	for range now.Unserved() {
		v.NotServed++
	}
	v.volumes(before, now)
	type key struct {
		subsystem string
		id        uint16
		peer      string
	}
	past := map[key]work{}
	for i := range before.Sessions {
		s := &before.Sessions[i]
		past[key{"", s.TSIH, s.Initiator}] = work{s.Reads, s.BytesOut, s.Writes, s.BytesIn}
	}
	for _, c := range before.Controllers {
		past[key{c.Subsystem, c.ID, c.Host}] = work{c.Reads, c.ReadBytes, c.Writes, c.WriteBytes}
	}
	for i := range now.Sessions {
		s := &now.Sessions[i]
		w := work{s.Reads, s.BytesOut, s.Writes, s.BytesIn}
		v.Sessions = append(v.Sessions, topSession{s.TSIH, topPeer{s.Initiator, s.Transport, s.Outstanding, w.rates(past[key{"", s.TSIH, s.Initiator}], over)}})
	}
	for _, c := range now.Controllers {
		w := work{c.Reads, c.ReadBytes, c.Writes, c.WriteBytes}
		v.Controllers = append(v.Controllers, topController{c.Subsystem, c.ID, topPeer{c.Host, c.Transport, c.Outstanding, w.rates(past[key{c.Subsystem, c.ID, c.Host}], over)}})
	}
	slices.SortStableFunc(v.Sessions, func(a, b topSession) int { return cmp.Compare(b.sum(), a.sum()) })
	slices.SortStableFunc(v.Controllers, func(a, b topController) int { return cmp.Compare(b.sum(), a.sum()) })
	return v
}

// volumes enters the volumes and their sum.
func (v *topView) volumes(before, now *target.Status) {
	past := map[string]work{}
	for _, x := range before.Volumes {
		past[x.Name] = work{x.Stats.Reads, x.Stats.ReadBytes, x.Stats.Writes, x.Stats.WriteBytes}
	}
	was, is := volumeLatencies(before), volumeLatencies(now)
	for _, x := range now.Volumes {
		w := work{x.Stats.Reads, x.Stats.ReadBytes, x.Stats.Writes, x.Stats.WriteBytes}
		t := topVolume{Name: x.Name, topRates: w.rates(past[x.Name], v.Interval), Waiting: int(x.Stats.Throttling.Waiting)}
		read := between(was[x.Name].reads, is[x.Name].reads)
		write := between(was[x.Name].writes, is[x.Name].writes)
		t.ReadLatency, t.ReadP99 = read.mean(), read.percentile(0.99)
		t.WriteLatency, t.WriteP99 = write.mean(), write.percentile(0.99)
		t.Queue = float64(read.sum+write.sum) / float64(max(v.Interval, 1)) // Little's law
		v.Volumes = append(v.Volumes, t)
		v.Total.ReadIOPS += t.ReadIOPS
		v.Total.ReadBytes += t.ReadBytes
		v.Total.WriteIOPS += t.WriteIOPS
		v.Total.WriteBytes += t.WriteBytes
	}
	slices.SortStableFunc(v.Volumes, func(a, b topVolume) int { return cmp.Compare(b.sum(), a.sum()) })
}

// latencies are those of a time.
type latencies struct {
	count   int64
	sum     time.Duration
	buckets map[time.Duration]int64
}

// between is what has come to histograms, each list added up. Where there is less than before,
// a place of the volume has gone: nothing is known.
func between(before, now []*scsi.Latency) latencies {
	d := latencies{buckets: map[time.Duration]int64{}}
	add := func(all []*scsi.Latency, sign int64) {
		for _, l := range all {
			d.count += sign * int64(l.Count)
			d.sum += time.Duration(sign) * l.Sum
			for _, b := range l.Buckets {
				d.buckets[b.Below] += sign * int64(b.Count)
			}
		}
	}
	add(now, 1)
	add(before, -1)
	if d.count <= 0 || d.sum < 0 {
		return latencies{}
	}
	return d
}

func (d *latencies) mean() time.Duration {
	if d.count == 0 {
		return 0
	}
	return d.sum / time.Duration(d.count)
}

// percentile is the end of the bucket that the share p of all falls into.
func (d *latencies) percentile(p float64) time.Duration {
	var bounds []time.Duration
	for b := range d.buckets {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	rank, n := int64(math.Ceil(p*float64(d.count))), int64(0)
	for _, b := range bounds {
		if n += d.buckets[b]; n >= rank && n > 0 {
			return b
		}
	}
	return 0
}
