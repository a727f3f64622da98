package attach

import (
	"context"
	"crypto/rand"
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
	"softiser/internal/iscsi"
	"softiser/internal/systemd"
	"softiser/internal/usage"
)

// The command in a process that serves an attachment, or starts one that does.

// runAttach attaches the volume of url in this process or, with --daemon, in another one. In that one it tells
// the first of an error.
func (c *command) runAttach(cmd *cobra.Command, url string) error {
	out, pipe := cmd.OutOrStdout(), inBackground()
	if c.daemon && pipe == nil && !c.takeover {
		rec, err := background(cmd.Context(), c.log)
		if err != nil {
			return err
		}
		return c.print(out, rec)
	}
	err := c.serve(cmd.Context(), out, cmd.ErrOrStderr(), url, pipe)
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
	kind, _, err := parseDevice(opt.Device)
	if err != nil {
		return opt, usage.Wrap(err)
	}
	if kind == deviceUblk && c.conn.Reinstates(url) {
		opt.Recover, opt.ISID = true, ISID(opt.Dir, opt.URL)
	} else {
		opt.ISID = randomISID()
	}
	opt.Replays = c.conn.Reinstates(url) && len(connflags.Paths(url)) == 1
	opt.Patience = c.conn.Patience(url)
	opt.Upgrade.Args = successorArgs(os.Args[1:])
	c.reach(&opt, url)
	return opt, nil
}

// randomISID names a session that only a takeover goes on with.
func randomISID() (id [6]byte) {
	rand.Read(id[:4]) // never fails
	id[0] = 0x80      // T = 10b: random; the qualifier begins at 0
	return id
}

// reach sets what opens the volume of url, and tells how the way to it is.
func (c *command) reach(opt *Options, url string) {
	var volume atomic.Pointer[blockio.Volume] // the one that is open; nil: none yet
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	opt.Changed = changed
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
	tuning := connflags.Tuning{KeepTrying: true, Logout: min(max(c.timeout, time.Second), 15*time.Second), Changed: tell}
	opt.Open = func(ctx context.Context, n Nexus) (LUN, error) {
		t := tuning
		t.ISID, t.Cache, t.Carried, t.After = n.ISID, n.Cache, n.Carried, n.After
		v, err := c.conn.Open(ctx, url, t)
		if err != nil {
			return nil, err
		}
		volume.Store(&v)
		tell()
		return v, nil
	}
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
	if c.takeover {
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
		if !c.takeover {
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
	if c.takeover { // whoever started the first process has its output
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
