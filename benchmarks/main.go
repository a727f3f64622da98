// Command benchmarks measures the product beside its peers, in one run on one
// machine, so that every result is a ratio.
//
//	go run ./benchmarks quick             under three minutes
//	go run ./benchmarks full              everything; installs the peers
//	go run ./benchmarks full --resume     what an interrupted run has left
//	go run ./benchmarks list              the rows
//	go run ./benchmarks run ROW…          some rows
//	go run ./benchmarks loss TABLE… SVG   a plot of throughput over loss (make bench-loss)
//	go run ./benchmarks report [RAW]      tables again; with --write plots and README.md too
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/memory"
	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/plots"
	"softiser/benchmarks/internal/result"
	"softiser/benchmarks/internal/rows"
)

type options struct {
	reps    int
	dur     time.Duration
	limit   time.Duration
	bin     string
	out     string
	resume  string
	install bool
	write   bool
}

// newest as a file name stands for the newest one.
const newest = "newest"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

// root is the command line: quick and full runs, and the hidden helpers that a run
// starts as processes of their own.
func root() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "benchmarks", Short: "Measure the product beside its peers",
		SilenceUsage: true, SilenceErrors: true,
	}
	fs := cmd.PersistentFlags()
	fs.IntVar(&o.reps, "reps", 0, "repetitions (default: 3 quick, 5 full)")
	fs.DurationVar(&o.dur, "time", 0, "time of one measurement (default: 1.5s quick, 1s full)")
	fs.DurationVar(&o.limit, "limit", 30*time.Second, "what a contender may take beyond that before it is killed")
	fs.StringVar(&o.bin, "bin", "bin", "directory of iser-target and iser-initiator (make build)")
	fs.StringVar(&o.out, "out", "benchmarks/results", "directory of raw results")
	quick := &cobra.Command{Use: "quick", Short: "iSER beside our TCP, iperf3 and nbdkit, in under three minutes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), nil, true) }}
	some := &cobra.Command{Use: "run ROW…", Short: "measure some rows", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd.Context(), names, false) }}
	list := &cobra.Command{Use: "list", Short: "list the rows", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		for _, r := range rows.All() {
			fmt.Fprintf(cmd.OutOrStdout(), "%-28s %s\n", r.ID, r.Title)
		}
		return nil
	}}
	here := &cobra.Command{Use: "machine", Short: "describe this machine as the head of a file for benchstat", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		m := machine()
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", strings.ReplaceAll(k, " ", "-"), m[k])
		}
		return nil
	}}
	loss := &cobra.Command{Use: "loss TABLE... SVG", Short: "draw throughput over loss (make bench-loss)", Args: cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			last := len(args) - 1
			return plots.DrawLoss(args[:last], args[last])
		}}
	cmd.AddCommand(quick, o.full(), some, list, o.reportCommand(), o.countsCommand(), kindCommand(), loss, here)
	cmd.AddCommand(helpers()...)
	return cmd
}

func (o *options) full() *cobra.Command {
	cmd := &cobra.Command{Use: "full", Short: "measure every row (about 40 minutes)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.resume != "" {
				return o.resumeRun(cmd.Context())
			}
			if o.install {
				if err := install(cmd.Context()); err != nil {
					fmt.Fprintln(os.Stderr, "benchmarks: peers that are missing are skipped:", err)
				}
			}
			return o.run(cmd.Context(), nil, false)
		}}
	cmd.Flags().BoolVar(&o.install, "install", os.Geteuid() == 0, "install the peers from Debian first")
	cmd.Flags().StringVar(&o.resume, "resume", "", "go on with an interrupted run: its raw file, or the newest")
	cmd.Flags().Lookup("resume").NoOptDefVal = newest
	return cmd
}

func (o *options) reportCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "report [RAW]", Short: "print the tables of a raw file (default: the newest)", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.report(args) }}
	cmd.Flags().BoolVar(&o.write, "write", false, "draw the plots and write the results into README.md")
	return cmd
}

