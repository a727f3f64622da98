package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/initiator/multipath"
	"softiser/initiator/ublk"
	"softiser/internal/systemd"
	"softiser/internal/usage"
)

// maxConnections bounds sockets and queues: more of them than processors serve nobody.
const maxConnections = 1024

const long = `Make a volume a local block device.

An NBD server on a unix socket serves the volume to qemu, nbdcopy, fio's nbd
engine, nbdfuse, …; where the kernel has the nbd driver and this process may use
it, /dev/nbdN appears as well, and with --device ublk /dev/ublkbN instead, through
the ublk driver. The command serves until it is interrupted, or in the background
with --daemon. Attaching a volume that is attached already reports the existing
attachment.

An ublk device of an iSCSI volume outlives the process that serves it: when that
is killed, I/O waits, and the same command takes the device again.

A lost connection is made again by the session; clients see a pause, not an
error, for as long as --replacement-timeout says. After that requests fail, and
the target is looked for until it is back; --list shows it.`

const example = `  iser-initiator attach iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach --daemon --json iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach nvme+tcp://127.0.0.1:3260/nqn.2026-11.softiser:demo/1
  iser-initiator attach nvme+rdma://127.0.0.1:3260/nqn.2026-11.softiser:demo/1
  iser-initiator attach --device ublk --connections 2 iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach --list
  iser-initiator attach --detach /dev/nbd0`

type command struct {
	opt     Options
	conn    *connflags.Options
	detach  bool
	force   bool
	list    bool
	daemon  bool
	json    bool
	pidfile string
	log     string
	timeout time.Duration
}

// Command returns "attach" for the command tree of iser-initiator.
func Command() *cobra.Command {
	c := &command{}
	cmd := &cobra.Command{
		Use:     "attach URL | attach --detach URL|DEVICE|SOCKET | attach --list",
		Short:   "Make a volume a local block device (NBD, ublk)",
		Long:    long,
		Example: example,
		Args:    cobra.MaximumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&c.detach, "detach", false, "end an attachment: write back, disconnect, finish requests, flush")
	fs.BoolVar(&c.force, "force", false, "with --detach: also a device that is in use, and after --timeout without waiting for the target: what was not flushed is lost")
	fs.BoolVar(&c.list, "list", false, "list attachments")
	fs.StringVar(&c.opt.Device, "device", "auto", "kernel device: auto (NBD, where possible), none, /dev/nbdN, ublk, or /dev/ublkbN")
	fs.IntVar(&c.opt.Connections, "connections", 1, "sockets between the kernel device and this process (NBD), or its queues (ublk)")
	fs.IntVar(&c.opt.Depth, "ublk-depth", ublk.DefaultDepth, "requests of one ublk queue under way at once")
	fs.StringVar(&c.opt.Socket, "socket", "", "path of the NBD socket (default: in the run directory)")
	fs.StringVar(&c.opt.TCP, "tcp", "", "serve NBD on this loopback address as well, for example 127.0.0.1:10809")
	fs.StringVar(&c.opt.Export, "export-name", "", "NBD export name")
	fs.BoolVar(&c.opt.ReadOnly, "read-only", false, "refuse writes")
	fs.BoolVar(&c.daemon, "daemon", false, "serve in the background; return when the device is ready")
	fs.StringVar(&c.pidfile, "pidfile", "", "write the serving process's id to this file")
	fs.StringVar(&c.log, "log", "", "with --daemon: file for messages")
	fs.StringVar(&c.opt.Dir, "run-dir", RunDir(), "directory of attachment records")
	fs.DurationVar(&c.timeout, "timeout", 30*time.Second, "bound on writing the kernel's cache back, and on finishing requests, at detach")
	fs.BoolVar(&c.json, "json", false, "print JSON")
	c.conn = connflags.Register(fs)
	return cmd
}

