package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/digits"
	"softiser/internal/iscsi"
	"softiser/internal/terminal"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/admin"
)

// topCommand builds the command that shows what a running target does now, again and again.
func topCommand() *cobra.Command {
	var s socketFlag
	var once, asJSON bool
	var every time.Duration
	cmd := &cobra.Command{
		Use: "top", Short: "Watch volumes, sessions and hosts of a running iser-target", Args: exactly(0),
		Long: `Shows what volumes, sessions and controllers of NVMe hosts do now: operations and
bytes per second, latency, and commands in execution, the busiest first. On a terminal it
refreshes until Ctrl-C, and leaves the terminal as it was; elsewhere it writes one table
after the other.

QUEUE of a volume is how many reads and writes were in execution on average, LATENCY how
long they took on average, P99 the 99th percentile; all since the last refresh.`,
		Example: `  iser-target top
  iser-target top --interval 5s
  iser-target top --once --json | jq '.volumes[] | {name, read_iops}'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return exit(exitUsage, fmt.Errorf("--interval %v: at least 100ms", every))
			}
			ctx := cmd.Context() // which a signal ends; a second one ends a program that waits for its terminal
			t := &top{out: cmd.OutOrStdout(), once: once, json: asJSON, every: every}
			if o, ok := t.out.(*usage.Output); ok {
				t.tty = o.W
			}
			return t.run(ctx, func() (st target.Status, err error) {
				err = s.ask(ctx, func(ctx context.Context, c *admin.Client) error {
					st, err = c.Status(ctx)
					return err
				})
				return st, err
			})
		},
	}
	s.add(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "show one interval, and exit")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each interval")
	cmd.Flags().DurationVarP(&every, "interval", "i", 2*time.Second, "time between refreshes")
	return cmd
}

// top shows a target again and again.
type top struct {
	out        io.Writer
	tty        io.Writer // where out is written to in the end: perhaps a terminal
	once, json bool
	every      time.Duration
}

// run looks until ctx ends, which is no error, or the target has gone.
func (t *top) run(ctx context.Context, ask func() (target.Status, error)) error {
	before, err := ask()
	if err != nil {
		return err
	}
	at := time.Now()
	var screen *terminal.Screen // nil: tables are printed one after the other
	if !t.once && !t.json {
		screen = terminal.OpenScreen(t.out, t.tty)
	}
	if screen != nil {
		defer screen.Close()
		screen.Show(func(int) []byte { return []byte("looking …") })
	}
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := ask()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		v := newTopView(&before, &now, time.Since(at))
		before, at = now, time.Now()
		switch {
		case t.json:
			err = json.NewEncoder(t.out).Encode(v)
		case screen != nil:
			text := v.table()
			err = screen.Show(func(int) []byte { return text })
		default:
			_, err = t.out.Write(append(v.table(), '\n'))
		}
		if err != nil || t.once {
			return err
		}
	}
}

// table writes the view for people.
func (v *topView) table() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "iser-target %s, up %v   sessions %d   controllers %d   read %s/s %s IOPS   write %s/s %s IOPS   not served %d\n\n",
		v.State, v.Uptime.Round(time.Second), len(v.Sessions), len(v.Controllers),
		si(v.Total.ReadBytes), si(v.Total.ReadIOPS), si(v.Total.WriteBytes), si(v.Total.WriteIOPS), v.NotServed)
	w := newTable(&b)
	fmt.Fprintln(w, "VOLUME\tR IOPS\tR B/s\tLATENCY\tP99\tW IOPS\tW B/s\tLATENCY\tP99\tQUEUE\tWAITING (QoS)")
	for _, x := range v.Volumes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%d\n", iscsi.Printable(x.Name), si(x.ReadIOPS), si(x.ReadBytes), short(x.ReadLatency), short(x.ReadP99),
			si(x.WriteIOPS), si(x.WriteBytes), short(x.WriteLatency), short(x.WriteP99), x.Queue, x.Waiting)
	}
	fmt.Fprintln(w, "\t\t\t\t\t\t\t\t\t\t")
	_ = w.Flush() // into memory
	if len(v.Sessions) > 0 {
		w = newTable(&b)
		fmt.Fprintln(w, "TSIH\tTRANSPORT\tR IOPS\tR B/s\tW IOPS\tW B/s\tBUSY\tINITIATOR")
		for _, x := range v.Sessions {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", x.TSIH, x.Transport, si(x.ReadIOPS), si(x.ReadBytes), si(x.WriteIOPS), si(x.WriteBytes), x.Busy, iscsi.Printable(x.Peer))
		}
		fmt.Fprintln(w, "\t\t\t\t\t\t\t")
		_ = w.Flush()
	}
	if len(v.Controllers) > 0 {
		w = newTable(&b)
		fmt.Fprintln(w, "ID\tTRANSPORT\tR IOPS\tR B/s\tW IOPS\tW B/s\tBUSY\tHOST")
		for _, x := range v.Controllers {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", x.ID, x.Transport, si(x.ReadIOPS), si(x.ReadBytes), si(x.WriteIOPS), si(x.WriteBytes), x.Busy, iscsi.Printable(x.Peer))
		}
		_ = w.Flush()
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return []byte(strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n")
}

// si writes a rate in three or four digits, powers of ten.
func si(v float64) string {
	const units = " kMGT"
	i := 0
	for ; v >= 999.5 && i < len(units)-1; i++ {
		v /= 1000
	}
	if i == 0 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g%c", v, units[i])
}

// short writes a duration in three digits, "-" when there is none.
func short(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return digits.Round(d).String()
}