// packages are the peers, their clients, and what counts and compiles.
var packages = []string{"tgt", "nbdkit", "qemu-utils", "qemu-block-extra", "iperf3", "ucx-utils", "fio", "libiscsi-bin", "libnbd-bin",
	"linux-perf", "iproute2", "gcc", "libc6-dev", "e2fsprogs", "xfsprogs"}

// install installs what the rows need, unless everything is there.
func install(ctx context.Context) error {
	missing := rows.Missing(rows.All())
	if len(missing) == 0 {
		return nil
	}
	fmt.Fprintln(os.Stderr, "installing the peers from Debian; not there yet:", strings.Join(missing, " "))
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, apt, append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get: %w: %s", err, out[max(0, len(out)-300):])
	}
	return nil
}

func (o *options) run(ctx context.Context, names []string, quick bool) error {
	if o.reps == 0 {
		o.reps = map[bool]int{true: 3, false: 5}[quick]
	}
	if o.dur == 0 {
		o.dur = map[bool]time.Duration{true: 1500 * time.Millisecond, false: time.Second}[quick]
	}
	selected, err := rows.Select(rows.All(), names, quick)
	if err != nil {
		return err
	}
	run := &result.Run{Started: time.Now(), Quick: quick, Machine: machine(), Reps: o.reps, Seconds: o.dur.Seconds()}
	for _, r := range selected {
		run.Selected = append(run.Selected, r.ID)
	}
	return o.measure(ctx, run, selected, o.rawPath(run), names == nil && !quick)
}

// resumeRun measures the rows that an interrupted run has left, with its
// repetitions and times.
func (o *options) resumeRun(ctx context.Context) error {
	path, err := o.rawFile(o.resume)
	if err != nil {
		return err
	}
	run, err := result.Load(path)
	if err != nil {
		return err
	}
	left := run.Remaining()
	if len(left) == 0 {
		return fmt.Errorf("%s is complete: there is nothing to resume", path)
	}
	if then, now := run.Machine["softiser"], o.version(); then != now {
		fmt.Fprintf(os.Stderr, "note: %s was begun with iser-target %s, this is %s\n", path, then, now)
	}
	selected, err := rows.Select(rows.All(), left, false)
	if err != nil {
		return err
	}
	o.reps, o.dur = run.Reps, time.Duration(run.Seconds*float64(time.Second))
	return o.measure(ctx, run, selected, path, len(run.Selected) == len(rows.All()))
}

