package lossy

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var curve = flag.String("curve", "", "write the throughput over a lossy way to this file, with all points")

// Rate is what a way of Curve carries, bytes per second.
const Rate = 2.5e9

// Curve measures throughput over a way of Rate and a round trip of twice Delay, at shares of
// packets lost in both directions: at few of them, or at all for -curve, which names the table.
// Those of columns whose names end in B/s are plotted (make bench-loss).
func Curve(t testing.TB, columns []string, measure func(lost float64) []float64) {
	points := []float64{0, 0.0001, 0.001, 0.01, 0.05}
	if *curve != "" {
		points = []float64{0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05}
	}
	var table strings.Builder
	fmt.Fprintln(&table, "lost,"+strings.Join(columns, ","))
	for _, p := range points {
		fmt.Fprintf(&table, "%g", p)
		for _, v := range measure(p) {
			fmt.Fprintf(&table, ",%.0f", v)
		}
		fmt.Fprintln(&table)
	}
	t.Logf("\n%s", &table)
	if *curve != "" {
		if err := os.WriteFile(*curve, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
