package svgplot

import "math"

// scale is an axis of values.
type scale struct {
	log       bool
	low, high float64
	ticks     []float64
}

// has reports whether v can be drawn.
func (s *scale) has(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (!s.log || v > 0)
}

// at is where v stands: 0 … 1, from below.
func (s *scale) at(v float64) float64 {
	if s.log {
		return math.Log(v/s.low) / math.Log(s.high/s.low)
	}
	return v / s.high
}

// scale chooses the axis that all lines of the panel fit on.
func (p *Panel) scale() scale {
	s := scale{log: p.Log, low: math.Inf(1)}
	for _, l := range p.Lines {
		for _, pt := range l.Points {
			if s.has(pt.Y) {
				s.low, s.high = min(s.low, pt.Y), max(s.high, pt.Y)
			}
		}
	}
	s.high = max(s.high, p.Least)
	if !s.log {
		s.low = 0
		if s.high <= 0 {
			s.high = 1
		}
		step := nice(s.high / 5)
		for s.ticks = []float64{0}; s.ticks[len(s.ticks)-1] < s.high*(1-1e-9); {
			s.ticks = append(s.ticks, step*float64(len(s.ticks)))
		}
		s.high = s.ticks[len(s.ticks)-1]
		return s
	}
	if math.IsInf(s.low, 1) { // nothing to draw
		s.low, s.high = 1, 10
	}
	// From and to a 1, 2 or 5 of a decade; where there are many decades, only the 1s are named.
	all := []float64{1, 2, 5}
	first, last := math.Floor(math.Log10(s.low)), math.Ceil(math.Log10(s.high))
	if last-first > 3 {
		all = []float64{1}
	}
	for e := first; e <= last+1; e++ {
		for _, m := range all {
			v := m * math.Pow(10, e)
			switch {
			case v <= s.low*(1+1e-9):
				s.ticks = []float64{v} // the greatest of those below all
			case s.ticks[len(s.ticks)-1] < s.high*(1-1e-9) || len(s.ticks) < 2:
				s.ticks = append(s.ticks, v)
			}
		}
	}
	s.low, s.high = s.ticks[0], s.ticks[len(s.ticks)-1]
	return s
}

// nice is the smallest of 1, 2 and 5 times a power of ten that is not below v.
func nice(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// ticks are at most n+1 round values from 0 to span.
func ticks(span float64, n int) []float64 {
	if !(span > 0) {
		return []float64{0}
	}
	step := nice(span / float64(n))
	var l []float64
	for i := 0; float64(i)*step <= span*(1+1e-9); i++ {
		l = append(l, math.Round(float64(i)*step*1e9)/1e9)
	}
	return l
}
