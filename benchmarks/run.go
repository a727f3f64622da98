package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"softiser/benchmarks/internal/memory"
	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
	"softiser/benchmarks/internal/rows"
)

// form is how much of the comparison a run is.
type form struct {
	quick bool          // only the rows of the quick form, and a file of their own
	reps  int           // repetitions, unless --reps says otherwise
	dur   time.Duration // of one measurement, unless --time says otherwise
}

var (
	quickForm = form{quick: true, reps: 3, dur: 1500 * time.Millisecond}
	fullForm  = form{reps: 5, dur: time.Second}
)

// run measures the named rows, or all of the form.
func (o *options) run(ctx context.Context, names []string, f form) error {
	o.reps, o.dur = cmp.Or(o.reps, f.reps), cmp.Or(o.dur, f.dur)
	selected, err := rows.Select(rows.All(), names, f.quick)
	if err != nil {
		return err
	}
	run := &result.Run{Started: time.Now(), Quick: f.quick, Machine: machine(), Reps: o.reps, Seconds: o.dur.Seconds()}
	for _, r := range selected {
		run.Selected = append(run.Selected, r.ID)
	}
	return o.measure(ctx, run, selected, o.rawPath(run))
}

// resumeRun measures the rows that an interrupted run has left, with its
// repetitions and times.
func (o *options) resumeRun(ctx context.Context) error {
	path, err := o.rawFile(o.resume)
	if err != nil {
		return err
	}
	run, err := result.Load(path)
	if err != nil {
		return err
	}
	left := run.Remaining()
	if len(left) == 0 {
		return fmt.Errorf("%s is complete: there is nothing to resume", path)
	}
	if then, now := run.Machine["softiser"], o.version(); then != now {
		fmt.Fprintf(os.Stderr, "note: %s was begun with iser-target %s, this is %s\n", path, then, now)
	}
	selected, err := rows.Select(rows.All(), left, false)
	if err != nil {
		return err
	}
	o.reps, o.dur = run.Reps, time.Duration(run.Seconds*float64(time.Second))
	return o.measure(ctx, run, selected, path)
}

// measure measures rows, keeps the raw results after each, and prints the
// tables. README.md is written at the end of a run of all rows.
func (o *options) measure(ctx context.Context, run *result.Run, selected []rows.Row, path string) error {
	env, cleanup, err := o.env()
	if err != nil {
		return err
	}
	defer cleanup()
	if busy := loadAverage(); busy > 0.5 {
		fmt.Fprintf(os.Stderr, "note: the load average is %.1f; ratios from a busy machine are noise\n", busy)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	touch, err := memory.Probe(probed)
	if err != nil {
		return err
	}
	note(os.Stderr, run, touch)
	if run.Machine["softiser"] == "" {
		run.Machine["softiser"] = o.version()
	}
	h := &rows.Harness{
		Env: env, Reps: o.reps, Quick: run.Quick, Limit: o.limit,
		Say:  func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
		Keep: func(r *result.Run) error { return r.Save(path) },
	}
	err = h.Measure(ctx, selected, run)
	if len(run.Rows) > 0 {
		fmt.Fprintln(os.Stderr, "raw results:", path)
		printRun(run)
	}
	switch {
	case ctx.Err() != nil && len(run.Rows) > 0:
		return fmt.Errorf("interrupted, %d of %d rows left; go on with: go run ./benchmarks full --resume=%s", len(run.Remaining()), len(run.Selected), path)
	case err != nil:
		return err
	case len(run.Selected) == len(rows.All()):
		err = o.publish(run)
	}
	if failed := run.Failed(); err == nil && len(failed) > 0 {
		err = fmt.Errorf("no figure of %s: the tables have why", strings.Join(failed, ", "))
	}
	return err
}

// env is what contenders are started with; cleanup removes its files.
func (o *options) env() (e peers.Env, cleanup func(), err error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return e, nil, err
	}
	for _, b := range []string{"iser-target", "iser-initiator"} {
		if _, err := os.Stat(filepath.Join(bin, b)); err != nil {
			return e, nil, fmt.Errorf("%w (make build first)", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return e, nil, err
	}
	scratch, err := peers.NewScratch()
	if err != nil {
		return e, nil, err
	}
	return peers.Env{Bin: bin, Scratch: scratch, Self: self, Dur: o.dur}, func() { os.RemoveAll(scratch) }, nil
}

// rawPath is where a run's raw results go: quick.json, or a file named by the
// time.
func (o *options) rawPath(run *result.Run) string {
	name := run.Started.UTC().Format("20060102-150405")
	if run.Quick {
		name = "quick"
	}
	return filepath.Join(o.out, name+".json")
}

// rawFile is a named raw file, or the newest one.
func (o *options) rawFile(name string) (string, error) {
	if name != newest {
		return name, nil
	}
	all, _ := filepath.Glob(filepath.Join(o.out, "2*.json"))
	if len(all) == 0 {
		return "", fmt.Errorf("no raw results in %s", o.out)
	}
	return slices.Max(all), nil
}

// version is what the product says of itself.
func (o *options) version() string {
	out, err := exec.Command(filepath.Join(o.bin, "iser-target"), "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "iser-target version "))
}
