package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/initiator/connflags"
	"softiser/internal/durable"
	"softiser/internal/terminal"
	"softiser/internal/usage"
)

const long = `Drive a volume with a load and report bandwidth and latency as fio does.

Options have fio's names, units (k = 1024) and meaning; _ and - are the same.
docs/FIO.md lists them, and what is different.
Options before the first --name are defaults for all jobs, each --name begins a
job. With job files (fio's ini grammar), options given here override theirs, and
so does a URL: what the files name as filename= gives way to it. What a job file
asks for and cannot have is refused with its place, never read as something else.

The exit status is 0 when all jobs have run to their end and every operation and
every check succeeded; 1 when one of them failed, be the run interrupted or not;
and 128, as fio's, when a signal has ended the run early without a failure. An
interrupted run does not verify what it has written. When a target is away at the
end of --runtime, the run waits for it for ten seconds more, then reports what was
done and ends with 1.`

const example = `  # random reads, 4 KiB, 32 in flight, ten seconds
  iser-initiator bench iser://127.0.0.1/iqn.2026-11.softiser:demo/0 \
      --rw=randread --bs=4k --iodepth=32 --runtime=10 --time-based

  # write every block once and check it
  iser-initiator bench iser://127.0.0.1/iqn.2026-11.softiser:demo/0 \
      --rw=randwrite --bs=4k --iodepth=32 --size=1g --verify=crc32c

  # the jobs of a file, as JSON that reads like fio's
  iser-initiator bench job.fio --output-format=json

  # the same load for a minute, drawn over time
  iser-initiator bench URL --rw=randrw --iodepth=32 --runtime=60 --time-based --plot=run.svg

  # the same to look at while it runs
  iser-initiator bench URL --rw=randrw --iodepth=32 --runtime=60 --time-based --live

  # did a crash lose an acknowledged write? (after a loss of power: a flushed one, --verify-durable)
  iser-initiator bench URL --rw=randwrite --bs=4k --verify=crc32c --verify-state=run.ledger
  iser-initiator bench URL --rw=randwrite --bs=4k --verify=crc32c --verify-state=run.ledger --verify-only`

// Command returns "bench" for the command tree of iser-initiator.
func Command() *cobra.Command {
	c := &command{}
	cmd := &cobra.Command{
		Use:     "bench [URL] [JOBFILE…]",
		Short:   "Measure and verify a volume, fio-style",
		Long:    long,
		Example: example,
		Args:    cobra.ArbitraryArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	c.register(cmd.Flags())
	return cmd
}

// command is one invocation.
type command struct {
	sections  []Section // from the command line; the first is global
	conn      *connflags.Options
	format    string
	formats   []string // of --output-format, split
	output    string
	eta       string
	json      bool
	minimal   bool
	parseOnly bool
	only      []string // names of sections
	status    string   // --status-interval
	plot      string   // file for the SVG
	live      bool
}

// register adds the options of a job to fs. They apply to the job that the last --name
// has begun.
func (c *command) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	c.sections = []Section{{Name: globalSection, Pos: "command line"}}
	fs.Var(nameFlag{c}, "name", "begin a job of this name")
	for i := range options {
		o := &options[i]
		if o.name == "busy_poll" || o.name == "name" {
			continue // a connection option on the command line, and nameFlag
		}
		for k, name := range append([]string{o.name}, o.aliases...) {
			f := fs.VarPF(optionFlag{c, o}, name, "", o.help)
			f.Hidden = k > 0
			switch {
			case o.value == "" || o.value == "0|1":
				f.NoOptDefVal = "1"
			case strings.HasPrefix(o.value, "["):
				f.NoOptDefVal = ofJob
			}
		}
	}
	for name := range ignored {
		f := fs.VarPF(optionFlag{c, &option{name: name}}, name, "", "ignored: "+ignored[name])
		f.Hidden, f.NoOptDefVal = true, "1"
	}
	fs.StringVar(&c.format, "output-format", "normal", "normal, json, json+ or terse; several with commas")
	fs.BoolVar(&c.json, "json", false, "same as --output-format=json")
	fs.BoolVar(&c.minimal, "minimal", false, "same as --output-format=terse")
	fs.StringVar(&c.output, "output", "", "write the report to this file")
	fs.StringVar(&c.plot, "plot", "", "draw latency percentiles, bandwidth and IOPS over time into this file, as SVG")
	fs.StringVar(&c.status, "status-interval", "", "write the whole report this often while jobs run (seconds, or with unit)")
	fs.StringVar(&c.eta, "eta", "auto", "progress line: auto (on a terminal), always or never")
	fs.BoolVar(&c.live, "live", false, "watch the jobs on the whole terminal instead of in a line: rates and latencies of each, drawn over the last minutes")
	fs.StringArrayVar(&c.only, "section", nil, "read only this section of the job files, and the global ones (may be repeated)")
	fs.BoolVar(&c.parseOnly, "parse-only", false, "check options and job files, run nothing")
	c.conn = connflags.Register(fs)
}

