package bench

import "time"

// sampler reads the live counters of running clones twice a second: for the
// bandwidth and IOPS series of the report and for the progress line.
type sampler struct {
	clones []*clone
	last   []sample
	at     time.Duration
	series [][datas]struct{ bw, iops samples }
}

type sample struct {
	bytes, ios [datas]int64
	begun      uint32
}

func newSampler(clones []*clone) *sampler {
	return &sampler{
		clones: clones,
		last:   make([]sample, len(clones)),
		series: make([][datas]struct{ bw, iops samples }, len(clones)),
	}
}

// take samples all clones at now.
func (s *sampler) take(now time.Duration) *Snapshot {
	dt := (now - s.at).Seconds()
	snap := &Snapshot{Elapsed: now, Interval: now - s.at, Done: -1}
	s.at = now
	var done, known float64
	for i, c := range s.clones {
		ph := c.live.at()
		if ph != phaseDone {
			snap.Running++
			snap.Verify = snap.Verify || ph == phaseVerify
		}
		cur := sample{begun: c.live.begun.Load()}
		anew := cur.begun != s.last[i].begun
		if anew { // what came before is forgotten, here too
			s.series[i] = [datas]struct{ bw, iops samples }{}
		}
		counts := !anew && (cur.begun > 0 || c.job.RampTime == 0)
		for d := range datas {
			cur.bytes[d], cur.ios[d] = c.live.bytes[d].Load(), c.live.ios[d].Load()
			db, di := cur.bytes[d]-s.last[i].bytes[d], cur.ios[d]-s.last[i].ios[d]
			if db < 0 || dt <= 0 {
				continue // the ramp has just ended
			}
			snap.Bytes[d] += float64(db) / dt
			snap.IOs[d] += float64(di) / dt
			if ph == phaseRun && counts && c.job.Dirs[d] && cur.ios[d] > 0 {
				s.series[i][d].bw.add(float64(db) / dt)
				s.series[i][d].iops.add(float64(di) / dt)
			}
		}
		s.last[i] = cur
		if f := c.progress(now, &cur); f >= 0 {
			done += f
			known++
		}
	}
	if known > 0 {
		snap.Done = done / known
	}
	return snap
}

// progress estimates how much of a clone's main phase is over: 0 … 1, or -1.
func (c *clone) progress(now time.Duration, cur *sample) float64 {
	j := c.job
	if c.live.at() != phaseRun {
		return 1
	}
	if j.TimeBased {
		return min(1, float64(now)/float64(j.RampTime+j.Runtime+j.StartDelay))
	}
	total := float64(c.work.offsets.units) * float64(c.work.offsets.unit) * float64(j.Loops)
	if io := j.IOSize.Resolve(int64(total)); io > 0 {
		total = float64(io)
	}
	f := 0.0
	for d := range datas {
		f += float64(cur.bytes[d])
	}
	f /= total
	if j.Runtime > 0 {
		f = max(f, float64(now)/float64(j.RampTime+j.Runtime+j.StartDelay))
	}
	return min(1, f)
}

// store writes the series into the clones' results. All clones are done.
func (s *sampler) store() {
	for i, c := range s.clones {
		for d := range datas {
			c.stats.Dir[d].BW, c.stats.Dir[d].Rate = s.series[i][d].bw, s.series[i][d].iops
		}
	}
}
