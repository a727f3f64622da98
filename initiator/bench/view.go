package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"softiser/internal/digits"
	"softiser/internal/terminal"
)

// maxHistory is how many looks are remembered; no terminal has more columns to draw them.
const maxHistory = 600

// viewer makes views of the looks at a run.
type viewer struct {
	before  map[*Job]*Stats // of each clone, at the look before
	history history
}

// history is what all jobs together have done between two looks, the last one last.
type history struct{ bytes, ios, p99 []float64 }

// view is what is shown of one look.
type view struct {
	look    *Look
	rows    []viewRow
	total   [datas]viewRow
	jobs    int // that have not ended with an earlier stage
	history history
	trouble Stats  // errors and connections of all jobs
	event   string // the last one, if there was any
}

// viewRow is what the clones of a job do in one direction.
type viewRow struct {
	job, doing string
	d          dir
	last, all  DirStats // since the look before, and so far
}

// look compares a look with the one before.
func (v *viewer) look(l *Look) *view {
	w := &view{look: l}
	now := map[*Job]*Stats{}
	var job []viewRow
	for _, s := range l.Report.Clones {
		now[s.Job] = s
		w.trouble.addTrouble(s)
		if s.Job.clone == 0 {
			w.rows, job = append(w.rows, job...), nil
			if s.doing != "" {
				w.jobs++
			}
		}
		before := v.before[s.Job]
		if before == nil {
			before = new(Stats)
		}
		for d := range datas {
			if s.Job.Dirs[d] || s.Dir[d].IOs > 0 {
				r := viewRow{job: s.Job.Name, doing: s.doing, d: dir(d), all: s.Dir[d]}
				if s.doing != "" {
					r.last = *s.Dir[d].since(&before.Dir[d], l.Since)
					w.total[d].merge(&r)
				}
				job = mergeRow(job, &r)
			}
		}
	}
	w.rows = append(w.rows, job...)
	v.before = now
	w.history = v.remember(w)
	return w
}

// addTrouble enters what has gone wrong in a clone.
func (s *Stats) addTrouble(o *Stats) {
	s.Errors += o.Errors
	s.Bad += o.Bad
	s.first(o.FirstErr, o.Code)
	s.addSession(o.Session)
}

// mergeRow enters what a clone does into the row of its job and direction.
func mergeRow(rows []viewRow, r *viewRow) []viewRow {
	i := slices.IndexFunc(rows, func(o viewRow) bool { return o.d == r.d })
	if i < 0 {
		rows, i = append(rows, viewRow{job: r.job, doing: r.doing, d: r.d}), len(rows)
	}
	rows[i].merge(r)
	return rows
}

func (r *viewRow) merge(o *viewRow) {
	if r.doing == "" || o.doing != "done" {
		r.doing = o.doing
	}
	r.last.merge(&o.last)
	r.all.merge(&o.all)
}

// remember enters a view into the history, and returns what is remembered now.
func (v *viewer) remember(w *view) history {
	var all DirStats
	for d := range w.total {
		all.merge(&w.total[d].last)
	}
	h := &v.history
	for _, x := range []struct {
		of *[]float64
		v  float64
	}{{&h.bytes, perSec(all.Bytes, all.Runtime)}, {&h.ios, perSec(all.IOs, all.Runtime)}, {&h.p99, float64(percentilesOf(all.ClatHist)[1])}} {
		*x.of = append(*x.of, x.v)
		if n := len(*x.of); n > maxHistory {
			*x.of = slices.Clone((*x.of)[n-maxHistory:])
		}
	}
	return *h
}

// percentilesOf are those that plots have, too; zeroes: there was nothing.
func percentilesOf(h *Histogram) (p [3]time.Duration) {
	if h == nil {
		return p
	}
	for i := range p {
		p[i] = time.Duration(h.Percentiles([]float64{plotted[i].percent})[0])
	}
	return p
}

// text writes the view for a terminal of so many columns, what matters most first.
func (w *view) text(columns int) []byte {
	var b bytes.Buffer
	w.writeHead(&b)
	w.writeHistory(&b, columns)
	w.writeTrouble(&b)
	b.WriteByte('\n')
	w.writeTable(&b)
	return b.Bytes()
}

