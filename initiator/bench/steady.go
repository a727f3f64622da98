package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Steady is when a job has run long enough: one value a second, over Duration,
// deviates from its mean by less than the limit, or its slope is less.
type Steady struct {
	what     string // iops, iops_slope, bw or bw_slope; empty: a job is not ended so
	limit    float64
	percent  bool
	Duration time.Duration
	Ramp     time.Duration // before the first value
}

// setSteady reads WHAT:LIMIT or WHAT:LIMIT%.
func setSteady(j *Job, v string) error {
	what, limit, ok := strings.Cut(strings.ToLower(v), ":")
	switch what {
	case "iops", "iops_slope", "bw", "bw_slope":
	default:
		return errors.New("expected iops, iops_slope, bw or bw_slope, a colon and a limit")
	}
	number, percent := strings.CutSuffix(strings.TrimSpace(limit), "%")
	if strings.HasPrefix(what, "bw") && !percent && ok {
		n, err := parseBytes(number, j.kbBase)
		if err != nil {
			return err
		}
		number = strconv.FormatInt(n, 10)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(n >= 0) {
		return errors.New("expected a limit behind the colon, such as 10 or 0.5%")
	}
	j.Steady.what, j.Steady.limit, j.Steady.percent = what, n, percent
	return nil
}

func (j *Job) checkSteady(fail func(string, ...any) error) error {
	s := &j.Steady
	if s.what == "" && (s.Duration > 0 || s.Ramp > 0) {
		s.what, s.limit, s.percent = "iops_slope", 0.01, true // fio's default
	}
	if s.what != "" && s.Duration < 2*time.Second {
		return fail("steadystate needs a steadystate_duration of 2 s or more: it looks at one value a second")
	}
	return nil
}

// checkSteadyGroups: as in fio, the jobs of a group look for the same state.
func checkSteadyGroups(jobs []*Job) error {
	first := map[int]*Job{}
	for _, j := range jobs {
		f := first[j.group]
		if f == nil {
			first[j.group] = j
		} else if f.Steady != j.Steady {
			return fmt.Errorf("%s: job %s: steadystate must be the same as that of job %s, which is in the same reporting group (add new_group, or write it in the global section)", j.Pos, j.Name, f.Name)
		}
	}
	return nil
}

// steadyState is what one clone, or a group, has been like in the last seconds.
type steadyState struct {
	want      Steady
	clones    []*clone
	ios, byts int64 // counted until the last value
	at        time.Duration
	iops, bw  []float64 // one a second, the last Duration of them
	criterion float64   // what is held against the limit, in its unit
	slope     float64
	deviation float64
	attained  bool
}

// newSteadyStates returns those of a stage: of each clone, or of each group that is
// reported as one.
func newSteadyStates(clones []*clone) (list []*steadyState) {
	groups := map[int]*steadyState{}
	for _, c := range clones {
		if c.job.Steady.what == "" {
			continue
		}
		s := groups[c.job.group]
		if s == nil || !c.job.GroupReporting {
			s = &steadyState{want: c.job.Steady}
			groups[c.job.group] = s
			list = append(list, s)
		}
		s.clones = append(s.clones, c)
		c.stats.Steady = s
	}
	return list
}

// sample enters what was done until now, and ends the clones when that is steady.
func (s *steadyState) sample(now time.Duration) {
	var ios, byts int64
	for _, c := range s.clones {
		for d := range datas {
			ios, byts = ios+c.live.ios[d].Load(), byts+c.live.bytes[d].Load()
		}
	}
	spent := (now - s.at).Seconds()
	fresh := s.at > 0 && ios >= s.ios && spent > 0 // not across the end of a ramp
	iops, bw := float64(ios-s.ios)/spent, float64(byts-s.byts)/spent
	s.ios, s.byts, s.at = ios, byts, now
	if s.attained || !fresh || now < s.want.Ramp+time.Second && s.want.Ramp > 0 {
		return
	}
	s.iops, s.bw = append(s.iops, math.Floor(iops)), append(s.bw, math.Floor(bw))
	n := int(s.want.Duration / time.Second)
	if extra := len(s.iops) - n; extra > 0 {
		s.iops, s.bw = s.iops[extra:], s.bw[extra:]
	}
	if len(s.iops) == n && s.judge() {
		s.attained = true
		for _, c := range s.clones {
			c.concluded.Store(true)
			c.stop()
		}
	}
}

// judge reports whether the present values are steady.
func (s *steadyState) judge() bool {
	values := s.iops
	if strings.HasPrefix(s.want.what, "bw") {
		values = s.bw
	}
	n := float64(len(values))
	var sum, sumXY, sumX, sumXX float64
	for i, v := range values {
		x := float64(i)
		sum, sumXY, sumX, sumXX = sum+v, sumXY+x*v, sumX+x, sumXX+x*x
	}
	mean := sum / n
	if s.isSlope() {
		s.slope = (sumXY - sumX*sum/n) / (sumXX - sumX*sumX/n)
		s.criterion = s.slope
	} else {
		s.deviation = 0
		for _, v := range values {
			s.deviation = max(s.deviation, math.Abs(v-mean))
		}
		s.criterion = s.deviation
	}
	if s.want.percent {
		if mean == 0 {
			return false
		}
		s.criterion *= 100 / mean
	}
	return math.Abs(s.criterion) < s.want.limit
}

func (s *steadyState) isSlope() bool { return strings.HasSuffix(s.want.what, "_slope") }

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

// unit is what criterion and limit are in.
func (s *steadyState) unit() string {
	if s.want.percent {
		return "%"
	}
	return ""
}

func (s *steadyState) writeText(w io.Writer) {
	what, _, _ := strings.Cut(s.want.what, "_")
	kind := " mean dev"
	if s.isSlope() {
		kind = " slope"
	}
	attained := "no"
	if s.attained {
		attained = "yes"
	}
	bw := mean(s.bw)
	fmt.Fprintf(w, "  steadystate  : attained=%s, bw=%s (%s), iops=%s, %s%s=%.3f%s\n",
		attained, binRate(bw), decRate(bw), num2str(mean(s.iops), 4, 1000, ""), what, kind, s.criterion, s.unit())
}

func (s *steadyState) json() pairs {
	attained := 0
	if s.attained {
		attained = 1
	}
	return pairs{
		{"ss", fmt.Sprintf("%s:%f%s", s.want.what, s.want.limit, s.unit())},
		{"duration", int(s.want.Duration / time.Second)},
		{"attained", attained},
		{"criterion", fmt.Sprintf("%f%s", s.criterion, s.unit())},
		{"max_deviation", float(s.deviation)},
		{"slope", float(s.slope)},
		{"data", pairs{
			{"bw_mean", int64(mean(s.bw))},
			{"iops_mean", int64(mean(s.iops))},
			{"iops", wholes(s.iops)},
			{"bw", wholes(s.bw)},
		}},
	}
}

func wholes(values []float64) []int64 {
	out := make([]int64, len(values))
	for i, v := range values {
		out[i] = int64(v)
	}
	return out
}
