package plots

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softiser/benchmarks/internal/result"
)

func TestDraw(t *testing.T) {
	run := &result.Run{}
	for rep, v := range []float64{100_000, 110_000, 90_000} {
		for _, row := range []string{"sweep-4k-qd1", "sweep-4k-qd16", "sessions"} {
			run.Samples = append(run.Samples, result.Sample{Row: row, Contender: "iSER", Rep: rep, Values: result.Values{result.IOPS: v, result.P50: 1e9 / v}})
		}
	}
	dir := t.TempDir()
	files, err := Draw(run, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"iops-by-depth.svg", "latency-by-depth.svg", "sessions.svg"} {
		if !slices.Contains(files, want) {
			t.Errorf("%s was not drawn", want)
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, want))
		if err != nil || !strings.Contains(string(b), "<svg") {
			t.Errorf("%s: %v", want, err)
		}
	}
	if slices.Contains(files, "cpu-1m.svg") {
		t.Error("a plot without figures was drawn")
	}
}
