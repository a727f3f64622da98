package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/result"
	"softiser/benchmarks/internal/rows"
)

// What an operation takes in system calls, allocations and instructions is nearly the same
// on every machine, so it is compared with what was written down on another one.

// countsCommand measures these counts in some seconds and warns of those that have grown. It
// fails only if nothing could be measured: what a busy machine does to a count is no fault.
func (o *options) countsCommand() *cobra.Command {
	var write bool
	cmd := &cobra.Command{Use: "counts", Short: "compare system calls, allocations and instructions per operation with benchmarks/baseline.counts.txt", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, err := o.count(cmd.Context())
			if err != nil {
				return err
			}
			path := filepath.Join(o.dir(), "baseline.counts.txt")
			if write {
				return os.WriteFile(path, []byte(countsText(run)), 0o644)
			}
			was, err := readCounts(path)
			if err != nil {
				return err
			}
			names, now := countsOf(run)
			return compareCounts(cmd.OutOrStdout(), was, names, now)
		}}
	cmd.Flags().BoolVar(&write, "write", false, "write the file anew")
	return cmd
}

// count measures the rows that count, shortly.
func (o *options) count(ctx context.Context) (*result.Run, error) {
	o.dur = cmp.Or(o.dur, 100*time.Millisecond)
	env, cleanup, err := o.env()
	if err != nil {
		return nil, err
	}
	defer cleanup()
	run := &result.Run{Started: time.Now(), Machine: machine()}
	h := &rows.Harness{Env: env, Reps: max(o.reps, 1), Limit: o.limit, Say: func(string, ...any) {}}
	return run, h.Measure(ctx, rows.Counted(), run)
}

// figure names one count: "row/contender/metric".
type figure string

// counted are the metrics that are compared. Naps and waits of the runtime come by the clock.
var counted = []string{result.Count, result.DataCalls, result.Instructions}

// countsOf are the figures of a run, in its order.
func countsOf(run *result.Run) (names []figure, values map[figure]float64) {
	values = map[figure]float64{}
	for _, row := range run.Rows {
		for _, c := range run.Contenders(row.ID) {
			for _, m := range counted {
				if s := run.Stat(row.ID, c, m); s.N > 0 {
					f := figure(row.ID + "/" + c + "/" + m)
					names, values[f] = append(names, f), s.Median
				}
			}
		}
	}
	return names, values
}

// countsText is the file that is compared with.
func countsText(run *result.Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Per operation; go run ./benchmarks counts --write. %s, %s\n", run.Machine["cpu"], run.Machine["go"])
	names, values := countsOf(run)
	for _, f := range names {
		fmt.Fprintf(&b, "%.3f\t%s\n", values[f], f)
	}
	return b.String()
}

// readCounts reads a file of countsText.
func readCounts(path string) (map[figure]float64, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (write it first: go run ./benchmarks counts --write)", err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	was := map[figure]float64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		value, name, ok := strings.Cut(line, "\t")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: no count in the line %q", path, line)
		}
		was[figure(name)] = v
	}
	return was, nil
}

// A count has grown when it is this much above what it was: beyond what the clock, the
// batches of a busy machine and the start of a session put into it.
const (
	grownBy    = 1.5
	grownAbove = 0.1 // per operation
)

// compareCounts prints the figures beside what they were, and a warning for each that has grown.
func compareCounts(w io.Writer, was map[figure]float64, names []figure, now map[figure]float64) error {
	if len(names) == 0 {
		return errors.New("nothing could be counted")
	}
	for _, f := range names {
		then, known := was[f]
		switch {
		case !known:
			fmt.Fprintf(w, "%12.3f %12s  %s\n", now[f], "new", f)
		case now[f] > then*grownBy+grownAbove:
			fmt.Fprintf(w, "%12.3f %12.3f  %s\nwarning: %s per operation was %.3f and is %.3f\n", now[f], then, f, f, then, now[f])
		default:
			fmt.Fprintf(w, "%12.3f %12.3f  %s\n", now[f], then, f)
		}
	}
	return nil
}
