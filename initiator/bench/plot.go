package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"softiser/internal/digits"
	"softiser/internal/svgplot"
)

// plotted are the percentiles that are drawn.
var plotted = []struct {
	percent float64
	name    string
	style   svgplot.Style
}{{50, "p50", svgplot.Solid}, {99, "p99", svgplot.Dashed}, {99.9, "p99.9", svgplot.Dotted}}

// writePlot draws latency percentiles, bandwidth and operations per second over the time of the
// run.
func (r *Report) writePlot(w io.Writer, t *timeline) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := svgplot.Figure{Title: "iser-initiator bench", Span: t.end.Seconds()}
	seen := map[string]bool{}
	var total [datas]DirStats
	for _, s := range r.Clones {
		j := s.Job
		f.Marks = addMark(f.Marks, j)
		line := fmt.Sprintf("%s: rw=%s, bs=(R) %v, (W) %v, iodepth=%d, numjobs=%d", j.Name, j.RWName, j.BS[dirRead], j.BS[dirWrite], j.IODepth, j.NumJobs)
		if !seen[line] && len(seen) < 4 {
			seen[line] = true
			f.Subtitle = append(f.Subtitle, line)
		}
		for d := range total {
			total[d].merge(&s.Dir[d])
		}
	}
	latency := svgplot.Panel{Title: "Completion latency", Log: true, Text: func(ns float64) string { return time.Duration(ns).String() }}
	bandwidth := svgplot.Panel{Title: "Bandwidth", Text: func(v float64) string { return num2str(v, 4, 1000, "B/s") }, Least: 1}
	operations := svgplot.Panel{Title: "Operations", Text: func(v float64) string { return num2str(v, 4, 1000, "IOPS") }, Least: 1}
	for d := range datas {
		if total[d].IOs == 0 {
			continue
		}
		name := dir(d).String()
		f.Subtitle = append(f.Subtitle, strings.TrimSuffix(fmt.Sprintf("%s: %d operations, %s%s", name, total[d].IOs, num2str(float64(total[d].Bytes), 4, 1000, "B"), percentileWords(total[d].ClatHist)), ", "))
		percentiles, bw, ios := t.series(d)
		for i, p := range plotted {
			latency.Lines = append(latency.Lines, svgplot.Line{Name: name + " " + p.name, Colour: int(d), Style: p.style, Points: percentiles[i]})
		}
		bandwidth.Lines = append(bandwidth.Lines, svgplot.Line{Name: name, Colour: int(d), Points: bw})
		operations.Lines = append(operations.Lines, svgplot.Line{Name: name, Colour: int(d), Points: ios})
	}
	f.Panels = []svgplot.Panel{latency, bandwidth, operations}
	return f.Write(w)
}

// addMark adds the end of a job's ramp, before which nothing counts for the report.
func addMark(marks []float64, j *Job) []float64 {
	if at := (j.StartDelay + j.RampTime).Seconds(); j.RampTime > 0 && !slices.Contains(marks, at) {
		marks = append(marks, at)
	}
	return marks
}

func percentileWords(h *Histogram) (words string) {
	if h == nil {
		return ""
	}
	for _, p := range plotted {
		words += fmt.Sprintf(", %s %v", p.name, digits.Round(time.Duration(h.Percentiles([]float64{p.percent})[0])))
	}
	return words
}

// series are the points of one direction, each in the middle of its tick. The last tick is as
// long as the run was; one that is too short to have a rate is left out.
func (t *timeline) series(d int) (percentiles [][]svgplot.Point, bw, ios []svgplot.Point) {
	percentiles = make([][]svgplot.Point, len(plotted))
	for i, x := range t.ticks {
		from := time.Duration(i) * t.length()
		spent := min(t.length(), t.end-from)
		if i > 0 && spent < t.length()/2 {
			break
		}
		at, seconds := (from + spent/2).Seconds(), max(spent.Seconds(), 1e-6)
		var n uint64
		var h *Histogram
		if h = x.lat[d]; h != nil {
			n = h.N()
		}
		bw = append(bw, svgplot.Point{X: at, Y: float64(x.bytes[d]) / seconds})
		ios = append(ios, svgplot.Point{X: at, Y: float64(n) / seconds})
		for k, p := range plotted {
			v := math.NaN()
			if n > 0 {
				v = float64(h.Percentiles([]float64{p.percent})[0])
			}
			percentiles[k] = append(percentiles[k], svgplot.Point{X: at, Y: v})
		}
	}
	return percentiles, bw, ios
}
