package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/result"
)

func (o *options) reportCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "report [RAW]", Short: "print the tables of a raw file (default: the newest)", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.report(args) }}
	cmd.Flags().BoolVar(&o.write, "write", false, "draw the plots and write the results into README.md")
	return cmd
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
