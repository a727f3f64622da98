package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"softiser/internal/digits"
	"softiser/internal/iscsi"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/volume"
)

// traceCommand builds the command that tells the way of each command of a volume.
func traceCommand() *cobra.Command {
	var s socketFlag
	var q admin.TraceRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use: "trace TARGET/LUN | SUBSYSTEM/NSID | VOLUME", Short: "Follow the commands of a volume of a running iser-target, step by step", Args: exactly(1),
		Long: `Tells of each command for a volume, as it ends, where its time went, whichever wire it
came by: a line with the time between its steps, and at the end the percentiles of each.

  LEASED     it has the memory that its data goes to or comes from
  PLACED     the data of a write is there; that of a read has been given to the transport
  COMMITTED  what a write has brought is the volume's content, durable if it asks for that
  ANSWERED   its status has been given to the transport
  RELEASED   the transport is done with its memory: the data of a read has been sent
  TOTAL      from its arrival until it was answered
  WAITED     what of this was a wait in the volume: for the order of commands, for the rate
             limit (qos), for blocks that others hold (range), for its share of the staging
             memory (memory), for a worker

A command that comes by a step again, as a long write that is received in pieces, has the
first time of LEASED and the last one of the others. --json has all times in nanoseconds
since the arrival, and at the end a line with "summary".

It ends after --count commands, or by Ctrl-C. One at a time traces a volume; meanwhile the
clock is read at each step of its commands. They wait for nobody: those that the reader is
too slow for are left out and counted. When another process takes over (iser-target
upgrade) the trace goes on there, without what came meanwhile.`,
		Example: `  iser-target trace iqn.2026-11.softiser:disk0/0 --slower-than 1ms
  iser-target trace disk0 --count 1000
  iser-target trace disk0 --json | jq -c 'select(.waited.qos_ns > 0) | {initiator, answered_ns}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Count < 0 || q.Slower < 0 {
				return usage.Errorf("--count and --slower-than are not negative")
			}
			t := &tracer{out: cmd.OutOrStdout(), json: asJSON}
			return s.with(func(c *admin.Client) error { return t.run(cmd, c, q, args[0]) })
		},
	}
	s.add(cmd)
	cmd.Flags().IntVarP(&q.Count, "count", "c", 0, "stop after this many commands (default: at Ctrl-C)")
	cmd.Flags().DurationVar(&q.Slower, "slower-than", 0, "show only commands that took at least this long to be answered, for example 1ms")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each command")
	cmd.ValidArgsFunction = completeArgs(s.tracedPlaces)
	return cmd
}

// tracedPlaces are what can be traced.
func (s *socketFlag) tracedPlaces([]string, string) (names []string) {
	st := s.state()
	for _, v := range st.Volumes {
		names = append(names, v.Name)
	}
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			names = append(names, fmt.Sprintf("%s/%d", t.Name, l.LUN))
		}
	}
	for _, x := range st.Subsystems {
		for _, n := range x.Namespaces {
			names = append(names, fmt.Sprintf("%s/%d", x.NQN, n.NSID))
		}
	}
	return names
}

// traced says which volume name stands for.
func traced(q *admin.TraceRequest, name string, st *target.Status) error {
	if slices.ContainsFunc(st.Volumes, func(v target.VolumeStatus) bool { return v.Name == name }) {
		q.Volume = name
		return nil
	}
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return fmt.Errorf("no volume named %q is served; iser-target status lists them", name)
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	if err != nil {
		return usage.Errorf("%q: behind the last / the number of a LUN or namespace is needed, as in iqn.2026-11.softiser:disk0/0", name)
	}
	q.Node, q.Unit = name[:i], uint32(n)
	return nil
}

// tracer shows commands, and adds up their steps.
type tracer struct {
	out     io.Writer
	json    bool
	count   int
	leftOut uint64 // by the process that is asked
	// leftBefore are those of processes whose place it has taken.
	leftBefore uint64

	steps [len(traceSteps)]spans
}

// run traces until ctx ends or enough has come, and sums up.
func (t *tracer) run(cmd *cobra.Command, c *admin.Client, q admin.TraceRequest, name string) error {
	asking, cancel := context.WithTimeout(cmd.Context(), askPatience)
	st, err := c.Status(asking)
	cancel()
	if err != nil {
		return err
	}
	if err := traced(&q, name, &st); err != nil {
		return err
	}
	begun, all := false, q.Count
	begin := func() {
		if begun {
			return
		}
		begun = true
		fmt.Fprintf(cmd.ErrOrStderr(), "tracing %s; Ctrl-C ends it\n", iscsi.Printable(name))
		if !t.json {
			fmt.Fprintf(t.out, traceLine, "TIME", "WIRE", "COMMAND", "LBA", "BYTES", "LEASED", "PLACED", "COMMITTED", "ANSWERED", "RELEASED", "TOTAL", "INITIATOR, STATUS, WAITED")
		}
	}
	for {
		since := time.Now()
		if err = c.Trace(cmd.Context(), q, begin, t.show); err == nil || !begun || !replaced(cmd.Context(), c, since) {
			break
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "another process has taken over (iser-target upgrade); the trace goes on there")
		t.leftBefore, t.leftOut = t.leftBefore+t.leftOut, 0
		if all > 0 {
			if q.Count = all - t.count; q.Count <= 0 {
				err = nil
				break
			}
		}
	}
	t.leftOut += t.leftBefore
	if begun {
		err = errors.Join(err, t.sum())
	}
	return err
}

// replaced reports whether another process has taken the target over since then.
func replaced(ctx context.Context, c *admin.Client, since time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	c.Close() // what is left of the connection to the former one
	st, err := c.Status(ctx)
	return err == nil && st.TakenOver != nil && st.TakenOver.At.After(since)
}

// traceLine is a line of the text form: columns that are known before what is in them.
const traceLine = "%-15s %-9s %-22s %10s %8s %9s %9s %9s %9s %9s %9s  %s\n"

// traceSteps are the parts of a command's way that are shown.
var traceSteps = [...]string{"leased", "placed", "committed", "answered", "released", "total"}

// parts are how long a command took from step to step; 0: it has not come by that one.
func parts(c *volume.TracedCommand) (p [len(traceSteps)]time.Duration) {
	var before time.Duration
	for i, at := range [...]time.Duration{c.Leased, c.Placed, c.Committed, c.Answered, c.Released} {
		if at > 0 {
			p[i] = max(at-before, 1)
			before = max(at, before)
		}
	}
	p[len(p)-1] = c.Answered
	return p
}

// show writes a command.
func (t *tracer) show(c *volume.TracedCommand) error {
	t.count++
	t.leftOut = c.LeftOut
	p := parts(c)
	for i, d := range p {
		if d > 0 {
			t.steps[i].observe(d)
		}
	}
	if t.json {
		return json.NewEncoder(t.out).Encode(c)
	}
	lba, size := "-", "-"
	if c.Bytes > 0 {
		lba, size = strconv.FormatUint(c.LBA, 10), strconv.FormatInt(c.Bytes, 10)
	}
	_, err := fmt.Fprintf(t.out, traceLine, c.Arrived.Local().Format("15:04:05.000000"), c.Wire, c.Command, lba, size,
		short(p[0]), short(p[1]), short(p[2]), short(p[3]), short(p[4]), short(p[5]), remarks(c))
	return err
}

// remarks are who has sent a command, what came of it, and what it has waited for.
func remarks(c *volume.TracedCommand) string {
	text := iscsi.Printable(c.Initiator) + ", " + c.Status
	w := &c.Waited
	for _, x := range []struct {
		name string
		took time.Duration
	}{{"order", w.Order}, {"qos", w.QoS}, {"range", w.Range}, {"memory", w.Memory}, {"worker", w.Worker}} {
		if x.took > 0 {
			text += ", " + x.name + " " + short(x.took)
		}
	}
	return text
}

// traceSummary is the last line of --json.
type traceSummary struct {
	Commands int                      `json:"commands"`
	LeftOut  uint64                   `json:"left_out_total"`
	Steps    map[string]traceStepTime `json:"steps"`
}

// traceStepTime is how long commands took to come to a step, from the one before.
type traceStepTime struct {
	Commands uint64        `json:"commands"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
}

// sum writes the percentiles of the steps.
func (t *tracer) sum() error {
	s := traceSummary{Commands: t.count, LeftOut: t.leftOut, Steps: map[string]traceStepTime{}}
	var text strings.Builder
	w := newTable(&text)
	fmt.Fprintln(w, "STEP\tCOMMANDS\tP50\tP99")
	for i, name := range traceSteps {
		x := &t.steps[i]
		if x.count == 0 {
			continue
		}
		p50, p99 := x.percentile(0.5), x.percentile(0.99)
		s.Steps[name] = traceStepTime{x.count, p50, p99}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", name, x.count, digits.Round(p50), digits.Round(p99))
	}
	if t.json {
		return json.NewEncoder(t.out).Encode(map[string]traceSummary{"summary": s})
	}
	_ = w.Flush() // into memory
	table := text.String()
	if t.count == 0 {
		table = ""
	}
	_, err := fmt.Fprintf(t.out, "\n%d %s, %d left out for want of room\n%s", t.count, english.PluralWord(int(t.count), "command", ""), t.leftOut, table)
	return err
}
