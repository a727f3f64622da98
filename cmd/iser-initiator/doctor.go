package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

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
is changed. The exit code is 1 if there is an error, else 0.`,
		Example: `  iser-initiator doctor
  iser-initiator doctor --json | jq '.[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			if doctor.Worst(findings) == doctor.Error {
				return &codedError{exitError, errors.New("something does not work as it is; the errors above say what mends it")}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
