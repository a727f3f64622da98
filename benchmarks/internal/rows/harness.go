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
	"softiser/benchmarks/internal/result"
)

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

// measurement is that of one row.
type measurement struct {
	h     *Harness
	row   *Row
	run   *result.Run
	env   peers.Env // of the row
	stage *Stage
	limit time.Duration // of a contender, beside the time of its measurement
}

// measure measures one row to its end; the error is that of ctx.
func (h *Harness) measure(ctx context.Context, row *Row, run *result.Run) error {
	m := &measurement{h: h, row: row, run: run, env: h.Env, limit: cmp.Or(h.Limit, 30*time.Second)}
	m.env.Place = row.Place
	m.env.Dur = cmp.Or(row.Dur, h.Env.Dur)
	m.stage = &Stage{Env: &m.env, servers: map[string]*peers.Server{}}
	defer m.stage.close()
	var ready []*Contender
	for i := range row.Contenders {
		c := &row.Contenders[i]
		if c.Slow && h.Quick {
			continue
		}
		ok := m.prepare(ctx, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ok {
			ready = append(ready, c)
		}
	}
	for rep := range row.reps(h.Reps) {
		for i, c := range ready {
			if c == nil {
				continue
			}
			err := m.once(ctx, c, rep)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, errHung) {
				ready[i] = nil // no more of this contender: it would hang as long again
			}
		}
	}
	return nil
}

// prepare reports whether c takes part.
func (m *measurement) prepare(ctx context.Context, c *Contender) bool {
	key := m.row.ID + "/" + c.Name
	if missing := missing(c.Needs); missing != "" {
		m.run.Skipped[key] = missing + " is not installed"
		m.h.Say("  %-28s skipped: %s is not installed", c.Name, missing)
		return false
	}
	m.env.Note = noter(m.run.Commands, key)
	if c.Prepare == nil {
		return true
	}
	_, err := limited(ctx, m.limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.Prepare(ctx, m.stage) })
	var why *peers.Unable
	switch {
	case err == nil || ctx.Err() != nil:
		return err == nil
	case errors.As(err, &why):
		m.run.Skipped[key] = why.Error()
		m.h.Say("  %-28s skipped: %v", c.Name, why)
	default:
		m.failed(c, 0, err)
	}
	return false
}

// once measures c for the rep-th time. What has come of it is in the run; the error, too, unless ctx has ended.
func (m *measurement) once(ctx context.Context, c *Contender, rep int) error {
	m.env.Note = func(string) {}
	if rep == 0 {
		m.env.Note = noter(m.run.Commands, m.row.ID+"/"+c.Name)
	}
	at := time.Now()
	v, err := limited(ctx, m.env.Dur+m.row.More+m.limit, func(ctx context.Context) (result.Values, error) { return c.Measure(ctx, m.stage) })
	switch {
	case ctx.Err() != nil:
	case err != nil:
		m.failed(c, rep, err)
	default:
		m.h.Say("  %-28s %s", c.Name, describe(m.row.Metrics, v))
		m.run.Samples = append(m.run.Samples, result.Sample{Row: m.row.ID, Contender: c.Name, Rep: rep, At: at, Values: v})
	}
	return err
}

func (m *measurement) failed(c *Contender, rep int, err error) {
	m.run.Samples = append(m.run.Samples, result.Sample{Row: m.row.ID, Contender: c.Name, Rep: rep, At: time.Now(), Error: err.Error()})
	m.h.Say("  %-28s failed: %v", c.Name, err)
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
