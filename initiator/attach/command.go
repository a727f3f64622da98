package attach

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/initiator/ublk"
	"softiser/internal/iscsi"
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
attachment, or fails where that has not what is asked for (--device, --socket, --tcp,
--export-name, --read-only).

An ublk device of an iSCSI volume outlives the process that serves it: when that
is killed, I/O waits, and the same command takes the device again.

--upgrade replaces the process of an attachment by a new one (of a new version, say),
which takes over the NBD sockets, the connections of clients and the kernel device:
they see a pause. It goes on with the sessions to the target over plain TCP or iWARP; any
other path logs in again under the same names, so that reservations hold. If it
cannot take over, the running one goes on as if nothing had happened, and the error says
why. SIGUSR2 does the same, with the default of --patience, and so does --takeover, with
the URL and the options that the running process has.

A lost connection is made again by the session; clients see a pause, not an
error, for as long as --replacement-timeout says. After that requests fail, and
the target is looked for until it is back; --list shows it.`

const example = `  iser-initiator attach iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach --daemon --json iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach nvme+tcp://127.0.0.1:3260/nqn.2026-11.softiser:demo/1
  iser-initiator attach nvme+rdma://127.0.0.1:3260/nqn.2026-11.softiser:demo/1
  iser-initiator attach --device ublk --connections 2 iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator attach --list
  iser-initiator attach --upgrade /dev/nbd0
  iser-initiator attach --detach /dev/nbd0`

type command struct {
	opt      Options
	conn     *connflags.Options
	version  string
	advice   func(error) string
	detach   bool
	upgrade  bool
	binary   string
	patience time.Duration
	take     bool
	force    bool
	list     bool
	daemon   bool
	json     bool
	pidfile  string
	log      string
	timeout  time.Duration
}

// Command returns "attach" for the command tree of iser-initiator, which has that version and
// adds advice to the error of a connection.
func Command(version string, advice func(error) string) *cobra.Command {
	c := &command{version: version, advice: advice}
	cmd := &cobra.Command{
		Use:     "attach URL | attach --detach|--upgrade URL|DEVICE|SOCKET | attach --list",
		Short:   "Make a volume a local block device (NBD, ublk)",
		Long:    long,
		Example: example,
		Args:    cobra.MaximumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return c.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&c.detach, "detach", false, "end an attachment: write back, disconnect, finish requests, flush")
	fs.BoolVar(&c.force, "force", false, "with --detach: also if the device is in use, or still open after its process was killed, and without waiting for the target after --timeout; data that was not flushed is then lost")
	fs.BoolVar(&c.upgrade, "upgrade", false, "replace the process of an attachment by a new one, which goes on with what is open")
	fs.StringVar(&c.binary, "binary", "", "with --upgrade: the program to start (default: the file that the running process was started from, as it is now)")
	fs.DurationVar(&c.patience, "patience", 0, "with --upgrade: how long requests, and then the sessions to the target, may take to come to rest; up to 1m (default 2s)")
	fs.BoolVar(&c.take, takeoverName, false, "take the place of the process that serves the attachment of the URL (see --upgrade)")
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
	cmd.MarkFlagsMutuallyExclusive("list", "detach", "upgrade", takeoverName)
	return cmd
}

// run is the command: attach, or with --list and --detach what these say.
func (c *command) run(cmd *cobra.Command, args []string) error {
	out := cmd.OutOrStdout()
	if c.list && len(args) > 0 {
		return usage.Errorf("--list lists all attachments; %q is one argument too many", args[0])
	}
	if c.list {
		return c.runList(out, cmd.ErrOrStderr())
	}
	named := len(args) == 1 && args[0] != "" // not by a variable that a script has not set
	if !named && (c.detach || c.upgrade) {
		return usage.Errorf("one attachment at a time is ended or upgraded: name its URL, device or socket, which iser-initiator attach --list shows")
	}
	if !named {
		return usage.Errorf("attach needs the volume's URL, for example iser://127.0.0.1/iqn.2026-11.softiser:demo/0")
	}
	switch {
	case c.force && !c.detach:
		return usage.Errorf("--force goes with --detach")
	case c.binary != "" && !c.upgrade:
		return usage.Errorf("--binary goes with --upgrade")
	case c.patience != 0 && !c.upgrade:
		return usage.Errorf("--patience goes with --upgrade")
	case c.timeout < 0:
		return usage.Errorf("--timeout %v is negative", c.timeout)
	case c.patience < 0 || c.patience > maxPatience:
		return usage.Errorf("--patience %v: want up to %v", c.patience, maxPatience)
	case c.log != "" && !c.daemon && !c.take: // a process that has been started with both before that was refused can be replaced
		return usage.Errorf("--log goes with --daemon; in the foreground messages go to standard error")
	case c.upgrade:
		return c.runUpgrade(cmd.Context(), out, args[0])
	}
	if c.detach {
		return c.runDetach(cmd.Context(), out, args[0])
	}
	err := c.conn.Check(args[0])
	if err == nil && (c.opt.Connections < 1 || c.opt.Connections > maxConnections) {
		err = fmt.Errorf("--connections %d: want 1 to %d", c.opt.Connections, maxConnections)
	}
	if err == nil && (c.opt.Depth < 1 || c.opt.Depth > ublk.MaxDepth) {
		err = fmt.Errorf("--ublk-depth %d: want 1 to %d", c.opt.Depth, ublk.MaxDepth)
	}
	if err != nil {
		return usage.Wrap(err)
	}
	cmd.SilenceUsage = true
	pipe := inBackground()
	if c.daemon && pipe == nil && !c.take {
		rec, err := background(cmd.Context(), c.log)
		if err != nil {
			return err
		}
		return c.print(out, rec)
	}
	err = c.serve(cmd.Context(), out, cmd.ErrOrStderr(), args[0], pipe)
	told := err
	if err != nil { // the parent has the text alone
		told = errors.New(err.Error() + c.advice(err))
	}
	report(pipe, nil, told) // no effect after success: the pipe is closed by then
	return err
}

// options are what the command line says of the attachment of url.
func (c *command) options(url string) (Options, error) {
	opt := c.opt
	opt.URL, opt.FinishTimeout = connflags.Names(url), c.timeout
	opt.Describe = connflags.Title(url)
	if kind, _, err := parseDevice(opt.Device); err != nil {
		return opt, usage.Wrap(err)
	} else if kind == deviceUblk && c.conn.Reinstates(url) {
		opt.Recover, opt.ISID = true, ISID(opt.Dir, opt.URL)
	}
	if opt.ISID == [6]byte{} {
		rand.Read(opt.ISID[:]) // never fails
		opt.ISID[0], opt.ISID[4], opt.ISID[5] = 0x80, 0, 0
	}
	opt.Replays = c.conn.Reinstates(url) && len(connflags.Paths(url)) == 1
	opt.Patience = c.conn.Patience(url)
	opt.Upgrade.Args = successorArgs(os.Args[1:])
	var volume atomic.Pointer[blockio.Volume] // the one that is open; nil: none yet
	opt.State = func() (state, reason string) {
		if v := volume.Load(); v != nil {
			return stateOf(*v)
		}
		return stateReconnecting, "this process, which has taken the place of another one, has not opened the volume yet"
	}
	opt.Time2Wait = func() time.Duration {
		if v := volume.Load(); v != nil {
			return time2Wait(*v)
		}
		return 0
	}
	changed := make(chan struct{}, 1)
	opt.Changed = changed
	tuning := connflags.Tuning{KeepTrying: true, Logout: min(max(c.timeout, time.Second), 15*time.Second), Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}}
	opt.Open = func(ctx context.Context, n Nexus) (LUN, error) {
		t := tuning
		t.ISID, t.Cache, t.Carried, t.After = n.ISID, n.Cache, n.Carried, n.After
		v, err := c.conn.Open(ctx, url, t)
		if err != nil {
			return nil, err
		}
		volume.Store(&v)
		tuning.Changed()
		return v, nil
	}
	return opt, nil
}

// serve attaches and stays.
func (c *command) serve(ctx context.Context, out, stderr io.Writer, url string, pipe *os.File) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	usage.Insist(ctx, stop)
	defer usage.OutliveReaders()()
	opt, err := c.options(url)
	if err != nil {
		return err
	}
	opt.OnError = func(err error) { fmt.Fprintln(stderr, iscsi.PrintableLines(err.Error())) }
	opt.OnNotice = func(text string) { fmt.Fprintln(stderr, iscsi.PrintableLines(text)) }
	if err := c.checkPidfile(); err != nil {
		return err
	}
	asked, unasked := upgrades()
	defer unasked()
	var a *Attachment
	var held *Record
	if c.take {
		a, err = TakeOver(ctx, opt, "iser-initiator "+c.version)
	} else {
		a, held, err = Attach(ctx, opt)
	}
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
		defer os.Remove(c.pidfile)
	}
	if err := c.tell(out, pipe, &a.Record); err != nil {
		if !c.take {
			return errors.Join(err, a.undo())
		}
		opt.OnError(err) // what has been taken over is in use, and goes on
	}
	go a.upgradeOn(ctx, asked)
	return a.Wait(ctx)
}

// tell has everybody know that this process serves an attachment.
func (c *command) tell(out io.Writer, pipe *os.File, r *Record) error {
	err := c.writePidfile()
	if c.take { // whoever started the first process has its output
		return errors.Join(err, systemd.Notify(systemd.Ready))
	}
	if err != nil {
		return err
	}
	report(pipe, r, nil)
	if pipe != nil {
		return nil
	}
	if err := c.print(out, r); err != nil {
		return err
	}
	return systemd.Notify(systemd.Ready)
}

// checkPidfile says why this process's id could not be written, while nothing depends on that yet.
func (c *command) checkPidfile() error {
	if c.pidfile == "" {
		return nil
	}
	f, err := os.OpenFile(c.pidfile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case err == nil:
		err = errors.Join(f.Close(), os.Remove(c.pidfile)) // until there is something to say
	case errors.Is(err, fs.ErrExist):
		if f, err = os.OpenFile(c.pidfile, os.O_WRONLY|os.O_CREATE, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("--pidfile: %w", err)
	}
	return nil
}

func (c *command) writePidfile() error {
	if c.pidfile == "" {
		return nil
	}
	if err := os.WriteFile(c.pidfile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("--pidfile: %w", err)
	}
	return nil
}

const takeoverName = "takeover"

// successorArgs are the arguments for the process that takes the place of one with these.
func successorArgs(args []string) (all []string) {
	for _, a := range args {
		if a != "--"+takeoverName && !strings.HasPrefix(a, "--"+takeoverName+"=") {
			all = append(all, a)
		}
	}
	return slices.Insert(all, slices.Index(all, "attach")+1, "--"+takeoverName)
}

// upgrades delivers the signal that asks for an upgrade.
func upgrades() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR2)
	return ch, func() { signal.Stop(ch) }
}

// upgradeOn upgrades whenever a signal says so, until ctx is done.
func (a *Attachment) upgradeOn(ctx context.Context, asked <-chan os.Signal) {
	for {
		select {
		case <-asked:
		case <-ctx.Done():
			return
		}
		_, over, err := a.giving.upgrade(upgradeRequest{})
		if err != nil {
			a.opt.tellError(fmt.Errorf("upgrade: %w", err))
			continue
		}
		over()
	}
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
	fmt.Fprintf(out, "  volume  %s, %d bytes, blocks of %d, %s\n", iscsi.Printable(r.Volume), r.Size, r.BlockSize, mode)
	if r.Device != "" {
		note := ""
		if r.Recovered {
			note = " (taken over from a process that was killed)"
		}
		fmt.Fprintf(out, "  device  %s%s\n", r.Device, note)
	}
	fmt.Fprintf(out, "  uri     %s\n", r.URI)
	if r.TCP != "" {
		fmt.Fprintf(out, "  tcp     nbd://%s/%s\n", r.TCP, escaped(r.Export))
	}
	fmt.Fprintf(out, "Use it:\n  nbdinfo '%[1]s'\n  nbdcopy --progress '%[1]s' disk.img\n  qemu-img info '%[1]s'\n  fio --name=t --ioengine=nbd --uri='%[1]s' --rw=randread --bs=4k --iodepth=32 --size=%[2]d --runtime=10 --time_based\n",
		r.URI, r.Size)
	where := ""
	if c.opt.Dir != RunDir() {
		where = " --run-dir " + c.opt.Dir
	}
	fmt.Fprintf(out, "Detach:\n  iser-initiator attach --detach %s%s\n", r.URL, where)
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