// optionFlag adds an option to the job being described.
type optionFlag struct {
	c *command
	o *option
}

func (f optionFlag) Set(v string) error {
	s := &f.c.sections[len(f.c.sections)-1]
	s.Opts = append(s.Opts, KV{Key: f.o.name, Value: v, Pos: "--" + strings.ReplaceAll(f.o.name, "_", "-")})
	return nil
}

func (f optionFlag) String() string { return "" }

func (f optionFlag) Type() string { return f.o.value }

// nameFlag begins a job.
type nameFlag struct{ c *command }

func (f nameFlag) Set(v string) error {
	if v == "" || v == globalSection {
		return fmt.Errorf("%q cannot be a job's name", v)
	}
	f.c.sections = append(f.c.sections, Section{Name: v, Pos: "command line"})
	return nil
}

func (f nameFlag) String() string { return "" }
func (f nameFlag) Type() string   { return "NAME" }

// split tells volumes from job files among the arguments.
func split(args []string) (url string, files []string, err error) {
	for _, a := range args {
		if !strings.Contains(a, "://") {
			files = append(files, a)
			continue
		}
		if url != "" {
			return "", nil, errors.New("two volumes given: give one URL, or uri= in each job")
		}
		url = a
	}
	return url, files, nil
}

// jobs combines job files and the command line.
func (c *command) jobs(url string, files []string) (jobs []*Job, global []KV, notes []string, err error) {
	sections := c.sections
	var moved []string
	if len(files) > 0 {
		if sections, moved, err = c.override(url, files); err != nil {
			return nil, nil, nil, err
		}
	} else if len(c.only) > 0 {
		return nil, nil, nil, errors.New("--section says what to read of a job file, and there is none on the command line")
	} else if len(sections) == 1 {
		sections = []Section{{Name: "bench", Pos: "command line", Opts: sections[0].Opts}}
	}
	for _, s := range sections {
		if s.Name == globalSection {
			global = append(global, s.Opts...)
		}
	}
	jobs, notes, err = ParseJobs(sections)
	return jobs, global, append(moved, notes...), err
}

// override reads job files and appends the command line's options to each job.
// A URL among the arguments takes the place of what the files name, so that a
// file written for /dev/sda need not be changed.
func (c *command) override(url string, files []string) (sections []Section, notes []string, err error) {
	if len(c.sections) > 1 {
		return nil, nil, errors.New("--name cannot be used together with a job file")
	}
	for _, f := range files {
		s, err := ParseJobFile(f, c.only...)
		if err != nil {
			return nil, nil, err
		}
		sections = append(sections, s...)
	}
	for i := range sections {
		s := &sections[i]
		if url != "" {
			s.Opts = slices.DeleteFunc(s.Opts, func(kv KV) bool {
				if o := optionByName(kv.Key); o == nil || o.name != "uri" {
					return false
				}
				notes = append(notes, fmt.Sprintf("%s: %s gives way to the volume on the command line", kv.Pos, kv.Key))
				return true
			})
		}
		if s.Name != globalSection {
			s.Opts = append(s.Opts, c.sections[0].Opts...)
		}
	}
	return sections, notes, nil
}

