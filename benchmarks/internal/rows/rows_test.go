package rows

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
	"softiser/initiator/bench"
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
			if q.Bound != "" && !has(r.ID, q.Bound) || q.BoundDen != "" && !has(r.ID, q.BoundDen) || q.Spread && q.Den != "" {
				t.Errorf("%s: %q has the bound %q over %q", r.ID, q.Name, q.Bound, q.BoundDen)
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
	if got := Missing([]Row{row}); !slices.Equal(got, []string{"no-such-program"}) {
		t.Errorf("missing %v", got)
	}
	run := &result.Run{Started: time.Now()}
	kept := 0
	h := &Harness{Reps: 2, Quick: true, Say: func(string, ...any) {}, Keep: func(*result.Run) error { kept++; return nil }}
	if err := h.Measure(t.Context(), []Row{row, {Row: result.Row{ID: "empty"}}}, run); err != nil {
		t.Fatal(err)
	}
	if kept != 2 || len(run.Rows) != 2 {
		t.Errorf("kept %d times, %d rows", kept, len(run.Rows))
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

// A row has repetitions of its own.
func TestRepetitions(t *testing.T) {
	calls := map[string]int{}
	c := func(name string) Contender {
		return Contender{Name: name, Measure: func(context.Context, *Stage) (result.Values, error) {
			calls[name]++
			return result.Values{result.IOPS: 1}, nil
		}}
	}
	row := func(id string, most, least int) Row {
		return Row{Row: result.Row{ID: id, Metrics: []string{result.IOPS}}, Reps: most, Least: least, Contenders: []Contender{c(id)}}
	}
	h := &Harness{Reps: 5, Say: func(string, ...any) {}}
	rows := []Row{row("plain", 0, 0), row("at most 1", 1, 0), row("at least 10", 0, 10)}
	if err := h.Measure(t.Context(), rows, &result.Run{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"plain": 5, "at most 1": 1, "at least 10": 10} {
		if calls[name] != want {
			t.Errorf("%s: measured %d times, want %d", name, calls[name], want)
		}
	}
}

// A contender that hangs is told to end, and left out of the rest of its row;
// one that does not even heed its context is left behind.
func TestHangingContender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls := map[string]int{}
		forever := make(chan struct{})
		c := func(name string, f func(context.Context)) Contender {
			return Contender{Name: name, Measure: func(ctx context.Context, _ *Stage) (result.Values, error) {
				mu.Lock()
				calls[name]++
				mu.Unlock()
				f(ctx)
				return result.Values{result.IOPS: 1}, ctx.Err()
			}}
		}
		stuck := c("not started", func(context.Context) {})
		stuck.Prepare = func(ctx context.Context, _ *Stage) error { <-ctx.Done(); return ctx.Err() }
		row := Row{Row: result.Row{ID: "r", Metrics: []string{result.IOPS}}, Contenders: []Contender{
			c("heeds", func(ctx context.Context) { <-ctx.Done() }),
			c("deaf", func(context.Context) { <-forever }),
			stuck,
			c("good", func(context.Context) {}),
		}}
		run := &result.Run{}
		h := &Harness{Reps: 3, Say: func(string, ...any) {}}
		began := time.Now()
		if err := h.Measure(t.Context(), []Row{row}, run); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*30*time.Second+2*grace {
			t.Errorf("it took %v", took)
		}
		mu.Lock()
		defer mu.Unlock()
		if calls["heeds"] != 1 || calls["deaf"] != 1 || calls["not started"] != 0 || calls["good"] != 3 {
			t.Errorf("calls %v", calls)
		}
		for _, s := range run.Samples {
			if bad := s.Error != ""; bad != (s.Contender != "good") || bad && !strings.Contains(s.Error, "no result within") {
				t.Errorf("%s: %q", s.Contender, s.Error)
			}
		}
		close(forever)
	})
}

// What was not measured to its end is not in the run: it is measured again.
func TestInterruptedRowLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := func(cut bool) func(context.Context, *Stage) (result.Values, error) {
		return func(context.Context, *Stage) (result.Values, error) {
			if cut {
				cancel()
			}
			return result.Values{result.IOPS: 1}, nil
		}
	}
	rows := []Row{
		{Row: result.Row{ID: "a", Metrics: []string{result.IOPS}}, Contenders: []Contender{{Name: "x", Measure: m(false)}}},
		{Row: result.Row{ID: "b", Metrics: []string{result.IOPS}}, Contenders: []Contender{{Name: "x", Measure: m(false)}, {Name: "y", Measure: m(true)}}},
	}
	run := &result.Run{Selected: []string{"a", "b"}}
	h := &Harness{Reps: 1, Say: func(string, ...any) {}}
	if err := h.Measure(ctx, rows, run); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(run.Rows) != 1 || len(run.Samples) != 1 || !slices.Equal(run.Remaining(), []string{"b"}) {
		t.Errorf("rows %v, samples %v", run.Rows, run.Samples)
	}
}

// A server that a contender starts after its row has ended is stopped at once.
func TestServerAfterTheEnd(t *testing.T) {
	st := &Stage{servers: map[string]*peers.Server{}}
	st.close()
	if _, err := st.server("late", func(*peers.Env) (*peers.Server, error) { return &peers.Server{}, nil }); err == nil || st.started("late") != nil {
		t.Errorf("error %v", err)
	}
}

// Job files that rows hand to our generator are ones that it takes.
func TestSlowJobs(t *testing.T) {
	s, err := bench.ParseJobText(strings.NewReader(strings.ReplaceAll(fastJob+slowJob, "%d", "1")), "row")
	if err != nil {
		t.Fatal(err)
	}
	jobs, _, err := bench.ParseJobs(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 2 || jobs[0].URL != fastURL || jobs[1].URL != slowURL {
		t.Errorf("%+v", jobs)
	}
}

// The whole run at its defaults stays within what the documentation says.
func TestWholeRunIsBounded(t *testing.T) {
	h := &Harness{Reps: 5}
	h.Env.Dur = time.Second
	if d := h.Estimate(All()); d > 42*time.Minute {
		t.Errorf("make bench takes %v", d)
	}
	h = &Harness{Reps: 3, Quick: true}
	h.Env.Dur = 1500 * time.Millisecond
	quick, err := Select(All(), nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if d := h.Estimate(quick); d > 3*time.Minute {
		t.Errorf("make bench-quick takes %v", d)
	}
}
