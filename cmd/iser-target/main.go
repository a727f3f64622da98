// Command iser-target serves block volumes over iSER, iSCSI, NVMe/RDMA and NVMe/TCP, on one port,
// without RDMA hardware, kernel modules or root: RDMA is software iWARP there, or software RoCE
// at addresses of its own.
//
// serve (serve.go) turns flags and a configuration file into objects, and connects signals, logging
// and metrics to them. Most other commands ask the process that serves by its control socket
// (socket.go); the rest look at the configuration, the host or disks.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"softiser/internal/buildinfo"
	"softiser/internal/usage"
)

// version is set by the linker; where it is not, main asks the Go tool's notes.
var version = buildinfo.Unlinked

const rootHelp = `Serves block volumes to iSER and iSCSI initiators and NVMe hosts, on one port.

Exit codes:
  0  done
  1  what was asked for could not be done
  2  flags or configuration are wrong
  3  check: a volume cannot be opened (serve starts without it);
     reload: some of the changes are not in force
  4  status, top, trace, capture, session, lun, namespace, resize, reload, upgrade,
     promote, demote, group: no target answers on the admin socket
lvm and the commands below it end with lvm2's: 2 no such command, 3 the command
line is wrong, 5 failed.`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "iser-target",
		Short: "Block storage over RDMA without RDMA hardware",
		Long:  rootHelp,
		Example: `  iser-target serve --export disk0=./disk0.img,size=1GiB --socket ./admin.sock
  iser-target status --socket ./admin.sock
  iser-target check --config /etc/softiser/iser-target.yaml
  iser-target status`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(usage.FlagError)
	root.AddCommand(serveCommand(), checkCommand(), statusCommand(), topCommand(), traceCommand(), captureCommand(), sessionCommand(), lunCommand(), namespaceCommand(), resizeCommand(), reloadCommand(), upgradeCommand(), doctorCommand(), promoteCommand(), demoteCommand(), groupCommand(), lvmCommand())
	return root
}

// The main thread does nothing but wait. Linux gives a signal to the main thread when that
// one can take it, and takes a thread that waits for storage in the kernel for one that can:
// a SIGTERM would be pending until storage answers.
func init() { runtime.LockOSThread() }

func main() {
	version = buildinfo.Version(version)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	usage.Insist(ctx, stop) // but for serve, which has its own rule
	code := make(chan int)
	go func() { code <- run(ctx, os.Args[1:], os.Stdout, os.Stderr) }()
	os.Exit(<-code)
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &usage.Output{W: stdout, Ctx: ctx}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	usage.Tree(root) // now: the completion command keeps the output of its making
	complete(root)
	cmd, err := root.ExecuteContextC(ctx)
	if lost := out.Err(); lost != nil && cmd.Name() != serveName { // whose banner is a courtesy
		err = errors.Join(err, lost)
	}
	if err == nil {
		return 0
	}
	told := err.Error()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && cmd.Name() != serveName { // which tells how it has ended
		told = "interrupted"
	}
	fmt.Fprintln(root.ErrOrStderr(), "iser-target:", told)
	if code := lvmExitCode(cmd, err); code != 0 {
		return code
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	if usage.Is(err) || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	return exitFailure
}
