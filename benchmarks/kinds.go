package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/result"
	"softiser/benchmarks/internal/rows"
)

// kindOf names a kind of processor from /proc/cpuinfo, as a part of a file's name: vendor, family
// and model, what of AVX there is, and how many processors. The model's name in a virtual machine says too little.
func kindOf(cpuinfo string, arch string, cores int) string {
	first := map[string]string{}
	for line := range strings.Lines(cpuinfo) {
		k, v, ok := strings.Cut(line, ":")
		if k = strings.TrimSpace(k); ok && first[k] == "" {
			first[k] = strings.TrimSpace(v)
		}
	}
	vendor := map[string]string{"GenuineIntel": "intel", "AuthenticAMD": "amd"}[first["vendor_id"]]
	if vendor == "" {
		return fmt.Sprintf("%s-%d-cores", arch, cores)
	}
	flags := strings.Fields(first["flags"])
	avx := "sse"
	for _, f := range []string{"avx2", "vpclmulqdq", "avx512f"} { // the widest comes last
		if slices.Contains(flags, f) {
			avx = f
		}
	}
	return fmt.Sprintf("%s-%s-%s-%s-%d-cores", vendor, first["cpu family"], first["model"], avx, cores)
}

// kind is that of this machine.
func kind() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	return kindOf(string(b), runtime.GOARCH, runtime.NumCPU())
}

func kindCommand() *cobra.Command {
	return &cobra.Command{Use: "kind", Short: "name the kind of this processor, by which there are baselines", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		fmt.Fprintln(cmd.OutOrStdout(), kind())
		return nil
	}}
}

// writeKinds writes KINDS.md: what was to be reached, and what was on each kind of processor, from
// the newest whole run of each among the raw results.
func (o *options) writeKinds() error {
	files, err := filepath.Glob(filepath.Join(o.out, "2*.json"))
	if err != nil {
		return err
	}
	slices.Sort(files) // by time
	newest := map[string]*result.Run{}
	for _, f := range files {
		run, err := result.Load(f)
		if err != nil {
			return err
		}
		if len(run.Remaining()) == 0 && 2*len(run.Selected) > len(rows.All()) { // an older whole run has fewer rows
			newest[kindOfRun(run)] = run
		}
	}
	if len(newest) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(o.dir(), "KINDS.md"), []byte(kindsText(newest)), 0o644)
}

// kindOfRun is the kind of processor of a run; older files have its model's name alone.
func kindOfRun(run *result.Run) string {
	if k := run.Machine["kind"]; k != "" {
		return k
	}
	return fmt.Sprintf("%s, %s cores", run.Machine["cpu"], run.Machine["cores"])
}

// kindsText is the table of the runs, by kind of processor.
func kindsText(runs map[string]*result.Run) string {
	kinds := slices.Sorted(maps.Keys(runs))
	var b strings.Builder
	b.WriteString("# By kind of processor\n\nWritten by `go run ./benchmarks full` and `report --write`: the newest whole run of each kind among the raw results. Bold is not met.\n\n")
	for _, k := range kinds {
		m := runs[k].Machine
		fmt.Fprintf(&b, "- %s: %s, Linux %s, %s; softiser %s, %s\n", k, m["cpu"], m["kernel"], m["go"], m["softiser"], runs[k].Started.UTC().Format("2006-01-02 15:04 UTC"))
	}
	fmt.Fprintf(&b, "\n| target | wanted | %s |\n| --- | ---: |%s\n", strings.Join(kinds, " | "), strings.Repeat(" ---: |", len(kinds)))
	reached := map[string]map[string]result.Outcome{} // target, kind
	var names []string
	for _, k := range kinds {
		for _, row := range runs[k].Rows {
			for _, q := range row.Ratios {
				if reached[q.Name] == nil {
					reached[q.Name] = map[string]result.Outcome{}
					names = append(names, q.Name)
				}
				reached[q.Name][k] = runs[k].Evaluate(row, q)
			}
		}
	}
	for _, name := range names {
		var cells []string
		want := ""
		for _, k := range kinds {
			o, ok := reached[name][k]
			if !ok {
				cells = append(cells, "")
				continue
			}
			cell := o.Reached()
			if o.Missed() {
				cell = "**" + cell + "**"
			}
			cells, want = append(cells, cell), o.Wanted()
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, want, strings.Join(cells, " | "))
	}
	return b.String()
}
