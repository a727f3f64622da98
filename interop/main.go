// Command interop runs the project against other people's implementations:
// Linux kernels with siw, ib_iser and LIO in QEMU guests, rdma-core's tools,
// open-iscsi, libiscsi, qemu, tgt. It prints one table (case, expected, seen,
// seconds) and keeps the logs and captures of what failed.
//
//	go run ./interop run            the whole matrix; writes docs/INTEROP.md
//	go run ./interop run -short     one guest, the essential cases
//	go run ./interop run -run iser  only cases whose name contains iser
//	go run ./interop run -again     what has not passed yet, after a run that failed
//	go run ./interop run -write     writes docs/INTEROP.md even after failures or a part of the matrix
//	go run ./interop merge          the same with a run that has been
//	go run ./interop list           the cases
//	go run ./interop build          the guests' images only (build guest: that one); prints their folders
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"softiser/interop/internal/guest"
)

const usage = `usage: interop run [-short] [-run REGEXP] [-again] [-write] [-j N] [-out DIR] [-bin DIR] [-keep] | merge [-out DIR] | list | build [guest|guest-cluster|ublk]…

exit status: 0 all cases as expected, 1 some not, 2 usage, 3 no guest can be run here
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:]))
}

// command runs one of the program's commands and returns its exit code.
func command(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "list":
		for _, c := range matrix {
			fmt.Printf("%-44s %s\n", c.Name, c.Expect)
		}
		return 0
	case "build":
		return build(args[1:])
	case "merge":
		return merge(args[1:])
	case "run":
		return run(ctx, args[1:])
	}
	fmt.Fprint(os.Stderr, usage)
	return 2
}

// build makes images, all of them or those that are named, and prints where they are. "ublk" is
// the module of the plain guest's kernel.
func build(names []string) int {
	if len(names) == 0 {
		names = []string{string(guest.Plain), string(guest.Cluster)}
	}
	for _, name := range names {
		dir, err := buildOne(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "interop:", err)
			return 3
		}
		fmt.Println(dir)
	}
	return 0
}

func buildOne(name string) (dir string, err error) {
	kind := guest.Kind(name)
	switch kind {
	case guest.Plain, guest.Cluster:
	case "ublk":
		kind = guest.Plain
	default:
		return "", fmt.Errorf("%q is neither %s, %s nor ublk", name, guest.Plain, guest.Cluster)
	}
	im, err := prepare(kind)
	if err != nil {
		return "", err
	}
	if name != "ublk" {
		return im.Dir, nil
	}
	return im.Ublk(guest.CacheDir(), func(s string) { fmt.Fprintln(os.Stderr, s) })
}

func prepare(kind guest.Kind) (*guest.Image, error) {
	return guest.Prepare(kind, guest.CacheDir(), func(s string) { fmt.Fprintln(os.Stderr, s) })
}

// imagesOf prepares the guests that the cases want.
func imagesOf(cases []Case) (map[guest.Kind]*guest.Image, error) {
	images := map[guest.Kind]*guest.Image{}
	for _, c := range cases {
		k := c.kind()
		if images[k] != nil {
			continue
		}
		var err error
		if images[k], err = prepare(k); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// merge has docs/INTEROP.md say what an earlier run, whole or not, has come to.
func merge(args []string) int {
	fl := flag.NewFlagSet("merge", flag.ContinueOnError)
	out := fl.String("out", defaultOut, "where the run has left its results.json")
	if err := fl.Parse(args); err != nil {
		return 2
	}
	rec, err := loadRecord(recordFile(*out))
	if err == nil {
		err = writeReport(&rec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	return 0
}

var defaultOut = filepath.Join("out", "interop")

// runOptions are what run is told on its command line.
type runOptions struct {
	match       *regexp.Regexp
	part        bool // not the whole matrix
	short       bool
	jobs        int
	out, bin    string
	keep, again bool
	write       bool
}

// parseRun parses the arguments of run. It has said what is wrong with them if there is an error.
func parseRun(args []string) (o runOptions, err error) {
	fl := flag.NewFlagSet("run", flag.ContinueOnError)
	fl.BoolVar(&o.short, "short", false, "only the essential cases")
	only := fl.String("run", "", "only cases whose name matches")
	fl.IntVar(&o.jobs, "j", 2, "guests at the same time")
	fl.StringVar(&o.out, "out", defaultOut, "where logs and captures stay")
	fl.StringVar(&o.bin, "bin", "bin", "folder of iser-target and iser-initiator")
	fl.BoolVar(&o.keep, "keep", false, "keep the logs of cases that passed too")
	fl.BoolVar(&o.again, "again", false, "run only what has not passed in -out yet; the table has all of it")
	fl.BoolVar(&o.write, "write", false, "write docs/INTEROP.md even if cases failed, with what they said, or only some were run: the rows of the others stay")
	if err := fl.Parse(args); err != nil {
		return o, err
	}
	if o.match, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "interop: -run:", err)
	}
	o.part = o.short || *only != ""
	return o, err
}

// selects reports whether a case is to be run.
func (o *runOptions) selects(c Case) bool {
	return o.match.MatchString(c.Name) && (c.Short || !o.short)
}

// run runs the cases that args ask for, some guests at a time, and writes the table.
func run(ctx context.Context, args []string) int {
	o, err := parseRun(args)
	if err != nil {
		return 2
	}
	selected := slices.DeleteFunc(slices.Clone(matrix), func(c Case) bool { return !o.selects(c) })
	if len(selected) == 0 {
		fmt.Fprintln(os.Stderr, "interop: no case matches")
		return 2
	}
	var rec record
	if o.again {
		if rec, err = loadRecord(recordFile(o.out)); err != nil {
			fmt.Fprintln(os.Stderr, "interop: -again: no earlier run to go on with:", err)
			return 2
		}
	}
	todo := slices.DeleteFunc(slices.Clone(selected), func(c Case) bool { return rec.passed(c.Name) })
	images, err := imagesOf(selected)
	switch {
	case errors.Is(err, guest.ErrNoQEMU):
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 3
	case err != nil:
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	h := &harness{images: images, out: o.out, bin: o.bin, keep: o.keep, short: o.short}
	if err := h.prepare(o.again); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		return 1
	}
	rec.begin(images)
	h.runAll(ctx, todo, o.jobs, func(r Result) {
		progress(r)
		rec.add(r)
		if err := rec.save(recordFile(h.out)); err != nil {
			fmt.Fprintln(os.Stderr, "interop:", err)
		}
	})
	return o.conclude(&rec, selected)
}

// conclude prints what the selected cases have come to, writes docs/INTEROP.md if that is to be, and
// returns the exit code.
func (o *runOptions) conclude(rec *record, selected []Case) int {
	results := rec.results(selected)
	failed := printTable(os.Stdout, results)
	fmt.Printf("\n%d passed, %d failed, %d skipped, %d not run\n", len(results)-failed-skips(results), failed, skips(results), len(selected)-len(results))
	switch {
	case o.write, !o.part && len(results) == len(matrix) && failed == 0:
		if err := writeReport(rec); err != nil {
			fmt.Fprintln(os.Stderr, "interop:", err)
			return 1
		}
	case o.part:
	case len(results) < len(matrix):
		fmt.Println("docs/INTEROP.md was not written: the run is not complete; -again goes on with it, -write writes what there is")
	default:
		fmt.Println("docs/INTEROP.md was not written: -again runs what failed once more, -write writes the table as it is")
	}
	if failed > 0 || len(results) < len(selected) {
		fmt.Printf("logs of the failures: %s\n", o.out)
		return 1
	}
	return 0
}