// writeHead tells how far the run is.
func (w *view) writeHead(b *bytes.Buffer) {
	s := &w.look.Snapshot
	fmt.Fprintf(b, "iser-initiator bench   %v", w.look.Elapsed.Round(time.Second))
	if s.Done >= 0 {
		const width = 20
		fill := int(s.Done * width)
		fmt.Fprintf(b, "   [%s%s] %.1f%%", strings.Repeat("#", fill), strings.Repeat(".", width-fill), 100*s.Done)
	}
	if eta := s.eta(); eta != "" {
		fmt.Fprintf(b, "   %s", eta)
	}
	fmt.Fprintf(b, "   running %d\n\n", s.Running)
}

// writeHistory draws bandwidth, operations and latency of all jobs over the last minutes.
func (w *view) writeHistory(b *bytes.Buffer, columns int) {
	const before, behind = 22, 18 // columns of the words
	room := max(columns-before-behind, 10)
	for _, l := range []struct {
		name   string
		values []float64
		text   func(float64) string
	}{
		{"bandwidth", w.history.bytes, binRate},
		{"IOPS", w.history.ios, func(v float64) string { return num2str(v, 4, 1000, "") }},
		{"p99", w.history.p99, func(v float64) string { return latencyText(time.Duration(v)) }},
	} {
		drawn := l.values[max(0, len(l.values)-room):]
		most := slices.Max(drawn)
		fmt.Fprintf(b, "%-9s %10s  %s  0 … %s\n", l.name, l.text(drawn[len(drawn)-1]), terminal.Sparkline(drawn, most, room), l.text(most))
	}
}

// writeTrouble tells what has gone wrong.
func (w *view) writeTrouble(b *bytes.Buffer) {
	t := &w.trouble
	fmt.Fprintf(b, "\nerrors %d   blocks not verified %d   connections lost %d   commands retried %d, replayed %d\n", t.Errors, t.Bad, t.Session.Losses, t.Session.Retries, t.Session.Replayed)
	if t.FirstErr != nil {
		fmt.Fprintf(b, "the first: %s\n", printable(t.FirstErr.Error()))
	}
	if w.event != "" {
		fmt.Fprintf(b, "the last event: %s\n", printable(w.event))
	}
}

// writeTable writes a line for each job and direction, and before them the sums of several jobs.
func (w *view) writeTable(b *bytes.Buffer) {
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t\t\tLAST SECOND\t\t\t\t\tSO FAR")
	fmt.Fprintln(t, "JOB\t\t\tIOPS\tBANDWIDTH\tP50\tP99\tP99.9\tIOPS\tBANDWIDTH\tP50\tP99\tP99.9")
	if w.jobs > 1 {
		for d := range w.total {
			if r := &w.total[d]; r.doing != "" {
				r.job, r.doing, r.d = "all", " ", dir(d)
				r.write(t)
			}
		}
	}
	for i := range w.rows {
		w.rows[i].write(t)
	}
	_ = t.Flush() // into memory
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(b, strings.TrimRight(line, " \n"))
	}
}

func (r *viewRow) write(t *tabwriter.Writer) {
	doing := r.doing
	if doing == "" {
		doing = "done"
	}
	fmt.Fprintf(t, "%s\t%v\t%s", printable(r.job), r.d, doing)
	for _, s := range []*DirStats{&r.last, &r.all} {
		if s.IOs == 0 {
			fmt.Fprint(t, "\t-\t-\t-\t-\t-")
			continue
		}
		fmt.Fprintf(t, "\t%s\t%s", num2str(perSec(s.IOs, s.Runtime), 4, 1000, ""), binRate(perSec(s.Bytes, s.Runtime)))
		for _, p := range percentilesOf(s.ClatHist) {
			fmt.Fprintf(t, "\t%s", latencyText(p))
		}
	}
	fmt.Fprintln(t)
}

// latencyText writes a latency in three digits, "-" when there is none.
func latencyText(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return digits.Round(d).String()
}

// printable keeps what a name or an error says from doing something to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
