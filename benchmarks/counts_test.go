package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/benchmarks/internal/result"
)

// What is written is read again; a count that has grown is warned of, one that is within
// the noise, new or smaller is not.
func TestCounts(t *testing.T) {
	run := &result.Run{Machine: map[string]string{"cpu": "x", "go": "y"}, Rows: []result.Row{{ID: "r"}}}
	for c, v := range map[string]float64{"same": 2, "noise": 2, "less": 2, "more": 2, "allocations": 0} {
		run.Samples = append(run.Samples, result.Sample{Row: "r", Contender: c, Values: result.Values{result.Count: v, result.Naps: 7}})
	}
	path := filepath.Join(t.TempDir(), "counts.txt")
	if err := os.WriteFile(path, []byte(countsText(run)), 0o600); err != nil {
		t.Fatal(err)
	}
	was, err := readCounts(path)
	if err != nil || len(was) != 5 || was["r/same/count"] != 2 {
		t.Fatalf("%v, %v", was, err)
	}
	names := []figure{"r/same/count", "r/noise/count", "r/less/count", "r/more/count", "r/allocations/count", "r/new/count"}
	now := map[figure]float64{"r/same/count": 2, "r/noise/count": 3, "r/less/count": 1, "r/more/count": 3.2, "r/allocations/count": 0.5, "r/new/count": 9}
	var b strings.Builder
	if err := compareCounts(&b, was, names, now); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(b.String(), "warning: "); got != 2 || !strings.Contains(b.String(), "warning: r/more/count per operation was 2.000 and is 3.200") ||
		!strings.Contains(b.String(), "warning: r/allocations/count") {
		t.Errorf("%s", &b)
	}
	if err := compareCounts(&b, was, nil, nil); err == nil {
		t.Error("a run that counted nothing has passed")
	}
	if err := os.WriteFile(path, []byte("x\tr/same/count\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readCounts(path); err == nil || !strings.Contains(err.Error(), "no count") {
		t.Errorf("a broken file: %v", err)
	}
}
