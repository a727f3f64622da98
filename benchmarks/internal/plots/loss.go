package plots

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"os"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// DrawLoss draws throughput over the share of packets that are lost, from tables whose first
// column is that, as TestLossCurve of the engines of RoCE writes them: a line for each other
// column whose name ends in B/s. The shares are those of the first table.
func DrawLoss(tables []string, file string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "RoCE over a lossy way, 2.5 GB/s and 200 µs of round trip", "packets lost, %", "GB/s"
	p.BackgroundColor, p.Y.Min, p.Legend.Top = color.White, 0, true
	p.Add(plotter.NewGrid())
	lines := 0
	for _, table := range tables {
		rows, err := lossTable(table)
		if err != nil {
			return err
		}
		for col, name := range rows[0] {
			name, ok := strings.CutSuffix(name, " B/s")
			if !ok {
				continue
			}
			points, shares, err := lossColumn(rows[1:], col)
			if err != nil {
				return fmt.Errorf("%s: %w", table, err)
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Color, dots.Color, dots.Shape = plotutil.Color(lines), plotutil.Color(lines), plotutil.Shape(lines)
			p.Add(line, dots)
			p.Legend.Add(name, line, dots)
			if lines == 0 {
				p.NominalX(shares...)
			}
			lines++
		}
	}
	if lines == 0 {
		return fmt.Errorf("%v: no column ends in B/s", tables)
	}
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, file)
}

// lossTable reads a table with a head and at least one row.
func lossTable(table string) ([][]string, error) {
	f, err := os.Open(table)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", table, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s: no points", table)
	}
	return rows, nil
}

// lossColumn is one line of the plot, in GB/s, with the shares as they are written under it.
func lossColumn(rows [][]string, col int) (points plotter.XYs, shares []string, err error) {
	for i, row := range rows {
		lost, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			return nil, nil, err
		}
		rate, err := strconv.ParseFloat(row[col], 64)
		if err != nil {
			return nil, nil, err
		}
		shares = append(shares, strconv.FormatFloat(lost*100, 'g', -1, 64))
		points = append(points, plotter.XY{X: float64(i), Y: rate / 1e9})
	}
	return points, shares, nil
}
