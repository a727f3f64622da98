package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"softiser/benchmarks/internal/plots"
	"softiser/benchmarks/internal/result"
)

// The part of benchmarks/README.md between these lines is written by "full" and
// "report -write"; the rest is written by people.
const (
	generatedBegin = "<!-- results: written by go run ./benchmarks full -->"
	generatedEnd   = "<!-- end of results -->"
)

// dir is where README.md is: beside the results directory.
func (o *options) dir() string { return filepath.Dir(filepath.Clean(o.out)) }

// publish draws the plots and replaces the generated part of README.md.
func (o *options) publish(run *result.Run) error {
	dir := o.dir()
	img := filepath.Join(dir, "img")
	if err := os.MkdirAll(img, 0o755); err != nil {
		return err
	}
	files, err := plots.Draw(run, img)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "README.md")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) { // --out is not that of the repository
		b, err = []byte("# Results\n\n"+generatedBegin+"\n"+generatedEnd+"\n"), nil
	}
	if err != nil {
		return err
	}
	text, err := splice(string(b), generated(run, files, limits()))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	return o.writeKinds()
}

// splice puts the generated part between its marks.
func splice(text, part string) (string, error) {
	before, rest, ok1 := strings.Cut(text, generatedBegin)
	_, after, ok2 := strings.Cut(rest, generatedEnd)
	if !ok1 || !ok2 {
		return "", fmt.Errorf("the lines %q and %q are missing", generatedBegin, generatedEnd)
	}
	return before + generatedBegin + "\n\n" + part + "\n" + generatedEnd + after, nil
}

// generated is machine, targets, table, plots and commands of a run.
func generated(run *result.Run, files []string, why func(string) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s: %d repetitions of %.1f s (some rows fewer).\n\n", run.Started.UTC().Format("2006-01-02 15:04 UTC"), run.Reps, run.Seconds)
	keys := make([]string, 0, len(run.Machine))
	for k := range run.Machine {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "- %s: %s\n", k, run.Machine[k])
	}
	b.WriteString("\n### What was to be reached\n\n")
	run.WriteTargets(&b, why)
	b.WriteString("\n### Every row\n\n")
	run.WriteTable(&b)
	if len(files) > 0 {
		b.WriteString("\n### Plots\n\nMedians; the bars are the extremes of the repetitions.\n\n")
		for _, f := range files {
			fmt.Fprintf(&b, "![%s](img/%s)\n", strings.TrimSuffix(f, ".svg"), f)
		}
	}
	b.WriteString("\n### The command of each figure\n\nServers first, then what fills the volume, then the measured command.\n" +
		"A contender without a server uses the one of the contender before it.\n\n")
	keys = keys[:0]
	for k := range run.Commands {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b.WriteString("<details><summary>all commands</summary>\n\n```\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "# %s\n%s\n", k, shorten(run.Commands[k]))
	}
	b.WriteString("```\n\n</details>\n")
	return b.String()
}

var (
	scratchPath = regexp.MustCompile(`/[^ =\n]*softiser-bench-[^/ \n]+/`)
	netnsName   = regexp.MustCompile(`softiser-bench-\d+-\d+`)
	productPath = regexp.MustCompile(`(^|\s)/\S+/(iser-target|iser-initiator)(\s|$)`)
	helperPath  = regexp.MustCompile(`(^|\s)/\S+ ((?:verbs|tcp)-(?:server|client)\s)`)
)

// shorten replaces what differs from run to run or from machine to machine.
func shorten(cmd string) string {
	cmd = scratchPath.ReplaceAllString(cmd, "SCRATCH/")
	cmd = netnsName.ReplaceAllString(cmd, "NETNS")
	cmd = helperPath.ReplaceAllString(cmd, "${1}go run ./benchmarks $2")
	return productPath.ReplaceAllString(cmd, "${1}bin/$2$3")
}
