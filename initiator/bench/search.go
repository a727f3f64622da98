package bench

import (
	"errors"
	"strconv"
	"time"
)

// LatencyTarget is the latency for which a job looks for the greatest depth.
type LatencyTarget struct {
	Target  time.Duration // zero: iodepth is what is kept in flight
	Window  time.Duration // each depth is tried for so long
	Percent float64       // of operations that must be within the target
	Forever bool          // go on adjusting when the depth is found
}

// depthSearch finds the depth as fio does: it doubles from 1 until a window fails,
// then bisects; when nothing changes any more, one more window is measured, and
// that is the result. After each step down, operations of the greater depth are
// let end first.
//
//	1 ─► 2 ─► 4 ─► 8 ─► 16 ✗ ─► 12 ✗ ─► 10 ─► 11 ✗ ─► 10 ─► 10 ─► measured
type depthSearch struct {
	want      LatencyTarget
	top       int // iodepth
	depth     int // operations that may be in flight
	low, high int // known to do, and not to do
	done      int // operations in this window, and
	late      int // how many of them were beyond the target
	since     time.Duration
	stable    int  // successes in a row that left the depth one below high
	draining  bool // nothing is issued until nothing is in flight
	last      bool // the window that is the result
}

func newDepthSearch(j *Job) *depthSearch {
	if j.LatencyTarget.Target == 0 {
		return nil
	}
	return &depthSearch{want: j.LatencyTarget, top: j.IODepth, depth: 1, low: 1, high: j.IODepth}
}

// mayIssue reports whether another operation may be started while so many are in
// flight.
func (s *depthSearch) mayIssue(flight int) bool {
	if s.draining {
		return flight == 0
	}
	return flight < s.depth
}

// window begins anew.
func (s *depthSearch) window(now time.Duration) { s.since, s.done, s.late = now, 0, 0 }

// verdict is what an operation's end leads to.
type verdict uint8

const (
	goOn     verdict = iota
	measure          // forget what was measured: the depth is found
	finished         // it has been measured
	tooSlow          // not even one at a time is within the target
)

// ended enters an operation that took so long.
func (s *depthSearch) ended(now, took time.Duration) verdict {
	if s.draining {
		return goOn
	}
	s.done++
	if took > s.want.Target {
		s.late++
		if s.want.Percent == 100 && !s.down(now) {
			return tooSlow
		}
		if s.want.Percent == 100 {
			return goOn
		}
	}
	if now-s.since < s.want.Window {
		return goOn
	}
	if within := 100 * float64(s.done-s.late) / float64(s.done); within < s.want.Percent {
		s.down(now)
		return goOn
	}
	return s.up(now)
}

// down tries a smaller depth; false: there is none.
func (s *depthSearch) down(now time.Duration) bool {
	if s.depth == 1 {
		return false
	}
	s.high = s.depth
	if s.depth == s.low {
		s.low--
	}
	s.depth, s.stable = (s.depth+s.low)/2, 0
	s.draining = true
	s.window(now)
	return true
}

func (s *depthSearch) up(now time.Duration) verdict {
	before := s.depth
	s.low = s.depth
	if s.depth+1 == s.high {
		if s.stable++; s.stable >= 3 {
			s.high, s.stable = s.high+1, 0
		}
	}
	if s.high != s.top {
		s.depth = (s.depth + s.high) / 2
	} else {
		s.depth *= 2
	}
	s.depth = min(s.depth, s.top)
	s.window(now)
	if s.want.Forever || s.depth != before {
		return goOn
	}
	if s.last {
		return finished
	}
	s.last, s.draining = true, true
	return measure
}

func setTargetPercent(j *Job, v string) error {
	p, err := strconv.ParseFloat(v, 64)
	if err != nil || !(p > 0 && p <= 100) {
		return errors.New("expected a percentage above 0 and not above 100")
	}
	j.LatencyTarget.Percent = p
	return nil
}
