// Package rows lists the comparisons: who takes part in each, how it is
// measured, and what is to be reached.
package rows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Row is one comparison. Its contenders are measured in turns.
type Row struct {
	result.Row
	Place      proc.Placement
	Quick      bool          // part of the quick run
	Reps       int           // at most so many repetitions; zero: as many as asked for
	Least      int           // at least so many repetitions, however many are asked for
	Dur        time.Duration // instead of the run's duration per measurement
	More       time.Duration // what a measurement takes beyond its duration
	Contenders []Contender
}

// Contender is one side of a comparison.
type Contender struct {
	Name  string
	Needs []string // programs
	Slow  bool     // left out of the quick run
	// Prepare is called once, before the first measurement.
	Prepare func(context.Context, *Stage) error
	Measure func(context.Context, *Stage) (result.Values, error)
}

// Progress is told what happens, for people.
type Progress func(format string, args ...any)

// Harness measures rows.
type Harness struct {
	Env   peers.Env
	Reps  int
	Quick bool
	Say   Progress
	// Limit is how long a contender may take beyond the time of its
	// measurement, for its start as well; zero: 30 s.
	Limit time.Duration
	// Keep is called after each row.
	Keep func(*result.Run) error
}

// Measure measures rows and adds what they give to run. A row that is
// interrupted leaves nothing in run.
func (h *Harness) Measure(ctx context.Context, rows []Row, run *result.Run) error {
	if run.Commands == nil {
		run.Commands, run.Skipped = map[string]string{}, map[string]string{}
	}
	began, total, done := time.Now(), h.Estimate(rows), time.Duration(0)
	for i := range rows {
		row := &rows[i]
		left := "about " + round(total).String()
		if i > 0 { // the rest at the speed so far
			left = "about " + round(time.Duration(float64(time.Since(began))*float64(total-done)/float64(done))).String()
		}
		h.Say("[%d/%d] %s   (%v, %s to go)", i+1, len(rows), row.Title, round(time.Since(began)), left)
		part := &result.Run{Commands: map[string]string{}, Skipped: map[string]string{}}
		if err := h.measure(ctx, row, part); err != nil {
			return err
		}
		maps.Copy(run.Commands, part.Commands)
		maps.Copy(run.Skipped, part.Skipped)
		run.Samples = append(run.Samples, part.Samples...)
		run.Rows = append(run.Rows, row.Row)
		for _, q := range row.Ratios {
			if o := run.Evaluate(row.Row, q); o.Known {
				h.Say("  → %s: %s", q.Name, o)
			}
		}
		done += h.estimate(row)
		if h.Keep != nil {
			if err := h.Keep(run); err != nil {
				return err
			}
		}
	}
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(time.Second) }

// Estimate is how long rows take.
func (h *Harness) Estimate(rows []Row) (d time.Duration) {
	for i := range rows {
		d += h.estimate(&rows[i])
	}
	return d
}

func (h *Harness) estimate(row *Row) (d time.Duration) {
	const start, around = 900 * time.Millisecond, 300 * time.Millisecond // what a server with its volume takes to start; what a measurement takes beside its time
	for _, c := range row.Contenders {
		if (!c.Slow || !h.Quick) && missing(c.Needs) == "" {
			d += start + time.Duration(row.reps(h.Reps))*(cmp.Or(row.Dur, h.Env.Dur)+around+row.More)
		}
	}
	return d
}

// reps is how often the row's contenders are measured when reps is asked for.
func (row *Row) reps(reps int) int { return max(atMost(row.Reps, reps), row.Least) }

// atMost is n, or most when that is given and less.
func atMost(most, n int) int {
	if most > 0 {
		return min(most, n)
	}
	return n
}

// errHung means that a contender was killed.
var errHung = errors.New("killed")

// limited gives f so much time. An f that does not heed the end of its context
// is left behind: ending the row's servers ends it.
func limited[T any](ctx context.Context, limit time.Duration, f func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := f(ctx)
		done <- outcome{v, err}
	}()
	late := time.NewTimer(limit + grace)
	defer late.Stop()
	select {
	case o := <-done:
		v, err = o.v, o.err
		if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return v, err
		}
	case <-late.C:
	}
	return v, fmt.Errorf("no result within %v: %w", limit, errHung)
}

// grace is how long clients have to end when they are told to.
const grace = 8 * time.Second

