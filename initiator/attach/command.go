package attach

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"softiser/initiator/connflags"
	"softiser/initiator/ublk"
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

// command is one invocation of "attach": its options, and what it has of the program.
type command struct {
	version string
	advice  func(error) string // what to do about the error of a connection
	conn    *connflags.Options

	// What is to be done; none: attach.
	detach, list, upgrade bool
	takeover              bool // take the place of the process that serves the attachment

	opt     Options // of an attachment, as far as flags say it
	daemon  bool
	pidfile string
	log     string
	timeout time.Duration // Options.FinishTimeout, and of detach

	force    bool          // of detach
	binary   string        // of upgrade
	patience time.Duration // of upgrade; 0: the default
	json     bool
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
	fs.BoolVar(&c.takeover, takeoverName, false, "take the place of the process that serves the attachment of the URL (see --upgrade)")
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

// run is the command: attach, or with --list, --detach and --upgrade what these say.
func (c *command) run(cmd *cobra.Command, args []string) error {
	if err := c.checkArgs(args); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case c.list:
		return c.runList(out, cmd.ErrOrStderr())
	case c.upgrade:
		return c.runUpgrade(cmd.Context(), out, args[0])
	case c.detach:
		return c.runDetach(cmd.Context(), out, args[0])
	}
	if err := c.checkAttach(args[0]); err != nil {
		return usage.Wrap(err)
	}
	cmd.SilenceUsage = true
	return c.runAttach(cmd, args[0])
}

// checkArgs says what of the command line does not go together.
func (c *command) checkArgs(args []string) error {
	if c.list {
		if len(args) > 0 {
			return usage.Errorf("--list lists all attachments; %q is one argument too many", args[0])
		}
		return nil
	}
	named := len(args) == 1 && args[0] != "" // not by a variable that a script has not set
	switch {
	case !named && (c.detach || c.upgrade):
		return usage.Errorf("one attachment at a time is ended or upgraded: name its URL, device or socket, which iser-initiator attach --list shows")
	case !named:
		return usage.Errorf("attach needs the volume's URL, for example iser://127.0.0.1/iqn.2026-11.softiser:demo/0")
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
	case c.log != "" && !c.daemon && !c.takeover: // a process that has been started with both before that was refused can be replaced
		return usage.Errorf("--log goes with --daemon; in the foreground messages go to standard error")
	}
	return nil
}

// checkAttach says why nothing can be attached by url and the options.
func (c *command) checkAttach(url string) error {
	if err := c.conn.Check(url); err != nil {
		return err
	}
	if n := c.opt.Connections; n < 1 || n > maxConnections {
		return fmt.Errorf("--connections %d: want 1 to %d", n, maxConnections)
	}
	if n := c.opt.Depth; n < 1 || n > ublk.MaxDepth {
		return fmt.Errorf("--ublk-depth %d: want 1 to %d", n, ublk.MaxDepth)
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
