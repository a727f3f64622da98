// Package rows lists the comparisons: who takes part in each, how it is
// measured, and what is to be reached.
package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	Once       bool          // one repetition is enough: nothing random is measured
	Dur        time.Duration // instead of the run's duration per measurement
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

// Stage is the row's running servers.
type Stage struct {
	*peers.Env
	servers map[string]*peers.Server
	order   []*peers.Server
}

// server returns the row's server of that name, starting it when needed.
func (st *Stage) server(name string, start func(*peers.Env) (*peers.Server, error)) (*peers.Server, error) {
	if s := st.servers[name]; s != nil {
		return s, nil
	}
	s, err := start(st.Env)
	if s != nil {
		st.order = append(st.order, s)
	}
	if err != nil {
		return nil, err
	}
	st.servers[name] = s
	return s, nil
}

// started returns a server that Prepare has started.
func (st *Stage) started(name string) *peers.Server { return st.servers[name] }

func (st *Stage) close() {
	for _, s := range slices.Backward(st.order) {
		s.Close()
	}
}

// Progress is told what happens, for people.
type Progress func(format string, args ...any)

// Measure runs rows and adds what they give to run.
func Measure(ctx context.Context, env peers.Env, rows []Row, reps int, quick bool, run *result.Run, say Progress) error {
	if run.Commands == nil {
		run.Commands, run.Skipped = map[string]string{}, map[string]string{}
	}
	for _, row := range rows {
		run.Rows = append(run.Rows, row.Row)
		if err := row.measure(ctx, env, reps, quick, run, say); err != nil {
			return err
		}
	}
	return nil
}

func (row *Row) measure(ctx context.Context, env peers.Env, reps int, quick bool, run *result.Run, say Progress) error {
	env.Place = row.Place
	if row.Dur > 0 {
		env.Dur = row.Dur
	}
	st := &Stage{Env: &env, servers: map[string]*peers.Server{}}
	defer st.close()
	say("%s", row.Title)
	var ready []Contender
	for _, c := range row.Contenders {
		key := row.ID + "/" + c.Name
		if c.Slow && quick {
			continue
		}
		if missing := missing(c.Needs); missing != "" {
			run.Skipped[key] = missing + " is not installed"
			say("  %-28s skipped: %s is not installed", c.Name, missing)
			continue
		}
		note := noter(run.Commands, key)
		env.Note = note
		if c.Prepare != nil {
			if err := c.Prepare(ctx, st); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				run.Samples = append(run.Samples, result.Sample{Row: row.ID, Contender: c.Name, At: time.Now(), Error: err.Error()})
				say("  %-28s failed: %v", c.Name, err)
				continue
			}
		}
		ready = append(ready, c)
	}
	if row.Once {
		reps = 1
	}
	for rep := range reps {
		for _, c := range ready {
			env.Note = func(string) {}
			if rep == 0 {
				env.Note = noter(run.Commands, row.ID+"/"+c.Name)
			}
			s := result.Sample{Row: row.ID, Contender: c.Name, Rep: rep, At: time.Now()}
			v, err := c.Measure(ctx, st)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.Values = v
			if err != nil {
				s.Error = err.Error()
				say("  %-28s failed: %v", c.Name, err)
			} else {
				say("  %-28s %s", c.Name, describe(row.Metrics, v))
			}
			run.Samples = append(run.Samples, s)
		}
	}
	for _, q := range row.Ratios {
		if o := run.Evaluate(row.Row, q); o.Known {
			say("  → %s: %.2f", q.Name, o.Value)
		}
	}
	return nil
}

// noter collects commands, each once.
func noter(m map[string]string, key string) func(string) {
	seen := map[string]bool{}
	return func(cmd string) {
		if !seen[cmd] {
			seen[cmd] = true
			if m[key] != "" {
				m[key] += "\n"
			}
			m[key] += cmd
		}
	}
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

// All returns every row, in the order of the report.
func All() []Row {
	return slices.Concat(networkRows(), diskRows(), tcpRows(), attachRows(), sessionRows(), resourceRows())
}
