// Package plots draws a run's figures as SVG.
package plots

import (
	"fmt"
	"image/color"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"softiser/benchmarks/internal/result"
)

// point is one x of a line plot: the row that holds it.
type point struct {
	label string
	row   string
}

// line is a plot of one figure over rows, a line for each contender.
type line struct {
	file, title, x, y string
	metric            string
	scale             float64
	points            []point
	contenders        []string
}

var (
	byDepth = []point{{"1", "sweep-4k-qd1"}, {"4", "sweep-4k-qd4"}, {"16", "sweep-4k-qd16"}, {"64", "sweep-4k-qd64"}}
	bySize  = []point{{"4", "sweep-4k-qd16"}, {"16", "sweep-16k-qd16"}, {"64", "sweep-64k-qd16"}, {"256", "sweep-256k-qd16"}, {"1024", "sweep-1m-qd16"}}
	swept   = []string{"iSER", "iSCSI over TCP", "nbdkit memory"}
)

var lines = []line{
	{"iops-by-depth.svg", "4 KiB random reads", "queue depth", "1000 IOPS", result.IOPS, 1e-3, byDepth, swept},
	{"latency-by-depth.svg", "4 KiB random reads, median latency", "queue depth", "µs", result.P50, 1e-3, byDepth, swept},
	{"latency-by-size.svg", "random reads, queue depth 16, median latency", "block size, KiB", "µs", result.P50, 1e-3, bySize, swept},
	{"throughput-by-size.svg", "random reads, queue depth 16", "block size, KiB", "GB/s", result.BW, 1e-9, bySize, swept},
	{"cpu-by-size.svg", "random reads, queue depth 16, both sides", "block size, KiB", "CPU seconds per GiB", result.CPUBoth, 1, bySize, swept},
}

// Draw writes every plot whose rows were measured into dir and returns their
// file names.
func Draw(run *result.Run, dir string) (files []string, err error) {
	for _, l := range lines {
		ok, err := l.draw(run, filepath.Join(dir, l.file))
		if err != nil {
			return files, fmt.Errorf("%s: %w", l.file, err)
		}
		if ok {
			files = append(files, l.file)
		}
	}
	for _, b := range []struct {
		file, row, title, y, metric string
		scale                       float64
	}{
		{"cpu-4k.svg", "randread-4k-qd32", "4 KiB random reads, queue depth 32", "CPU seconds per GiB", result.CPUBoth, 1},
		{"cpu-1m.svg", "read-1m-qd8", "1 MiB reads, queue depth 8", "server CPU seconds per GiB", result.CPUServer, 1},
		{"sessions.svg", "sessions", "4 KiB random reads, queue depth 4 per session", "1000 IOPS", result.IOPS, 1e-3},
		{"sessions-p99.svg", "sessions", "4 KiB random reads, queue depth 4 per session: 99th percentile", "ms", result.P99, 1e-6},
		{"attach-4k.svg", "attach-randread-4k", "attach: 4 KiB random reads, queue depth 32", "1000 IOPS", result.IOPS, 1e-3},
	} {
		ok, err := bars(run, b.row, b.metric, b.scale, b.title, b.y, filepath.Join(dir, b.file))
		if err != nil {
			return files, fmt.Errorf("%s: %w", b.file, err)
		}
		if ok {
			files = append(files, b.file)
		}
	}
	return files, nil
}

// errPoints are the extremes of the repetitions around the median.
type errPoints struct {
	plotter.XYs
	plotter.YErrors
}

// draw writes the plot as SVG to path. It reports whether any contender of it was
// measured in run.
func (l *line) draw(run *result.Run, path string) (bool, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = l.title, l.x, l.y
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	any := false
	for i, c := range l.contenders {
		var pts errPoints
		for x, pt := range l.points {
			s := run.Stat(pt.row, c, l.metric)
			if s.N == 0 {
				continue
			}
			pts.XYs = append(pts.XYs, plotter.XY{X: float64(x), Y: s.Median * l.scale})
			pts.YErrors = append(pts.YErrors, struct{ Low, High float64 }{(s.Median - s.Min) * l.scale, (s.Max - s.Median) * l.scale})
		}
		if len(pts.XYs) == 0 {
			continue
		}
		any = true
		ln, dots, err := plotter.NewLinePoints(pts.XYs)
		if err != nil {
			return false, err
		}
		ln.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
		ln.Width, dots.Shape = vg.Points(1.5), plotutil.Shape(i)
		errs, err := plotter.NewYErrorBars(pts)
		if err != nil {
			return false, err
		}
		errs.Color = plotutil.Color(i)
		p.Add(ln, dots, errs)
		p.Legend.Add(c, ln, dots)
	}
	if !any {
		return false, nil
	}
	labels := make([]string, len(l.points))
	for i, pt := range l.points {
		labels[i] = pt.label
	}
	p.NominalX(labels...)
	return true, save(p, len(labels), 0.25, path)
}

// bars draws one figure of one row, a bar for each contender.
func bars(run *result.Run, row, metric string, scale float64, title, y, path string) (bool, error) {
	var values plotter.Values
	var names []string
	var pts errPoints
	for _, c := range run.Contenders(row) {
		s := run.Stat(row, c, metric)
		if s.N == 0 {
			continue
		}
		pts.XYs = append(pts.XYs, plotter.XY{X: float64(len(values)), Y: s.Median * scale})
		pts.YErrors = append(pts.YErrors, struct{ Low, High float64 }{(s.Median - s.Min) * scale, (s.Max - s.Median) * scale})
		values = append(values, s.Median*scale)
		names = append(names, strings.ReplaceAll(c, " ", "\n"))
	}
	if len(values) == 0 {
		return false, nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = title, y
	b, err := plotter.NewBarChart(values, 1*vg.Centimeter)
	if err != nil {
		return false, err
	}
	b.Color, b.LineStyle.Width = color.RGBA{R: 70, G: 120, B: 180, A: 255}, 0
	errs, err := plotter.NewYErrorBars(pts)
	if err != nil {
		return false, err
	}
	p.Add(b, errs)
	p.NominalX(names...)
	return true, save(p, len(names), 0.6, path)
}

// save writes a plot of n columns with room around what is drawn.
func save(p *plot.Plot, n int, side float64, path string) error {
	p.Title.Padding = vg.Points(8)
	p.X.Min, p.X.Max = -side, float64(n-1)+side
	p.Y.Min, p.Y.Max = 0, 1.1*p.Y.Max
	return p.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}