// settle checks what the options say of the output, and completes it. every is the status interval;
// 0: no reports meanwhile.
func (c *command) settle(stderr io.Writer) (every time.Duration, err error) {
	if c.json {
		c.format = "json"
	}
	if c.minimal {
		c.format = "terse"
	}
	c.formats = strings.Split(c.format, ",")
	for _, f := range c.formats {
		if !slices.Contains([]string{"normal", "json", "json+", "terse"}, f) {
			return 0, usage.Errorf("--output-format=%s: expected normal, json, json+ or terse, or several with commas", c.format)
		}
	}
	if !slices.Contains([]string{"auto", "always", "never"}, c.eta) {
		return 0, usage.Errorf("--eta=%s: expected auto, always or never", c.eta)
	}
	if c.status != "" {
		if every, err = parseDuration(c.status, time.Second); err != nil || every == 0 {
			return 0, usage.Errorf("--status-interval=%s: expected a time above 0, such as 10 or 500ms", c.status)
		}
	}
	switch {
	case c.live && terminal.Columns(stderr) == 0:
		return 0, usage.Errorf("--live: stderr is no terminal, or one that does not know its size (stty size)")
	case c.live && terminal.Dumb():
		return 0, usage.Errorf("--live: stderr is a terminal that can only write lines (TERM=dumb); --eta=always writes one")
	case c.live && every > 0 && (c.output == "" || c.output == "-"):
		return 0, usage.Errorf("--live together with --status-interval: the reports need a file of their own, --output")
	}
	return every, nil
}

// run turns the command line into jobs, and has them measured.
func (c *command) run(cmd *cobra.Command, args []string) error {
	stderr := cmd.ErrOrStderr()
	every, err := c.settle(stderr)
	if err != nil {
		return err
	}
	url, files, err := split(args)
	if err != nil {
		return usage.Wrap(err)
	}
	jobs, global, notes, err := c.jobs(url, files)
	if err != nil {
		return usage.Wrap(err)
	}
	for _, n := range notes {
		fmt.Fprintln(stderr, n)
	}
	if c.parseOnly {
		return nil
	}
	if i := slices.IndexFunc(jobs, func(j *Job) bool { return j.URL == "" }); i >= 0 && url == "" {
		return usage.Wrap(noVolume(jobs[i]))
	}
	cmd.SilenceUsage = true
	return c.measure(cmd, url, jobs, global, every)
}

// measure runs the jobs and reports, and every so often meanwhile; url is the volume of those that
// name none, global what the job file says of all.
func (c *command) measure(cmd *cobra.Command, url string, jobs []*Job, global []KV, every time.Duration) error {
	stderr := cmd.ErrOrStderr()
	out, endOut, err := c.open(cmd.OutOrStdout(), every > 0)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if slices.Contains(c.formats, "normal") {
		WriteHeader(out, jobs)
	}
	cfg := Config{Open: c.opener(cmd.Flags()), URL: url}
	var line progress
	if every > 0 {
		cfg.StatusEvery = every
		cfg.Status = func(r *Report) { // what cannot be written now cannot be at the end either, which is told then
			line.clear()
			_ = r.write(out, c.formats, global)
		}
	}
	endPlot := func(err error) error { return err }
	if c.plot != "" {
		f, err := durable.Replace(c.plot)
		if err != nil {
			return endOut(fmt.Errorf("--plot: %w", err))
		}
		cfg.Plot, endPlot = f, ended(f)
	}
	var view *liveView
	switch {
	case c.live:
		view = openLive(stderr)
		cfg.Live, c.conn.Events = view.tick, view
	case c.eta == "always" || c.eta == "auto" && terminal.Is(stderr):
		line.w = stderr
		cfg.Tick = line.tick
	}
	context.AfterFunc(ctx, view.close)
	usage.Insist(ctx, stop)
	rep, err := Run(ctx, jobs, cfg)
	line.clear()
	view.close()
	if err = endPlot(err); err != nil {
		if ctx.Err() != nil {
			err = &usage.Exit{Code: exitInterrupted, Err: fmt.Errorf("bench: interrupted before the first job ran: %w", err)}
		}
		return endOut(err)
	}
	if err := endOut(rep.write(out, c.formats, global)); err != nil {
		return err
	}
	return rep.outcome()
}

