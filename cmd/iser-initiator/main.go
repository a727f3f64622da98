// Command iser-initiator reaches block volumes over iSER, iSCSI and NVMe over Fabrics: it lists
// targets, shows, reads, writes and verifies volumes, reserves and measures them, and
// attaches them to this machine.
//
// Options that say how a volume is reached are in initiator/connflags, for all commands; bench,
// attach and the tools of RDMA have packages of their own. Here are the others. Those that copy
// (copy.go) move data between a file (input.go) and a volume by a stream of requests (stream.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"softiser/initiator/attach"
	"softiser/initiator/bench"
	"softiser/internal/buildinfo"
	"softiser/internal/iscsi"
	"softiser/internal/rdmatools"
	callerr "softiser/internal/usage"
)

// version is set by the linker; where it is not, main asks the Go tool's notes.
var version = buildinfo.Unlinked

func main() {
	version = buildinfo.Version(version)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	callerr.Insist(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out := &callerr.Output{W: stdout, Ctx: ctx}
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(stderr)
	callerr.Tree(cmd) // now: the completion command keeps the output of its making
	complete(cmd)
	err := cmd.ExecuteContext(ctx)
	if lost := out.Err(); lost != nil && (err == nil || errors.Is(err, errReported)) {
		err = lost
	}
	switch {
	case err == nil || errors.Is(err, errReported):
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "iser-initiator: interrupted")
	default:
		fmt.Fprintf(stderr, "iser-initiator: %s%s\n", iscsi.PrintableLines(withoutSecrets(err.Error())), advice(err))
	}
	return exitCode(err)
}

const rootLong = `Reach block volumes over iSER (RFC 7145) on software iWARP, over iSCSI, or over
NVMe/RDMA and NVMe/TCP.

A volume is named by a URL as libiscsi writes it:

  iser://[user[%secret]@]host[:port]/iqn/lun[?options]     RDMA over TCP (iWARP)
  iser+roce://…                                            RDMA over UDP (RoCE v2)
  iscsi://…                                                plain TCP
  nvme+tcp://host[:port]/nqn/nsid                          NVMe over TCP
  nvme+rdma://…                                            NVMe over RDMA (iWARP)
  nvme+roce://…                                            NVMe over RDMA (RoCE v2)

A host is a name or an address; one of IPv6 stands in brackets, with its interface if it begins
with fe80: [fe80::1%eth0], or [fe80::1%25eth0] as RFC 6874 has it.

Options after "?", of iSCSI: target_user, target_password (mutual CHAP), header_digest,
data_digest (none, crc32c), auth (md5, sha1, sha-256, sha3-256), noauth; iser, which makes
iscsi:// iser://; of iscsi:// also tls, tls_ca, tls_cert, tls_key and tls_name, as --tls-ca
and the others have it.
Secrets are better kept in a file or in the environment: see --chap-secret-file.

Over RoCE UDP port 4791 of our address is taken, too: on one machine the two ends need an
address each, for example 127.0.0.2 at the target and 127.0.0.1 here; --local-address
chooses ours.

Several paths to one volume are written as several URLs with commas between, or
found by --all-portals. Requests go to those that the target calls best (ALUA, ANA); a
path that is lost is left for another, and used again once it is back. A path to
another volume is refused.

  iser://10.0.0.1/iqn/0,iser://10.0.1.1/iqn/0

Sizes have a unit: 4096, 4KiB, 1MiB, 2GiB, or decimal 4kB, 1MB, 2GB. A bare k, m
or g is refused, except by bench and the measurements of rdma, where it is a power of
1024, as in fio and perftest.`

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "iser-initiator",
		Short: "Reach block volumes over iSER, iSCSI and NVMe over Fabrics",
		Long:  rootLong + "\n\n" + exitHelp,
		Example: `  iser-initiator discover 127.0.0.1
  iser-initiator info   iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator write  iser://127.0.0.1/iqn.2026-11.softiser:demo/0 disk.img
  iser-initiator verify iser://127.0.0.1/iqn.2026-11.softiser:demo/0 disk.img
  iser-initiator bench  iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --rw=randread --bs=4k --iodepth=32 --runtime=10 --time-based`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          callerr.NoCommand,
		RunE:          func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(callerr.FlagError)
	cmd.AddCommand(discoverCommand(), infoCommand(), readCommand(), writeCommand(), verifyCommand(), reserveCommand(), doctorCommand(), bench.Command(), attach.Command(version, advice), rdmatools.Command())
	return cmd
}
