package bench

import "time"

// Report is the result of a run.
type Report struct {
	Started time.Time
	Groups  []*Stats // one entry per clone, or per group with group_reporting
	Clones  []*Stats
	// Interrupted: the context ended before the jobs did, so that something of what
	// they should have done is missing.
	Interrupted bool
	// Unverified: part of it is a verification.
	Unverified bool

	byGroup map[int]*Stats
}

// Failed reports whether any operation or check failed.
func (r *Report) Failed() bool {
	for _, s := range r.Clones {
		if s.failed() {
			return true
		}
	}
	return false
}

// collect sums up by clone or by group; cancelled: the context has ended.
func (r *Report) collect(all []*clone, cancelled bool) {
	for _, c := range all {
		cut := c.interrupted(cancelled)
		r.Interrupted = r.Interrupted || cut
		r.Unverified = r.Unverified || cut && c.ledger != nil && (c.job.DoVerify && c.job.writes() || c.job.VerifyOnly)
		r.add(&c.stats)
	}
}

// add enters one clone's results.
func (r *Report) add(s *Stats) {
	r.Clones = append(r.Clones, s)
	if !s.Job.GroupReporting {
		r.Groups = append(r.Groups, s)
		return
	}
	g := r.byGroup[s.Job.group]
	if g == nil {
		if g = (&Stats{}); r.byGroup == nil {
			r.byGroup = map[int]*Stats{}
		}
		r.byGroup[s.Job.group] = g
		r.Groups = append(r.Groups, g)
	}
	g.merge(s)
}
