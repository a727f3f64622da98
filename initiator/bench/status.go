package bench

import "slices"

// results copies what the clone has done so far. A slot that only asks goes through
// the list of finished ones, so that the runner, whoever that is, makes the copy
// between two operations.
func (c *clone) results() *Stats {
	if !c.started.Load() {
		return &Stats{Job: c.job, Jobs: 1, doing: "waiting"}
	}
	s := &slot{c: c, ask: make(chan *Stats, 1)}
	c.mu.Lock()
	c.ready.push(s)
	c.runAndUnlock()
	return <-s.ask
}

// copyResults is the runner's side of [clone.results].
func (c *clone) copyResults() *Stats {
	s := c.stats
	now, running := c.now(), c.live.at() == phaseRun
	for d := range s.Dir {
		t := &s.Dir[d]
		t.SlatHist, t.ClatHist, t.LatHist = t.SlatHist.clone(), t.ClatHist.clone(), t.LatHist.clone()
		if running && t.IOs > 0 {
			t.Runtime, s.Elapsed = now-c.began, now-c.began
		}
	}
	if c.live.at() == phaseVerify {
		s.Dir[dirRead].Runtime += now - c.verifyBegan
	}
	if s.doing = c.live.at().String(); running && !c.ramped {
		s.doing = "ramp"
	}
	if c.search != nil {
		s.FoundDepth = c.search.depth
	}
	s.Usage = processUsage().sub(c.usage0)
	s.Mismatches = slices.Clone(s.Mismatches)
	return &s
}

// status is the report of a stage that runs and of the clones that have ended
// before it.
func (w *stageRun) status(s *sampler) *Report {
	rep := &Report{Started: w.started}
	for _, c := range w.before {
		rep.add(&c.stats)
	}
	seen := map[LUN]bool{}
	for i, c := range w.clones {
		st := c.results()
		for d := range datas {
			st.Dir[d].BW, st.Dir[d].Rate = s.series[i][d].bw, s.series[i][d].iops
		}
		for _, l := range w.luns[i] {
			if !seen[l] {
				seen[l] = true
				st.addSession(l.Stats())
			}
		}
		rep.add(st)
	}
	return rep
}