// run is the command: attach, or with --list and --detach what these say.
func (c *command) run(cmd *cobra.Command, args []string) error {
	out := cmd.OutOrStdout()
	if c.list {
		return c.runList(out)
	}
	if len(args) != 1 {
		return usage.Errorf("attach needs the volume's URL, for example iser://127.0.0.1/iqn.2026-11.softiser:demo/0")
	}
	if c.force && !c.detach {
		return usage.Errorf("--force goes with --detach")
	}
	if c.detach {
		return c.runDetach(cmd.Context(), out, args[0])
	}
	err := c.conn.Check(args[0])
	if err == nil && (c.opt.Connections < 1 || c.opt.Connections > maxConnections) {
		err = fmt.Errorf("--connections %d: 1 to %d are possible", c.opt.Connections, maxConnections)
	}
	if err == nil && (c.opt.Depth < 1 || c.opt.Depth > ublk.MaxDepth) {
		err = fmt.Errorf("--ublk-depth %d: 1 to %d are possible", c.opt.Depth, ublk.MaxDepth)
	}
	if err != nil {
		return usage.Wrap(err)
	}
	cmd.SilenceUsage = true
	pipe := inBackground()
	if c.daemon && pipe == nil {
		rec, err := background(c.log)
		if err != nil {
			return err
		}
		return c.print(out, rec)
	}
	err = c.serve(cmd.Context(), out, cmd.ErrOrStderr(), args[0], pipe)
	report(pipe, nil, err) // after success the pipe is closed and this is void
	return err
}

// serve attaches and stays.
func (c *command) serve(ctx context.Context, out, stderr io.Writer, url string, pipe *os.File) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	opt := c.opt
	opt.URL, opt.FinishTimeout = connflags.Names(url), c.timeout
	opt.Describe = connflags.Title(url)
	changed := make(chan struct{}, 1)
	opt.Changed = changed
	tuning := connflags.Tuning{KeepTrying: true, Logout: min(max(c.timeout, time.Second), 15*time.Second), Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}}
	if kind, _, err := parseDevice(opt.Device); err != nil {
		return usage.Wrap(err)
	} else if kind == deviceUblk && c.conn.Reinstates(url) {
		opt.Recover, tuning.ISID = true, ISID(opt.Dir, opt.URL)
	}
	var lun blockio.Volume
	opt.State = func() (state, reason string) { return stateOf(lun) }
	opt.Open = func(ctx context.Context) (LUN, error) {
		var err error
		if lun, err = c.conn.Open(ctx, url, tuning); err != nil {
			return nil, err
		}
		return lun, nil
	}
	opt.OnError = func(err error) { fmt.Fprintln(stderr, err) }
	opt.OnNotice = func(text string) { fmt.Fprintln(stderr, text) }
	a, held, err := Attach(ctx, opt)
	if err != nil {
		return err
	}
	if held != nil {
		report(pipe, held, nil)
		if pipe != nil {
			return nil
		}
		return c.print(out, held)
	}
	if c.pidfile != "" {
		if err := os.WriteFile(c.pidfile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
			return errors.Join(fmt.Errorf("--pidfile: %w", err), a.undo())
		}
		defer os.Remove(c.pidfile)
	}
	report(pipe, &a.Record, nil)
	if pipe == nil {
		if err := c.print(out, &a.Record); err != nil {
			return errors.Join(err, a.undo())
		}
		if err := systemd.Notify(systemd.Ready); err != nil {
			return errors.Join(err, a.undo())
		}
	}
	return a.Wait(ctx)
}

// stateOf says how the way to an attached volume is, and why it is not as it should be.
func stateOf(v blockio.Volume) (state, reason string) {
	switch v := v.(type) {
	case *initiator.LUN:
		return stateOfSessions(v.Sessions())
	case *multipath.Volume:
		return stateOfPaths(v.Paths())
	}
	return "connected", ""
}

func stateOfPaths(paths []multipath.Status) (state, reason string) {
	active, up := 0, 0
	for _, p := range paths {
		if p.Active {
			active++
		}
		if p.Reason == "" {
			up++
		} else {
			reason = p.URL + ": " + p.Reason
		}
	}
	switch n := len(paths); {
	case active == 0:
		return "no path", reason
	case up < n:
		return fmt.Sprintf("%d of %d paths connected", up, n), reason
	}
	return "connected", ""
}

