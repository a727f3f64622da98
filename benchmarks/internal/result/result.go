// Package result keeps what was measured: samples, medians, ratios, tables.
package result

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// Values are the figures of one measurement by name; see the constants.
type Values map[string]float64

// Names of figures.
const (
	IOPS      = "iops"              // operations per second
	BW        = "bytes_per_s"       // payload
	P50       = "p50_ns"            // median latency
	P99       = "p99_ns"            // 99th percentile
	P999      = "p99.9_ns"          // 99.9th
	CPUServer = "server_cpu_s_gib"  // CPU seconds per GiB, server
	CPUClient = "client_cpu_s_gib"  // CPU seconds per GiB, client
	CPUBoth   = "cpu_s_gib"         // both sides
	CPUShare  = "server_core_share" // share of a core, server
	Bytes     = "bytes"             // memory
	ClientMem = "client_bytes"      // memory of the client
	Seconds   = "seconds"
	Count     = "count"

	// Of Count, when it counts system calls.
	DataCalls = "data_calls"  // those that move data
	WaitCalls = "wait_calls"  // epoll_wait
	FutexCall = "futex_calls" // futex
	Naps      = "naps"        // sleeps of the Go runtime's monitor thread
	OwnCalls  = "own_calls"   // all but Naps

	Instructions = "instructions" // in user space, per operation; where the processor counts them
)

// Sample is one measurement.
type Sample struct {
	Row       string    `json:"row"`
	Contender string    `json:"contender"`
	Rep       int       `json:"rep"`
	At        time.Time `json:"at"`
	Values    Values    `json:"values,omitempty"`
	Error     string    `json:"error,omitempty"`
}

// Run is everything that one invocation measured: the content of a raw file.
type Run struct {
	Started  time.Time         `json:"started"`
	Selected []string          `json:"selected"` // rows that were asked for
	Quick    bool              `json:"quick,omitempty"`
	Machine  map[string]string `json:"machine"`
	Reps     int               `json:"reps"`
	Seconds  float64           `json:"seconds_per_measurement"`
	Commands map[string]string `json:"commands"` // "row/contender": what was run
	Skipped  map[string]string `json:"skipped"`  // "row/contender": why
	Rows     []Row             `json:"rows"`     // those that have been measured to their end
	Samples  []Sample          `json:"samples"`
}

// Row describes one comparison.
type Row struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Metrics []string `json:"metrics"` // figures to print, the first is the main one
	Ratios  []Ratio  `json:"ratios"`
}

// Ratio is one thing to reach: Num's figure over Den's, or Num's alone when Den
// is empty.
type Ratio struct {
	Name     string  `json:"name"`
	Num      string  `json:"num"`
	Den      string  `json:"den,omitempty"`     // Best: the largest median of the row
	DenRow   string  `json:"den_row,omitempty"` // when Den was measured in another row
	Metric   string  `json:"metric"`
	Spread   bool    `json:"spread,omitempty"` // the largest over the least of Num's repetitions, without Den
	Op       string  `json:"op"`               // ">=" or "<=", or "" for a figure that is only reported
	Want     float64 `json:"want"`
	Bound    string  `json:"bound,omitempty"`     // a contender of the row that takes Num's place, to show what can be had at all
	BoundDen string  `json:"bound_den,omitempty"` // and Den's; empty: that stays
}

// Best as a Ratio's Den stands for the contender with the largest median; a bound is none.
const Best = "*"

// BoundPrefix begins the names of contenders that show what can be had: minimal programs in C.
const BoundPrefix = "bound: "

// Stat is a figure over the repetitions.
type Stat struct {
	Median, Min, Max float64
	N                int
}

// Spread is the distance of the extremes over the median.
func (s Stat) Spread() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.Max - s.Min) / s.Median
}

// Stat returns the figure of a contender in a row; N is 0 when there is none.
func (r *Run) Stat(row, contender, metric string) Stat {
	var v []float64
	for _, s := range r.Samples {
		if x, ok := s.Values[metric]; ok && s.Row == row && s.Contender == contender && s.Error == "" {
			v = append(v, x)
		}
	}
	return statOf(v)
}

