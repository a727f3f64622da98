package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/benchmarks/internal/memory"
	"softiser/benchmarks/internal/result"
	"softiser/benchmarks/internal/rows"
)

func TestSplice(t *testing.T) {
	text, err := splice("a\n"+generatedBegin+"\nold\n"+generatedEnd+"\nb\n", "new")
	if err != nil || text != "a\n"+generatedBegin+"\n\nnew\n"+generatedEnd+"\nb\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := splice("no marks", "x"); err == nil {
		t.Error("a file without marks was accepted")
	}
}

func TestGenerated(t *testing.T) {
	run := &result.Run{
		Machine:  map[string]string{"cores": "2"},
		Commands: map[string]string{"row/c": "/x/bin/iser-target serve --config /tmp/softiser-bench-1/target.yaml\nfio --uri=nbd+unix:///?socket=/tmp/softiser-bench-1/a.sock"},
		Rows:     []result.Row{{ID: "row", Title: "a row", Metrics: []string{result.IOPS}}},
		Samples:  []result.Sample{{Row: "row", Contender: "c", Values: result.Values{result.IOPS: 5}}},
	}
	run.Rows[0].Ratios = []result.Ratio{{Name: "a target", Num: "c", Metric: result.IOPS, Op: ">=", Want: 6}}
	run.Commands["row/e"] = "ip netns add softiser-bench-1-22\ncc -o /tmp/softiser-bench-1-2/p /tmp/softiser-bench-1-2/p.c\n/tmp/softiser-bench-1-2/p serve"
	run.Commands["row/d"] = "taskset -c 1 /tmp/x/benchx verbs-client --addr 127.0.0.1:1"
	got := generated(run, []string{"p.svg"}, func(row string) string { return "LIMITS.md#" + row })
	for _, want := range []string{"- cores: 2", "| a row | c |", "**not met**, [why](LIMITS.md#row)", "ip netns add NETNS\ncc -o SCRATCH/p SCRATCH/p.c\nSCRATCH/p serve\n", "taskset -c 1 go run ./benchmarks verbs-client", "![p](img/p.svg)", "bin/iser-target serve --config SCRATCH/target.yaml", "SCRATCH/a.sock"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}

// How fast memory came stays in the result, with the run's first value, and a machine where it comes slowly is warned of with
// the rows that this spoils.
func TestFirstTouch(t *testing.T) {
	run := &result.Run{Machine: map[string]string{"cores": "2"}}
	var said strings.Builder
	note(&said, run, memory.FirstTouch{Process: 300 * time.Nanosecond, Kernel: 100 * time.Nanosecond})
	if text := said.String(); !strings.Contains(text, "0.30 µs") || strings.Contains(text, "warning") {
		t.Errorf("said %q", text)
	}
	note(&said, run, memory.FirstTouch{Process: 13 * time.Microsecond, Kernel: 9 * time.Microsecond}) // the run is resumed
	_, warning, _ := strings.Cut(said.String(), "warning: ")
	for _, m := range regexp.MustCompile(`[a-z0-9-]+-\*`).FindAllString(warning, -1) {
		if !slices.ContainsFunc(rows.All(), func(r rows.Row) bool { return strings.HasPrefix(r.ID, strings.TrimSuffix(m, "*")) }) {
			t.Errorf("no row is %s", m)
		}
	}
	if !strings.Contains(warning, "first-randwrite-*") || !strings.Contains(said.String(), "13.00 µs") {
		t.Errorf("said %q", said.String())
	}
	path := filepath.Join(t.TempDir(), "run.json")
	if err := run.Save(path); err != nil {
		t.Fatal(err)
	}
	run, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := generated(run, nil, nil); !strings.Contains(text, "- cores: 2\n- first touch of memory: 0.30 µs a page of 4 KiB, 0.10 µs more by the kernel\n") {
		t.Error(text)
	}
}

// Results go where nobody has begun a README.md, and into it again.
func TestPublishElsewhere(t *testing.T) {
	dir := t.TempDir()
	o := &options{out: filepath.Join(dir, "results")}
	for _, cores := range []string{"2", "4"} {
		run := &result.Run{Machine: map[string]string{"cores": cores}, Rows: []result.Row{{ID: "row", Title: "a row", Metrics: []string{result.IOPS}}}}
		if err := o.publish(run); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "README.md"))
		if err != nil || !strings.Contains(string(b), "- cores: "+cores+"\n") || strings.Count(string(b), generatedBegin) != 1 {
			t.Errorf("%s, %v", b, err)
		}
	}
}

func TestLimits(t *testing.T) {
	got := parseLimits("# Limits\nRows: `before`\n## Waiting at QD1: the wake-up\n\nRows: `a-1`, `b`\ntext `c`\n## Two\nRows: `b`, `d`\n")
	if len(got) != 3 || got["a-1"] != "waiting-at-qd1-the-wake-up" || got["b"] != got["a-1"] || got["d"] != "two" {
		t.Errorf("%v", got)
	}
}

// Every row that LIMITS.md names exists, and its section is found wherever the program runs and results go.
func TestLimitsNameRows(t *testing.T) {
	t.Chdir(t.TempDir())
	sections, why := parseLimits(limitsText), limits()
	if len(sections) == 0 {
		t.Error("no row has a section")
	}
	for row, at := range sections {
		if link := why(row); link != "LIMITS.md#"+at {
			t.Errorf("%s: %q, want #%s", row, link, at)
		}
		if !slices.ContainsFunc(rows.All(), func(r rows.Row) bool { return r.ID == row }) {
			t.Errorf("LIMITS.md explains a row %q, which does not exist", row)
		}
	}
}

// Every bound that LIMITS.md names is a contender, and every program in C that it links is there.
func TestLimitsNameBounds(t *testing.T) {
	b, err := os.ReadFile("LIMITS.md")
	if err != nil {
		t.Fatal(err)
	}
	bounds := map[string]bool{}
	for _, r := range rows.All() {
		for _, c := range r.Contenders {
			bounds[c.Name] = true
		}
	}
	for _, m := range quoted.FindAllStringSubmatch(string(b), -1) {
		if name := m[1]; strings.HasPrefix(name, result.BoundPrefix) && !strings.Contains(name, "…") && !bounds[name] {
			t.Errorf("LIMITS.md names %q, which no row has", name)
		}
	}
	for _, m := range regexp.MustCompile(`\((internal/peers/c[^)]*)\)`).FindAllStringSubmatch(string(b), -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Error(err)
		}
	}
}

// An interrupted run goes on with the rows that it has left.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	all := rows.All()
	run := &result.Run{Started: time.Now(), Reps: 1, Seconds: 0.01, Machine: map[string]string{}}
	for _, r := range all[:3] {
		run.Selected = append(run.Selected, r.ID)
		run.Rows = append(run.Rows, r.Row)
	}
	o := &options{out: dir, bin: dir, resume: newest}
	if err := o.resumeRun(t.Context()); err == nil || !strings.Contains(err.Error(), "no raw results") {
		t.Errorf("without a file: %v", err)
	}
	path := o.rawPath(run)
	if err := run.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := o.resumeRun(t.Context()); err == nil || !strings.Contains(err.Error(), "complete") {
		t.Errorf("a complete run: %v", err)
	}
	run.Rows = run.Rows[:1]
	if left := run.Remaining(); !slices.Equal(left, run.Selected[1:]) {
		t.Errorf("left %v", left)
	}
	if err := run.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := o.resumeRun(t.Context()); err == nil || !strings.Contains(err.Error(), "make build first") {
		t.Errorf("without binaries: %v", err)
	}
}
