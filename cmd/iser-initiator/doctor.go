package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"softiser/initiator/attach"
	"softiser/internal/doctor"
)

// attachUnit is the service of one attached volume.
const attachUnit = "iser-attach@"

// hostChecks are those that matter to an initiator.
var hostChecks = []doctor.Check{
	doctor.Kernel,
	doctor.Module("nbd", "/dev/nbd0", doctor.Warning, "attach has no /dev/nbdN, and serves NBD on a socket alone"),
	doctor.Module("ublk_drv", "/dev/ublk-control", doctor.Note, "there are no /dev/ublkbN"),
	doctor.Capability(doctor.CapSysAdmin, "CAP_SYS_ADMIN", doctor.Warning, "attach has no block device, and serves NBD on a socket alone", "sudo iser-initiator doctor   # attach takes it too"),
	doctor.Module("siw", "", doctor.Note, "open-iscsi of this host has iSCSI over TCP, and no iSER; iser-initiator does without"),
	doctor.Rxe(false),
	doctor.OpenFiles(attachUnit, 1024),
	doctor.Memlock(attachUnit, 0),
	doctor.GroupMemory(256 << 20), doctor.GroupCPU, doctor.GroupTasks,
	doctor.Congestion(), doctor.Windows, doctor.DatagramBuffers,
	doctor.Clock,
}

// doctorCommand builds the command that says what this host allows.
func doctorCommand() *cobra.Command {
	var host doctor.Host
	var asJSON bool
	var bundle, log string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host allows an initiator, and what mends what it does not",
		Long: `Looks at what an initiator needs of this host: the kernel, its modules for block
devices and RDMA, limits of memory and of open files, sysctls of the network, control
groups and the clock. Each finding has a level:

  ok       nothing to do
  note     good to know
  warning  it works, and costs something
  error    something cannot work

and, where there is something to do, what it costs and the command that mends it. Nothing
is changed. The exit code is 1 if there is an error, else 0.

--bundle packs what helps to find out from afar what is wrong: the findings, version,
attachments, the end of the log, facts from /proc. Values of environment variables that
are called secrets are left out, and what looks like a secret. Read it before you give it
away all the same: names and addresses are in it.`,
		Example: `  iser-initiator doctor
  iser-initiator doctor --bundle support.tar.gz --log /var/log/iser-attach.log
  iser-initiator doctor --json | jq '.[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if packed := cmd.Flags().Changed("bundle"); packed && bundle == "" {
				return usage("--bundle is empty; name the file that is to be made")
			} else if log != "" && !packed {
				return usage("--log goes with --bundle")
			}
			findings := doctor.Run(&host, hostChecks)
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				if err := e.Encode(findings); err != nil {
					return err
				}
			} else if err := doctor.Print(cmd.OutOrStdout(), findings); err != nil {
				return err
			}
			if bundle != "" {
				if err := writeBundle(bundle, log, &host, findings); err != nil {
					return err
				}
			}
			if doctor.Worst(findings) == doctor.Error {
				return &codedError{exitError, errors.New("something does not work as it is; the errors above say what mends it")}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&bundle, "bundle", "", "file for a support bundle (.tar.gz, mode 0600), which must not be there yet")
	cmd.Flags().StringVar(&log, "log", "", "with --bundle: a log, for example that of attach --log")
	return cmd
}

// writeBundle packs what helps to find out from afar what is wrong, without secrets.
func writeBundle(path, log string, host *doctor.Host, findings []doctor.Finding) error {
	parts := []doctor.Part{
		{Name: "version", Read: func() ([]byte, error) {
			return fmt.Appendf(nil, "iser-initiator %s, %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH), nil
		}},
		{Name: "attachments.json", Read: func() ([]byte, error) {
			all, err := attach.List(attach.RunDir())
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(all, "", "  ")
		}},
	}
	if log != "" {
		parts = append(parts, doctor.Part{Name: "log", Read: func() ([]byte, error) { return doctor.ReadEnd(log, doctor.PartBound) }})
	}
	parts = append(parts, doctor.Reports(findings)...)
	if err := doctor.WriteBundle(path, time.Now(), doctor.NewMask(), append(parts, host.Facts()...)); err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	return nil
}