func statOf(v []float64) Stat {
	if len(v) == 0 {
		return Stat{}
	}
	slices.Sort(v)
	n := len(v)
	return Stat{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// Outcome is an evaluated ratio.
type Outcome struct {
	Ratio
	Value float64
	Known bool
	Met   bool

	BoundKnown bool
	BoundValue float64 // the same of Ratio.Bound
}

// Evaluate computes a ratio, and that of its bound, from the medians.
func (r *Run) Evaluate(row Row, q Ratio) Outcome {
	o := Outcome{Ratio: q}
	o.Value, o.Known = r.value(row, q)
	if q.Bound != "" {
		b := q
		b.Num, b.Den = q.Bound, cmp.Or(q.BoundDen, q.Den)
		o.BoundValue, o.BoundKnown = r.value(row, b)
	}
	switch q.Op {
	case ">=":
		o.Met = o.Known && o.Value >= q.Want
	case "<=":
		o.Met = o.Known && o.Value <= q.Want
	}
	return o
}

// value is the figure of a ratio; not known, it may still be that of Num alone.
func (r *Run) value(row Row, q Ratio) (v float64, known bool) {
	num := r.Stat(row.ID, q.Num, q.Metric)
	switch {
	case num.N == 0 || q.Spread && num.Min == 0:
		return 0, false
	case q.Spread:
		return num.Max / num.Min, true
	case q.Den == "":
		return num.Median, true
	}
	denRow := cmp.Or(q.DenRow, row.ID)
	den := r.Stat(denRow, q.Den, q.Metric)
	if q.Den == Best {
		den = r.best(denRow, q.Metric)
	}
	if den.N == 0 || den.Median == 0 {
		return num.Median, false
	}
	return num.Median / den.Median, true
}

// best is the figure of the contender with the largest median.
func (r *Run) best(row, metric string) (best Stat) {
	for _, c := range r.Contenders(row) {
		if strings.HasPrefix(c, BoundPrefix) {
			continue
		}
		if s := r.Stat(row, c, metric); s.N > 0 && s.Median > best.Median {
			best = s
		}
	}
	return best
}

// Contenders lists who has samples in a row, in the order of the first one.
func (r *Run) Contenders(row string) (names []string) {
	for _, s := range r.Samples {
		if s.Row == row && !slices.Contains(names, s.Contender) {
			names = append(names, s.Contender)
		}
	}
	return names
}

// Remaining lists the selected rows that have not been measured.
func (r *Run) Remaining() (ids []string) {
	for _, id := range r.Selected {
		if !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Save writes the raw file, whole or not at all.
func (r *Run) Save(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// Load reads a raw file.
func Load(path string) (*Run, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Run)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// WriteTable prints the rows as Markdown: medians, spreads, ratios.
func (r *Run) WriteTable(w io.Writer) {
	fmt.Fprintln(w, "| row | contender | median | spread | also |")
	fmt.Fprintln(w, "| --- | --- | ---: | ---: | --- |")
	for _, row := range r.Rows {
		title := row.Title
		for _, c := range r.Contenders(row.ID) {
			s := r.Stat(row.ID, c, row.Metrics[0])
			if s.N == 0 {
				fmt.Fprintf(w, "| %s | %s | failed | | %s |\n", title, c, r.firstError(row.ID, c))
			} else {
				fmt.Fprintf(w, "| %s | %s | %s | ±%.0f %% | %s |\n", title, c, Format(row.Metrics[0], s.Median), 50*s.Spread(), r.others(row, c))
			}
			title = ""
		}
	}
	for key, why := range sorted(r.Skipped) {
		fmt.Fprintf(w, "| %s | | skipped | | %s |\n", key, why)
	}
}

func (r *Run) firstError(row, contender string) string {
	for _, s := range r.Samples {
		if s.Row == row && s.Contender == contender && s.Error != "" {
			return strings.ReplaceAll(s.Error, "\n", " ")
		}
	}
	return ""
}

func (r *Run) others(row Row, c string) string {
	var parts []string
	for _, m := range row.Metrics[1:] {
		if s := r.Stat(row.ID, c, m); s.N > 0 {
			parts = append(parts, strings.TrimSpace(Format(m, s.Median)+" "+label[m]))
		}
	}
	return strings.Join(parts, ", ")
}

// Failed lists the contenders, as "row/contender", that gave no figure in any repetition though
// they were there.
func (r *Run) Failed() (failed []string) {
	for _, row := range r.Rows {
		for _, c := range r.Contenders(row.ID) {
			of := func(good bool) func(Sample) bool {
				return func(s Sample) bool { return s.Row == row.ID && s.Contender == c && (s.Error == "") == good }
			}
			if slices.ContainsFunc(r.Samples, of(false)) && !slices.ContainsFunc(r.Samples, of(true)) {
				failed = append(failed, row.ID+"/"+c)
			}
		}
	}
	return failed
}

// Missed lists the targets that were measured and not met, with their rows.
func (r *Run) Missed() (missed []Outcome, rows []string) {
	for _, row := range r.Rows {
		for _, q := range row.Ratios {
			if o := r.Evaluate(row, q); o.Missed() {
				missed, rows = append(missed, o), append(rows, row.ID)
			}
		}
	}
	return missed, rows
}

// WriteTargets prints what was to be reached and what was, and beside it what a bound has and
// what ours is of that. why returns where a row's missed targets are explained, as a link; nil: nowhere.
func (r *Run) WriteTargets(w io.Writer, why func(row string) string) {
	fmt.Fprintln(w, "| target | reached | wanted | bound | over it | |")
	fmt.Fprintln(w, "| --- | ---: | ---: | ---: | ---: | --- |")
	for _, row := range r.Rows {
		for _, q := range row.Ratios {
			o := r.Evaluate(row, q)
			verdict := o.verdict()
			if o.Missed() {
				verdict = "**" + verdict + "**"
				if why != nil {
					if at := why(row.ID); at != "" {
						verdict += ", [why](" + at + ")"
					}
				}
			}
			bound, over := o.OverBound()
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", q.Name, o.Reached(), o.Wanted(), bound, over, verdict)
		}
	}
}

// String is the figure, what was wanted, and the verdict.
func (o Outcome) String() string {
	s := o.Reached()
	if o.Op != "" {
		s += " (" + o.Wanted() + ", " + o.verdict() + ")"
	}
	if bound, over := o.OverBound(); bound != "" {
		s += fmt.Sprintf("; the bound has %s, this is %s of it", bound, over)
	}
	return s
}

// OverBound is what the bound has, and what ours is of that; empty without a bound.
func (o Outcome) OverBound() (bound, over string) {
	if !o.Known || !o.BoundKnown || o.BoundValue == 0 {
		return "", ""
	}
	return o.format(o.BoundValue), fmt.Sprintf("%.2f", o.Value/o.BoundValue)
}

// Missed: there was a target, and it was not reached.
func (o Outcome) Missed() bool { return o.Known && !o.Met && o.Op != "" }

// Reached is the figure.
func (o Outcome) Reached() string {
	if !o.Known {
		return "not measured"
	}
	return o.format(o.Value)
}

// Wanted is the limit, or that there is none.
func (o Outcome) Wanted() string {
	if o.Op == "" {
		return "reported"
	}
	return map[string]string{">=": "≥ ", "<=": "≤ "}[o.Op] + o.format(o.Want)
}

// format prints a ratio, or a figure that stands alone with its unit.
func (o Outcome) format(v float64) string {
	if o.Den != "" || o.Spread {
		return fmt.Sprintf("%.2f", v)
	}
	return Format(o.Metric, v)
}

func (o Outcome) verdict() string {
	switch {
	case o.Missed():
		return "not met"
	case o.Known && o.Op != "":
		return "met"
	}
	return ""
}

var label = map[string]string{
	P50: "median", P99: "p99", P999: "p99.9", CPUServer: "server", CPUClient: "client", CPUBoth: "both sides",
	CPUShare: "of a core", IOPS: "", BW: "", Bytes: "", ClientMem: "client", Seconds: "", Count: "",
	DataCalls: "move data", WaitCalls: "epoll_wait", FutexCall: "futex", Naps: "nanosleep", OwnCalls: "without nanosleep",
	Instructions: "instructions",
}

// Format prints a figure with its unit.
func Format(metric string, v float64) string {
	switch metric {
	case IOPS:
		return si(v, 1000, []string{" ", " k", " M"}) + "IOPS"
	case BW:
		return si(v, 1000, []string{" ", " k", " M", " G"}) + "B/s"
	case P50, P99, P999:
		return fmt.Sprintf("%.1f µs", v/1000)
	case CPUServer, CPUClient, CPUBoth:
		return fmt.Sprintf("%.2f CPU-s/GiB", v)
	case CPUShare:
		return fmt.Sprintf("%.1f %%", 100*v)
	case Bytes, ClientMem:
		return si(v, 1024, []string{" ", " Ki", " Mi", " Gi"}) + "B"
	case Seconds:
		return time.Duration(v * 1e9).Round(100 * time.Nanosecond).String()
	}
	return fmt.Sprintf("%.3g", v)
}

func si(v, base float64, units []string) string {
	i := 0
	for ; math.Abs(v) >= base && i < len(units)-1; i++ {
		v /= base
	}
	if v >= 100 || v == math.Trunc(v) {
		return fmt.Sprintf("%.0f%s", v, units[i])
	}
	return fmt.Sprintf("%.3g%s", v, units[i])
}

// sorted iterates over a map in the order of its keys.
func sorted(m map[string]string) func(func(string, string) bool) {
	return func(yield func(string, string) bool) {
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
