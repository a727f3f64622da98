package bench

import (
	"errors"
	"time"
)

// awayPatience is how long after the end of the jobs' time a target that is away may come back and
// answer what is in flight. A session waits longer (--replacement-timeout).
const awayPatience = 10 * time.Second

// errAway is in the errors of operations that were given up for that reason.
var errAway = errors.New("the target is away, and the job's time is over")

// absence measures for how long a stage has waited for nothing but targets that are away. Storage that
// takes its time, at a target that is there, is waited for, and so is a flush or a verification,
// whatever it takes.
type absence struct{ since time.Duration }

// over looks at the clones, and reports whether it has been long enough.
func (a *absence) over(clones []*clone, now time.Duration) bool {
	waits := false
	for _, c := range clones {
		switch {
		case c.live.at() == phaseDone || !c.started.Load() && c.job.WaitFor != "": // which waits for another clone
		case c.overdue(now):
			waits = true
		default:
			a.since = 0
			return false
		}
	}
	if !waits {
		a.since = 0
		return false
	}
	if a.since == 0 {
		a.since = now
	}
	return now-a.since >= awayPatience
}

// overdue reports whether the clone's time is over and one of its targets away.
func (c *clone) overdue(now time.Duration) bool {
	if !c.started.Load() || c.deadline == 0 || now < c.deadline || c.live.at() != phaseRun {
		return false
	}
	for _, l := range c.luns {
		if s := l.Stats(); s.Losses > 0 && s.Losses >= s.Logins {
			return true
		}
	}
	return false
}

// abandon ends the clone: what it has in flight is about to fail.
func (c *clone) abandon() {
	c.abandoned.Store(true)
	c.stop()
}