func stateOfSessions(sessions []*initiator.Session) (state, reason string) {
	up, down := 0, 0
	for _, s := range sessions {
		st, err := s.State()
		switch st {
		case initiator.StateActive:
			up++
			continue
		case initiator.StateDown, initiator.StateFailed:
			down++
		}
		if err != nil {
			reason = err.Error()
		}
	}
	switch n := len(sessions); {
	case up == n:
		return "connected", ""
	case up > 0:
		return fmt.Sprintf("%d of %d sessions connected", up, n), reason
	case down == n:
		return "down", reason
	}
	return "reconnecting", reason
}

// print tells what has been attached, and how to detach it.
func (c *command) print(out io.Writer, r *Record) error {
	if c.json {
		return printJSON(out, r)
	}
	if r.Already {
		fmt.Fprintf(out, "%s is attached already (process %d)\n", r.URL, r.PID)
	} else {
		fmt.Fprintf(out, "%s is attached (process %d)\n", r.URL, r.PID)
	}
	mode := "read-write"
	if r.ReadOnly {
		mode = "read-only"
	}
	fmt.Fprintf(out, "  volume  %s, %d bytes, blocks of %d, %s\n", r.Volume, r.Size, r.BlockSize, mode)
	if r.Device != "" {
		note := ""
		if r.Recovered {
			note = " (taken over from a process that was killed)"
		}
		fmt.Fprintf(out, "  device  %s%s\n", r.Device, note)
	}
	fmt.Fprintf(out, "  uri     %s\n", r.URI)
	if r.TCP != "" {
		fmt.Fprintf(out, "  tcp     nbd://%s/%s\n", r.TCP, r.Export)
	}
	fmt.Fprintf(out, "Use it:\n  nbdinfo '%[1]s'\n  nbdcopy --progress '%[1]s' disk.img\n  qemu-img info '%[1]s'\n  fio --name=t --ioengine=nbd --uri='%[1]s' --rw=randread --bs=4k --iodepth=32 --size=%[2]d --runtime=10 --time_based\n",
		r.URI, r.Size)
	fmt.Fprintf(out, "Detach:\n  iser-initiator attach --detach %s\n", r.URL)
	return nil
}

// runList prints the attachments that are alive, and why records could not be read.
func (c *command) runList(out io.Writer) error {
	live, err := List(c.opt.Dir)
	if err != nil {
		return err
	}
	if c.json {
		if live == nil {
			live = []*Record{}
		}
		return printJSON(out, live)
	}
	var reasons []string
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(live) > 0 {
		fmt.Fprintln(w, "PROCESS\tDEVICE\tSIZE\tSTATE\tVOLUME")
	}
	for _, r := range live {
		dev := r.Device
		if dev == "" {
			dev = r.Socket
		}
		state := r.State
		if state != "connected" {
			state += " for " + time.Since(r.Since).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", r.PID, dev, humanize.IBytes(uint64(r.Size)), state, r.URL)
		if r.Reason != "" {
			reasons = append(reasons, fmt.Sprintf("%s: %s", dev, r.Reason))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, reason := range reasons {
		fmt.Fprintln(out, reason)
	}
	return nil
}

// runDetach ends the attachment of a volume or device, and waits until its process has
// gone.
func (c *command) runDetach(ctx context.Context, out io.Writer, key string) error {
	key = connflags.Names(key) // as the record has it
	// The device is written back, then requests finish and the session logs out; each
	// is bounded by the timeout.
	limit := 2*c.timeout + 10*time.Second
	if c.force {
		limit = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := Detach(ctx, c.opt.Dir, key, c.force)
	switch {
	case err != nil:
		return err
	case c.json && r == nil:
		return printJSON(out, struct {
			Detached bool `json:"detached"`
		}{})
	case c.json:
		return printJSON(out, struct {
			Detached bool    `json:"detached"`
			Record   *Record `json:"attachment"`
		}{true, r})
	case r == nil:
		fmt.Fprintf(out, "%s is not attached\n", key)
	default:
		fmt.Fprintf(out, "%s is detached\n", r.URL)
	}
	return nil
}

func printJSON(out io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	return err
}
