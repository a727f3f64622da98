package plots

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// DrawLoss draws throughput over the share of packets that are lost, from a table whose
// first columns are these two, as TestLossCurve of the engine of RoCE writes it.
func DrawLoss(table, file string) error {
	f, err := os.Open(table)
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", table, err)
	}
	if len(rows) < 2 {
		return fmt.Errorf("%s: no points", table)
	}
	var points plotter.XYs
	var names []string
	for i, row := range rows[1:] {
		lost, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
		rate, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
		names = append(names, strconv.FormatFloat(lost*100, 'g', -1, 64))
		points = append(points, plotter.XY{X: float64(i), Y: rate / 1e9})
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "RDMA Write over RoCE, 2.5 GB/s and 200 µs of round trip", "packets lost, %", "GB/s"
	p.BackgroundColor, p.Y.Min = color.White, 0
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), line, dots)
	p.NominalX(names...)
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, file)
}
