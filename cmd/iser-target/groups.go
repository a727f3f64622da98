package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"softiser/target/admin"
)

// The commands that move groups of volumes between nodes, for the cluster's manager.

const groupHelp = `NAME is that of a group of ha.groups, or of a target or subsystem with volumes of one.
Who may be promoted the cluster's manager decides; see docs/ha/README.md.`

func promoteCommand() *cobra.Command {
	return moveCommand(&cobra.Command{
		Use: "promote NAME", Short: "Make this node the one that has a group of volumes",
		Long: `Opens the volumes of a group and makes its LUNs and namespaces active. When it returns
without an error, initiators can read and write; otherwise the group is on standby as
before. It waits up to --timeout for the lock of another node, and for storage. If storage
has not answered by then, the error names it; the group is stuck until the storage answers,
and on standby after that.
` + groupHelp,
		Example: "  iser-target promote g1",
	}, (*admin.Client).Promote)
}

func demoteCommand() *cobra.Command {
	return moveCommand(&cobra.Command{
		Use: "demote NAME", Short: "Give a group of volumes up, for another node",
		Long: `Puts the LUNs and namespaces of a group on standby, ends what goes on with its volumes,
flushes and closes them. When it returns without an error, no write of this node can take
effect any more. If something still holds a volume after --timeout, the group is stuck: then
only ending the process gives it up for certain.
` + groupHelp,
		Example: "  iser-target demote g1 --timeout 5s",
	}, (*admin.Client).Demote)
}

// moveCommand makes cmd the command that asks for move.
func moveCommand(cmd *cobra.Command, move func(*admin.Client, context.Context, string, admin.GroupRequest) error) *cobra.Command {
	var s socketFlag
	var timeout time.Duration
	s.add(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 20*time.Second, "how long the command may take")
	cmd.Args = exactly(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return exit(exitUsage, fmt.Errorf("--timeout=%v: it is how long the command may take, such as 20s", timeout))
		}
		return s.askFor(cmd.Context(), timeout+askPatience, func(ctx context.Context, c *admin.Client) error {
			return move(c, ctx, args[0], admin.GroupRequest{Timeout: timeout})
		})
	}
	cmd.ValidArgsFunction = completeArgs(s.groupNames)
	return cmd
}

// groupCommand prints the state of a group as one word, for scripts.
func groupCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{
		Use: "group NAME", Short: "Print the state of a group of volumes: active, standby, promoting, demoting or stuck",
		Example: "  iser-target group g1", Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				for _, g := range st.Groups {
					if g.Name == args[0] {
						_, err := fmt.Fprintln(cmd.OutOrStdout(), g.State)
						return err
					}
				}
				return fmt.Errorf("there is no group %q in ha.groups of the running target", args[0])
			})
		},
	}
	s.add(cmd)
	cmd.ValidArgsFunction = completeArgs(s.groupNames)
	return cmd
}
