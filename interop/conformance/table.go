package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// summary is what one kind of backend got.
type summary struct {
	kind, remark string
	results      []result
	took         time.Duration
}

func (s *summary) add(r result) { s.results = append(s.results, r) }

func (s *summary) count(o outcome) int {
	n := 0
	for _, r := range s.results {
		if r.out == o {
			n++
		}
	}
	return n
}

// progress shows how far a run has come, on a terminal only.
func progress(kind string, done, all int, s *summary) {
	if st, err := os.Stderr.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r%-14s %d/%d, %d failed, %d skipped ", kind, done, all, s.count(failedTest), s.count(skipped))
	if done == all {
		fmt.Fprintln(os.Stderr)
	}
}

// print writes the table, then every result that is not a plain pass; what all
// kinds share is told once.
func print(w io.Writer, sums []*summary) {
	fmt.Fprintf(w, "%-12s %7s %7s %8s %12s %8s\n", "backend", "passed", "failed", "skipped", "suite error", "seconds")
	for _, s := range sums {
		fmt.Fprintf(w, "%-12s %7d %7d %8d %12d %8.0f  %s\n", s.kind,
			s.count(passed), s.count(failedTest), s.count(skipped), s.count(suiteError), s.took.Seconds(), s.remark)
	}
	type key struct {
		out          outcome
		test, reason string
	}
	where := map[key][]string{}
	var order []key
	for _, s := range sums {
		for _, r := range s.results {
			if r.reason == "" || s.kind == tgtName && r.out != failedTest {
				continue
			}
			k := key{r.out, r.test, r.reason}
			if where[k] == nil {
				order = append(order, k)
			}
			where[k] = append(where[k], s.kind)
		}
	}
	for _, o := range []outcome{failedTest, suiteError, skipped, passed} {
		head := map[outcome]string{
			failedTest: "\nFailed:", suiteError: "\nErrors of the suite itself, which no device can pass:",
			skipped: "\nSkipped:", passed: "\nPassed, with a step left out:",
		}[o]
		for _, k := range order {
			if k.out != o {
				continue
			}
			if head != "" {
				fmt.Fprintln(w, head)
				head = ""
			}
			kinds := fmt.Sprint(where[k])
			if len(where[k]) == countOurs(sums) && where[k][len(where[k])-1] != tgtName {
				kinds = "[all]"
			}
			fmt.Fprintf(w, "  %-34s %s %s\n", k.test, k.reason, kinds)
		}
	}
}

// countOurs is the number of kinds that were run.
func countOurs(sums []*summary) int {
	n := 0
	for _, s := range sums {
		if s.kind != tgtName && len(s.results) > 0 {
			n++
		}
	}
	return n
}
