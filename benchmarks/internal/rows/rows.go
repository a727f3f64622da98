// Package rows lists the comparisons: who takes part in each, how it is
// measured, and what is to be reached.
//
// A [Row] has contenders, ours and theirs, of which each starts its server on the row's [Stage]
// (Prepare) and loads it (Measure). A [Harness] measures them in turns, once each, and begins anew:
// what else the machine does meets all of them alike. A contender that fails or hangs is noted, and
// the others go on. How a program is started and loaded is in package peers; what the figures
// say is in package result.
//
// Rows are in files by what they compare: network, disk, nvme, tcp, roce, attach, store, sessions,
// resources (memory, allocations, system calls). bounds has the contenders that are no product, but
// show what can be had at all.
package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// reps is how often the row's contenders are measured when reps is asked for.
func (row *Row) reps(reps int) int { return max(atMost(row.Reps, reps), row.Least) }

// atMost is n, or most when that is given and less.
func atMost(most, n int) int {
	if most > 0 {
		return min(most, n)
	}
	return n
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