// exitInterrupted is what fio ends with after a signal.
const exitInterrupted = 128

// outcome is the error that the command ends with after a report has been written.
func (r *Report) outcome() error {
	if err := r.Err(); err != nil || !r.Interrupted {
		return err
	}
	text := "bench: interrupted; the report covers what was done until then"
	if r.Unverified {
		text += ", and the verification is missing or incomplete"
	}
	return &usage.Exit{Code: exitInterrupted, Err: errors.New(text)}
}

// write prints the report in the formats of the --output-format option, one after
// the other. Like fio, it writes both kinds of JSON once.
func (r *Report) write(w io.Writer, formats []string, global []KV) (err error) {
	json := false
	for _, f := range formats {
		switch f {
		case "json", "json+":
			if !json {
				err = errors.Join(err, r.WriteJSON(w, global, slices.Contains(formats, "json+")))
			}
			json = true
		case "terse":
			r.WriteTerse(w)
		default:
			r.WriteText(w)
		}
	}
	return err
}

// Err is nil when everything succeeded; otherwise it says how much did not,
// and the first cause.
func (r *Report) Err() error {
	var errs, bad uint64
	var first error
	for _, s := range r.Clones {
		errs, bad = errs+s.Errors, bad+s.Bad
		if first == nil {
			first = s.FirstErr
		}
	}
	if first == nil {
		return nil
	}
	if errs == 0 && bad == 0 {
		return fmt.Errorf("bench: every operation succeeded, but: %w", first) // a log
	}
	return fmt.Errorf("bench: %d operations failed, %d blocks did not verify; the first: %w", errs, bad, first)
}

// open returns where the report goes to, and what ends it with the error of the run. A report takes the
// place of an earlier one when it is whole; of those that come during the run (follow) each is to be read at once.
func (c *command) open(stdout io.Writer, follow bool) (io.Writer, func(error) error, error) {
	if c.output == "" || c.output == "-" {
		return stdout, func(err error) error { return err }, nil
	}
	if follow {
		f, err := os.Create(c.output)
		if err != nil {
			return nil, nil, fmt.Errorf("--output: %w", err)
		}
		w := &reportFile{w: f}
		return w, func(err error) error { return errors.Join(cmp.Or(err, w.err), f.Close()) }, nil
	}
	f, err := durable.Replace(c.output)
	if err != nil {
		return nil, nil, fmt.Errorf("--output: %w", err)
	}
	w, end := &reportFile{w: f}, ended(f)
	return w, func(err error) error { return end(cmp.Or(err, w.err)) }, nil
}

// reportFile keeps the first error of what is written to a file, which reports for people do not tell.
type reportFile struct {
	w   io.Writer
	err error
}

func (r *reportFile) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("--output: %w; not all of the report has been written", err)
	}
	return n, err
}

// ended keeps a file of a run that has ended well, and drops it otherwise.
func ended(f *durable.Replacement) func(error) error {
	return func(err error) error {
		if err != nil {
			f.Discard()
			return err
		}
		return f.Keep(true)
	}
}

// opener dials our own initiator.
func (c *command) opener(fs *pflag.FlagSet) Opener {
	fixedDepth := fs.Changed("queue-depth")
	return func(ctx context.Context, url string, o OpenOptions) (LUN, error) {
		t := connflags.Tuning{BusyPoll: o.BusyPoll}
		if !fixedDepth {
			t.Depth = o.Depth
		}
		lun, err := c.conn.Open(ctx, url, t)
		if err != nil {
			return nil, err
		}
		return lun, nil
	}
}
