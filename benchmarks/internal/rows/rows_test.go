package rows

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// Every ratio names contenders that exist, every row has an identity of its
// own and something to print.
func TestRowsAreConsistent(t *testing.T) {
	byID := map[string]Row{}
	for _, r := range All() {
		if _, twice := byID[r.ID]; twice || r.ID == "" || r.Title == "" || len(r.Metrics) == 0 {
			t.Errorf("row %q: twice or incomplete", r.ID)
		}
		byID[r.ID] = r
	}
	has := func(row, contender string) bool {
		return slices.ContainsFunc(byID[row].Contenders, func(c Contender) bool { return c.Name == contender })
	}
	for _, r := range byID {
		for _, q := range r.Ratios {
			denRow := r.ID
			if q.DenRow != "" {
				denRow = q.DenRow
			}
			if !has(r.ID, q.Num) || q.Den != "" && q.Den != result.Best && !has(denRow, q.Den) {
				t.Errorf("%s: %q compares %q with %q of %s", r.ID, q.Name, q.Num, q.Den, denRow)
			}
			if q.Op != "" && q.Op != ">=" && q.Op != "<=" || q.Metric == "" {
				t.Errorf("%s: %q has operator %q, metric %q", r.ID, q.Name, q.Op, q.Metric)
			}
		}
		names := map[string]bool{}
		for _, c := range r.Contenders {
			if names[c.Name] || c.Measure == nil {
				t.Errorf("%s: contender %q stands twice or measures nothing", r.ID, c.Name)
			}
			names[c.Name] = true
		}
	}
}

func TestSelect(t *testing.T) {
	all := []Row{{Row: result.Row{ID: "a"}, Quick: true}, {Row: result.Row{ID: "b"}}}
	for _, tc := range []struct {
		names []string
		quick bool
		want  int
	}{{nil, false, 2}, {nil, true, 1}, {[]string{"b"}, true, 1}, {[]string{"c"}, false, 0}} {
		got, err := Select(all, tc.names, tc.quick)
		if len(got) != tc.want || (err != nil) != (tc.want == 0) {
			t.Errorf("%v: %d rows, %v", tc, len(got), err)
		}
	}
}

// Contenders take turns; failures and what is missing are recorded, and do not
// stop the others.
func TestMeasureTakesTurns(t *testing.T) {
	var order []string
	c := func(name string, err error) Contender {
		return Contender{Name: name, Measure: func(_ context.Context, st *Stage) (result.Values, error) {
			order = append(order, name)
			st.Note("run " + name)
			return result.Values{result.IOPS: 1}, err
		}}
	}
	bad := c("prepare", nil)
	bad.Prepare = func(context.Context, *Stage) error { return errors.New("cannot start") }
	gone := c("gone", nil)
	gone.Needs = []string{"no-such-program"}
	slow := c("slow", nil)
	slow.Slow = true
	row := Row{Row: result.Row{ID: "r", Title: "r", Metrics: []string{result.IOPS}}, Contenders: []Contender{c("a", nil), bad, gone, slow, c("b", errors.New("boom"))}}
	run := &result.Run{Started: time.Now()}
	if err := Measure(t.Context(), peers.Env{}, []Row{row}, 2, true, run, func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"a", "b", "a", "b"}) {
		t.Errorf("order %v", order)
	}
	if run.Skipped["r/gone"] != "no-such-program is not installed" || run.Commands["r/a"] != "run a" {
		t.Errorf("skipped %v, commands %v", run.Skipped, run.Commands)
	}
	if s := run.Stat("r", "a", result.IOPS); s.N != 2 {
		t.Errorf("%+v", s)
	}
	if s := run.Stat("r", "b", result.IOPS); s.N != 0 {
		t.Errorf("failed samples count: %+v", s)
	}
}