// measure measures one row to its end; the error is that of ctx.
func (h *Harness) measure(ctx context.Context, row *Row, run *result.Run) error {
	env := h.Env
	env.Place = row.Place
	env.Dur = cmp.Or(row.Dur, env.Dur)
	limit := cmp.Or(h.Limit, 30*time.Second)
	st := &Stage{Env: &env, servers: map[string]*peers.Server{}}
	defer st.close()
	fail := func(c *Contender, rep int, err error) {
		run.Samples = append(run.Samples, result.Sample{Row: row.ID, Contender: c.Name, Rep: rep, At: time.Now(), Error: err.Error()})
		h.Say("  %-28s failed: %v", c.Name, err)
	}
	var ready []*Contender
	for i := range row.Contenders {
		c := &row.Contenders[i]
		if c.Slow && h.Quick {
			continue
		}
		key := row.ID + "/" + c.Name
		if missing := missing(c.Needs); missing != "" {
			run.Skipped[key] = missing + " is not installed"
			h.Say("  %-28s skipped: %s is not installed", c.Name, missing)
			continue
		}
		env.Note = noter(run.Commands, key)
		if c.Prepare != nil {
			_, err := limited(ctx, limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.Prepare(ctx, st) })
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if why := (*peers.Unable)(nil); errors.As(err, &why) {
				run.Skipped[key] = why.Error()
				h.Say("  %-28s skipped: %v", c.Name, why)
				continue
			}
			if err != nil {
				fail(c, 0, err)
				continue
			}
		}
		ready = append(ready, c)
	}
	for rep := range row.reps(h.Reps) {
		for i, c := range ready {
			if c == nil {
				continue
			}
			env.Note = func(string) {}
			if rep == 0 {
				env.Note = noter(run.Commands, row.ID+"/"+c.Name)
			}
			at := time.Now()
			v, err := limited(ctx, env.Dur+row.More+limit, func(ctx context.Context) (result.Values, error) { return c.Measure(ctx, st) })
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				fail(c, rep, err)
				if errors.Is(err, errHung) {
					ready[i] = nil // no more of this contender: it would hang as long again
				}
				continue
			}
			h.Say("  %-28s %s", c.Name, describe(row.Metrics, v))
			run.Samples = append(run.Samples, result.Sample{Row: row.ID, Contender: c.Name, Rep: rep, At: at, Values: v})
		}
	}
	return nil
}

// noter collects commands, each once.
func noter(m map[string]string, key string) func(string) {
	seen := map[string]bool{}
	var mu sync.Mutex // a contender that hung and was left behind may still call
	return func(cmd string) {
		mu.Lock()
		defer mu.Unlock()
		if !seen[cmd] {
			seen[cmd] = true
			if m[key] != "" {
				m[key] += "\n"
			}
			m[key] += cmd
		}
	}
}

// Missing lists the programs that rows need and this machine does not have.
func Missing(rows []Row) (names []string) {
	for _, r := range rows {
		for _, c := range r.Contenders {
			if n := missing(c.Needs); n != "" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}

func missing(needs []string) string {
	for _, n := range needs {
		if _, ok := proc.Have(n); !ok {
			return n
		}
	}
	return ""
}

func describe(metrics []string, v result.Values) string {
	s := ""
	for _, m := range metrics {
		if x, ok := v[m]; ok {
			s += fmt.Sprintf("%-18s", result.Format(m, x))
		}
	}
	if s == "" {
		return fmt.Sprint(slices.Sorted(maps.Keys(v)))
	}
	return s
}

// Select returns the rows whose id is in names (all when empty); quick keeps
// the quick ones.
func Select(all []Row, names []string, quick bool) ([]Row, error) {
	var out []Row
	for _, r := range all {
		if len(names) > 0 && !slices.Contains(names, r.ID) || len(names) == 0 && quick && !r.Quick {
			continue
		}
		out = append(out, r)
	}
	for _, n := range names {
		if !slices.ContainsFunc(all, func(r Row) bool { return r.ID == n }) {
			return nil, fmt.Errorf("there is no row %q (see list)", n)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no row selected")
	}
	return out, nil
}

// Counted are the rows of what travels between machines as times do not: system calls,
// allocations and instructions per operation.
func Counted() []Row {
	return []Row{syscallRow(1), syscallRow(32), allocRow(), nvmeSyscallRow(), nvmeAllocRow()}
}

// All returns every row, in the order of the report.
func All() []Row {
	return slices.Concat(networkRows(), roceRows(), diskRows(), nvmeRows(), tcpRows(), attachRows(), storeRows(), sessionRows(), resourceRows())
}