// measure measures rows, keeps the raw results after each, and prints the
// tables; whole says that README.md is to be written at the end.
func (o *options) measure(ctx context.Context, run *result.Run, selected []rows.Row, path string, whole bool) error {
	env, cleanup, err := o.env()
	if err != nil {
		return err
	}
	defer cleanup()
	if busy := loadAverage(); busy > 0.5 {
		fmt.Fprintf(os.Stderr, "note: the load average is %.1f; ratios from a busy machine are noise\n", busy)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	touch, err := memory.Probe(probed)
	if err != nil {
		return err
	}
	note(os.Stderr, run, touch)
	if run.Machine["softiser"] == "" {
		run.Machine["softiser"] = o.version()
	}
	h := &rows.Harness{
		Env: env, Reps: o.reps, Quick: run.Quick, Limit: o.limit,
		Say:  func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
		Keep: func(r *result.Run) error { return r.Save(path) },
	}
	err = h.Measure(ctx, selected, run)
	if len(run.Rows) > 0 {
		fmt.Fprintln(os.Stderr, "raw results:", path)
		printRun(run)
	}
	switch {
	case ctx.Err() != nil && len(run.Rows) > 0:
		return fmt.Errorf("interrupted, %d of %d rows left; go on with: go run ./benchmarks full --resume=%s", len(run.Remaining()), len(run.Selected), path)
	case err != nil:
		return err
	case whole:
		err = o.publish(run)
	}
	if failed := run.Failed(); err == nil && len(failed) > 0 {
		err = fmt.Errorf("no figure of %s: the tables have why", strings.Join(failed, ", "))
	}
	return err
}

// probed is how much memory is touched to learn how fast it comes, bytes: a third of a second where it comes slowly.
const probed = 64 << 20

// firstTouch is the key of Run.Machine for how fast new memory comes.
const firstTouch = "first touch of memory"

// note keeps how fast new memory came when a run began, and says what it spoils where that is slow.
func note(w io.Writer, run *result.Run, t memory.FirstTouch) {
	if run.Machine[firstTouch] == "" {
		run.Machine[firstTouch] = t.String()
	}
	fmt.Fprintf(w, "%s: %v\n", firstTouch, t)
	if t.Unusual() {
		fmt.Fprintln(w, "warning: that is far more than the usual 0.25 to 0.5 µs. Rows that make the page cache grow measure it and little else: cold-randread-*, durable-randwrite-*, first-randwrite-*. "+
			"In the others what is measured with is touched before, save buffers of a few MiB of 1 MiB rows; LIMITS.md has how to read such a run.")
	}
}

func (o *options) env() (e peers.Env, cleanup func(), err error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return e, nil, err
	}
	for _, b := range []string{"iser-target", "iser-initiator"} {
		if _, err := os.Stat(filepath.Join(bin, b)); err != nil {
			return e, nil, fmt.Errorf("%w (make build first)", err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return e, nil, err
	}
	scratch, err := peers.NewScratch()
	if err != nil {
		return e, nil, err
	}
	return peers.Env{Bin: bin, Scratch: scratch, Self: self, Dur: o.dur}, func() { os.RemoveAll(scratch) }, nil
}

// rawPath is where a run's raw results go: quick.json, or a file named by the
// time.
func (o *options) rawPath(run *result.Run) string {
	name := run.Started.UTC().Format("20060102-150405")
	if run.Quick {
		name = "quick"
	}
	return filepath.Join(o.out, name+".json")
}

// rawFile is a named raw file, or the newest one.
func (o *options) rawFile(name string) (string, error) {
	if name != newest {
		return name, nil
	}
	all, _ := filepath.Glob(filepath.Join(o.out, "2*.json"))
	if len(all) == 0 {
		return "", fmt.Errorf("no raw results in %s", o.out)
	}
	return slices.Max(all), nil
}

// version is what the product says of itself.
func (o *options) version() string {
	out, err := exec.Command(filepath.Join(o.bin, "iser-target"), "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "iser-target version "))
}

// printRun prints the tables, and warns of targets that are neither met nor
// explained.
func printRun(run *result.Run) {
	fmt.Println()
	run.WriteTable(os.Stdout)
	fmt.Println()
	run.WriteTargets(os.Stdout, nil)
	if left := run.Remaining(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "not measured:", strings.Join(left, " "))
	}
	why := limits()
	missed, ids := run.Missed()
	for i, q := range missed {
		if why(ids[i]) == "" {
			fmt.Fprintf(os.Stderr, "warning: %s (row %s): %v, and LIMITS.md has no section for it\n", q.Name, ids[i], q)
		}
	}
}

// report works on the newest raw file unless one is named.
func (o *options) report(args []string) error {
	path, err := o.rawFile(append(args, newest)[0])
	if err != nil {
		return err
	}
	run, err := result.Load(path)
	if err != nil {
		return err
	}
	if run.Selected == nil { // an older file
		for _, r := range run.Rows {
			run.Selected = append(run.Selected, r.ID)
		}
	}
	printRun(run)
	if o.write {
		return o.publish(run)
	}
	return nil
}

// loadAverage is that of the last minute.
func loadAverage() (v float64) {
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		fmt.Sscan(string(b), &v)
	}
	return v
}

// machine describes where the run took place.
func machine() map[string]string {
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	m := map[string]string{
		"kernel":             read("/proc/sys/kernel/osrelease"),
		"cores":              fmt.Sprint(runtime.NumCPU()),
		"kind":               kind(),
		"go":                 runtime.Version(),
		"congestion control": read("/proc/sys/net/ipv4/tcp_congestion_control"),
		"load at start":      read("/proc/loadavg"),
	}
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m["cpu"] = strings.TrimSpace(v)
			break
		}
	}
	for line := range strings.Lines(read("/proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			m["memory"] = strings.TrimSpace(v)
		}
	}
	return m
}
