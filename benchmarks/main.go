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
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/plots"
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
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), nil, quickForm) }}
	some := &cobra.Command{Use: "run ROW…", Short: "measure some rows", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error { return o.run(cmd.Context(), names, fullForm) }}
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
			return o.run(cmd.Context(), nil, fullForm)
		}}
	cmd.Flags().BoolVar(&o.install, "install", os.Geteuid() == 0, "install the peers from Debian first")
	cmd.Flags().StringVar(&o.resume, "resume", "", "go on with an interrupted run: its raw file, or the newest")
	cmd.Flags().Lookup("resume").NoOptDefVal = newest
	return cmd
}
