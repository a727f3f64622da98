// Command conformance runs libiscsi's test suite, iscsi-test-cu, against
// iser-target on every kind of backend and prints one table: passed, failed,
// skipped with the reason.
//
//	make conformance                 everything, with Debian's tgt beside it
//	make conformance-short           one kind of backend, Debian's version of the suite
//	make conformance NEWER=          without building the newer version
//	go run ./interop/conformance -kind file-512 -test 'ProutReserve'
//
// Two versions of the suite are run: the one that is installed, and the newest
// that Debian's development suite has, built from its source package and kept in
// the cache (libiscsi.sh).
//
// How the suite is run. iscsi-test-cu counts a skipped test as passed, exits 0
// on failures, and cannot go on after a crash, so each test is a process of its
// own with a time limit, and its text is classified (classify.go). Each family
// of tests gets a freshly started target with fresh volumes, because some tests
// take blocks that they have not written for zeroes.
//
// A volume of one kind cannot exercise everything: tests of removable, write
// protected and slow units run on a second, third and fourth LUN of the same
// backend (tests.go).
//
// The exit status is 1 when a test has failed, 2 when the run itself could not
// be made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

type options struct {
	tool    string // the program that runs
	target  string
	newer   bool
	cache   string
	short   bool
	kinds   *regexp.Regexp
	tests   *regexp.Regexp
	tgt     bool
	keep    string
	jobs    int
	timeout time.Duration
}

func main() {
	var o options
	var kind, test string
	flag.StringVar(&o.tool, "tool", "iscsi-test-cu", "the test program: Debian's, or one built from a newer libiscsi")
	flag.BoolVar(&o.newer, "newer", false, "run the newest version that Debian has as well; it is built on first use")
	flag.StringVar(&o.cache, "cache", defaultCache(), "folder that keeps what was built")
	flag.StringVar(&o.target, "target", "bin/iser-target", "the target program")
	flag.BoolVar(&o.short, "short", false, "one kind of backend, without the tests that take more than a few seconds")
	flag.StringVar(&kind, "kind", ".", "kinds of backend, a regular expression")
	flag.StringVar(&test, "test", ".", "tests, a regular expression")
	flag.BoolVar(&o.tgt, "tgt", true, "run the suite against Debian's tgt too, where it is installed")
	flag.StringVar(&o.keep, "logs", "", "folder that keeps the text of every test")
	flag.IntVar(&o.jobs, "j", 4, "kinds of backend at once")
	flag.DurationVar(&o.timeout, "timeout", 3*time.Minute, "time limit of one test")
	flag.Parse()
	var err1, err2 error
	o.kinds, err1 = regexp.Compile(kind)
	o.tests, err2 = regexp.Compile(test)
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// run runs every suite on every kind of backend, and returns how many tests failed.
func run(ctx context.Context, o *options) (failed int, err error) {
	if _, err := os.Stat(o.target); err != nil {
		return 0, fmt.Errorf("%w; run make build, or name the program with -target", err)
	}
	first, err := installed(o.tool)
	if err != nil {
		return 0, err
	}
	suites := []suite{first}
	if o.newer {
		if s, err := newer(ctx, o.cache); err != nil {
			fmt.Printf("The newer version of the suite is not run: %v\n\n", err)
		} else {
			suites = append(suites, s)
		}
	}
	for _, s := range suites {
		one := *o
		one.tool = s.tool
		n, err := runSuite(ctx, &one, &s)
		if err != nil {
			return failed, err
		}
		failed += n
	}
	return failed, nil
}

// runSuite runs one version of the suite and prints its table.
func runSuite(ctx context.Context, o *options, v *suite) (failed int, err error) {
	tests, err := listTests(ctx, o)
	if err != nil {
		return 0, err
	}
	if len(tests) == 0 {
		return 0, errors.New("no test matches")
	}
	if o.keep != "" {
		o.keep = filepath.Join(o.keep, filepath.Base(filepath.Dir(v.tool)))
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%s, %d tests, one process each\n\n", v.name, len(tests))
	jobs := []func() (*summary, error){}
	for _, k := range kinds {
		if o.kinds.MatchString(k.name) && (k.short || !o.short) {
			jobs = append(jobs, func() (*summary, error) { return k.run(ctx, o, dir, tests) })
		}
	}
	if o.tgt && !o.short {
		jobs = append(jobs, func() (*summary, error) { return runTGT(ctx, o, dir, tests) })
	}
	// Most of the time is the suite's sleeping, so the kinds run side by side.
	sums := make([]*summary, len(jobs))
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	room := make(chan struct{}, o.jobs)
	for i, f := range jobs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			room <- struct{}{}
			sums[i], errs[i] = f()
			<-room
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for _, s := range sums {
		if s.kind != tgtName {
			failed += s.count(failedTest)
		}
	}
	print(os.Stdout, sums)
	fmt.Println()
	return failed, nil
}

// listTests asks the program for its tests, FAMILY.TEST.
func listTests(ctx context.Context, o *options) ([]string, error) {
	// --list writes to the standard error in some versions.
	out, err := exec.CommandContext(ctx, o.tool, "--list").CombinedOutput()
	if err != nil && len(out) == 0 {
		return nil, fmt.Errorf("%s --list: %w", o.tool, err)
	}
	var tests []string
	seen := map[string]bool{}
	for _, l := range strings.Fields(string(out)) {
		name, ok := strings.CutPrefix(l, "ALL.")
		if !ok || strings.Count(name, ".") != 1 || seen[name] || !o.tests.MatchString(name) {
			continue
		}
		seen[name] = true
		if o.short && slow[name] {
			continue
		}
		tests = append(tests, name)
	}
	return tests, nil
}

// defaultCache is the folder that the guest images of the interop tests are in, too.
func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "softiser")
}
