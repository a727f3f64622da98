package result

import (
	"path/filepath"
	"strings"
	"testing"
)

func sample(row, c string, rep int, m string, v float64) Sample {
	return Sample{Row: row, Contender: c, Rep: rep, Values: Values{m: v}}
}

func TestMediansRatiosAndTables(t *testing.T) {
	r := &Run{
		Rows: []Row{{ID: "a", Title: "row a", Metrics: []string{IOPS, P50}, Ratios: []Ratio{
			{Name: "iops", Num: "ours", Den: "theirs", Metric: IOPS, Op: ">=", Want: 3},
			{Name: "lat", Num: "ours", Metric: P50, Op: "<=", Want: 1000},
			{Name: "other", Num: "ours", Den: "nobody", Metric: IOPS, Op: ">=", Want: 1},
			{Name: "best", Num: "theirs", Den: Best, Metric: IOPS},
			{Name: "across", Num: "ours", Den: "b", DenRow: "b", Metric: IOPS},
		}}},
		Skipped: map[string]string{"a/spdk": "not packaged"},
	}
	for i, v := range []float64{300, 100, 310} {
		r.Samples = append(r.Samples, sample("a", "ours", i, IOPS, v), sample("a", "ours", i, P50, 2000), sample("a", "theirs", i, IOPS, 100))
	}
	r.Samples = append(r.Samples, sample("b", "b", 0, IOPS, 600), Sample{Row: "a", Contender: "broken", Error: "no such\nfile"})
	if s := r.Stat("a", "ours", IOPS); s.Median != 300 || s.Min != 100 || s.N != 3 || s.Spread() != 0.7 {
		t.Errorf("%+v", s)
	}
	row := r.Rows[0]
	for i, want := range []Outcome{{Value: 3, Known: true, Met: true}, {Value: 2000, Known: true}, {Value: 300}, {Value: 100.0 / 300, Known: true}, {Value: 0.5, Known: true}} {
		if o := r.Evaluate(row, row.Ratios[i]); o.Value != want.Value || o.Known != want.Known || o.Met != want.Met {
			t.Errorf("%s: %+v", row.Ratios[i].Name, o)
		}
	}
	var b strings.Builder
	r.WriteTable(&b)
	r.WriteTargets(&b, func(row string) string { return "why#" + row })
	for _, want := range []string{
		"| row a | ours | 300 IOPS | ±35 % | 2.0 µs median |", "|  | broken | failed | | no such file |", "a/spdk | | skipped | | not packaged",
		"| iops | 3.00 | ≥ 3.00 |  |  | met |", "| lat | 2.0 µs | ≤ 1.0 µs |  |  | **not met**, [why](why#a) |", "| other | not measured | ≥ 1.00 |  |  |  |", "| across | 0.50 | reported |  |  |  |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("tables lack %q:\n%s", want, b.String())
		}
	}
	if f := r.Failed(); len(f) != 1 || f[0] != "a/broken" {
		t.Errorf("failed: %v", f)
	}
	path := filepath.Join(t.TempDir(), "raw.json")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	back, err := Load(path)
	if err != nil || back.Stat("a", "ours", IOPS).Median != 300 {
		t.Errorf("%v", err)
	}
}

// Beside a ratio stands what a bound has in Num's place, and ours over it; a bound is never the
// best of a row.
func TestBounds(t *testing.T) {
	const c, cRef = BoundPrefix + "c", BoundPrefix + "c, plain"
	r := &Run{Rows: []Row{{ID: "a", Title: "row a", Metrics: []string{IOPS}, Ratios: []Ratio{
		{Name: "over theirs", Num: "ours", Den: "theirs", Metric: IOPS, Op: ">=", Want: 2, Bound: c},
		{Name: "over best", Num: "theirs", Den: Best, Metric: IOPS, Op: ">=", Want: 1, Bound: c, BoundDen: cRef},
		{Name: "spread", Num: "ours", Metric: IOPS, Spread: true, Op: "<=", Want: 1.5, Bound: c},
		{Name: "figure", Num: "ours", Metric: IOPS, Bound: c},
		{Name: "without", Num: "ours", Metric: IOPS, Bound: BoundPrefix + "skipped"},
	}}}}
	for i, v := range []float64{300, 200, 500} {
		r.Samples = append(r.Samples, sample("a", "ours", i, IOPS, v), sample("a", "theirs", i, IOPS, 200), sample("a", c, i, IOPS, 600), sample("a", cRef, i, IOPS, 800))
	}
	var b strings.Builder
	r.WriteTargets(&b, nil)
	for _, want := range []string{
		"| over theirs | 1.50 | ≥ 2.00 | 3.00 | 0.50 | **not met** |", "| over best | 0.67 | ≥ 1.00 | 0.75 | 0.89 | **not met** |",
		"| spread | 2.50 | ≤ 1.50 | 1.00 | 2.50 | **not met** |", "| figure | 300 IOPS | reported | 600 IOPS | 0.50 |  |", "| without | 300 IOPS | reported |  |  |  |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	if got := r.Evaluate(r.Rows[0], r.Rows[0].Ratios[0]).String(); got != "1.50 (≥ 2.00, not met); the bound has 3.00, this is 0.50 of it" {
		t.Error(got)
	}
}

func TestFormat(t *testing.T) {
	for _, tc := range []struct {
		metric string
		v      float64
		want   string
	}{
		{IOPS, 118_400, "118 kIOPS"}, {BW, 6.8e9, "6.8 GB/s"}, {P50, 61_000, "61.0 µs"}, {CPUServer, 0.254, "0.25 CPU-s/GiB"},
		{CPUShare, 0.235, "23.5 %"}, {Bytes, 256 << 10, "256 KiB"}, {Seconds, 0.0000123, "12.3µs"},
	} {
		if got := Format(tc.metric, tc.v); got != tc.want {
			t.Errorf("%s %v: %q, want %q", tc.metric, tc.v, got, tc.want)
		}
	}
}
