package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"softiser/config"
	"softiser/target"
	"softiser/target/admin"
)

// statusCommand makes the command status, as tables or JSON.
func statusCommand() *cobra.Command {
	var s socketFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show targets, subsystems, volumes, sessions and controllers of a running iser-target",
		Long: `Shows what a running iser-target serves, what it does not serve and why, and who uses it.

Of a portal, ACCEPTED is how many connections it has taken. Of these GARBAGE spoke no
protocol of ours, SILENT were gone or timed out before their first bytes, and EVICTED were
closed before a login to make room for others. PLACES of a volume is how many LUNs and
namespaces it has. P50 and P99 are the median and the 99th percentile of latency, rounded
up to the next step of a histogram. --json has all counters; names end with their unit.`,
		Example: `  iser-target status
  iser-target status --socket /run/softiser/iser-target.sock --json | jq '.sessions[].read_latency.p99_ns'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), st)
				}
				return printStatus(cmd.OutOrStdout(), &st)
			})
		},
	}
	s.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	return cmd
}

// sessionCommand builds the commands that list and end sessions of a running target.
func sessionCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{
		Use: "session", Short: "List and end sessions of a running iser-target",
		Example: "  iser-target session list\n  iser-target session kill 3",
	}
	s.add(cmd)
	var asJSON bool
	list := &cobra.Command{
		Use: "list", Short: "List sessions", Args: exactly(0),
		Example: "  iser-target session list\n  iser-target session list --json | jq -r '.[] | select(.age_ns > 3600e9).tsih'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), st.Sessions)
				}
				if len(st.Sessions) == 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "no session is open") // standard output is the table's
				}
				return printSessions(cmd.OutOrStdout(), st.Sessions)
			})
		},
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	kill := &cobra.Command{
		Use: "kill TSIH", Short: "End a session; its initiator usually logs in again", Args: exactly(1),
		Example: "  iser-target session kill 3",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 16)
			if err != nil {
				return exit(exitUsage, fmt.Errorf("TSIH %q is not a number up to 65535; iser-target session list shows them", args[0]))
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return c.Kill(ctx, uint16(n)) })
		},
	}
	release := &cobra.Command{
		Use: "release IQN INITIATOR", Short: "Let another CHAP user have an initiator's name at a target", Args: exactly(2),
		Long: `While sessions or persistent reservations of an initiator's name live at a target, the
name belongs to the CHAP user who opened them. release ends the sessions. The reservations
stay, and will belong to the next user who authenticates under the name.`,
		Example: "  iser-target session release iqn.2026-11.softiser:disk0 iqn.1993-08.org.debian:01:old-host",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return c.Release(ctx, args[0], args[1]) })
		},
	}
	kill.ValidArgsFunction = completeArgs(s.sessions)
	release.ValidArgsFunction = completeArgs(s.targets, s.initiators)
	cmd.AddCommand(list, kill, release)
	return cmd
}

// reloadCommand builds the command that has a running target read its configuration
// again.
func reloadCommand() *cobra.Command {
	var s socketFlag
	var dry, asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make a running iser-target agree with its configuration file",
		Long: `Reads the configuration file of a running target again, and makes what is served
agree with it: targets and LUNs, subsystems and namespaces come and go, volumes grow,
rates (qos) and limits change, access rules and secrets count for the next login or
Connect, the log level changes. What the file does not change goes on undisturbed,
sessions and controllers included. A LUN or a namespace whose volume could not be opened
is tried again. Other settings are named and wait for the next start. A file with a
mistake, or without any target and subsystem, changes nothing. SIGHUP does the same and
tells the log.`,
		Example: `  iser-target reload --dry-run
  iser-target reload --json | jq '.[] | select(.error)'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				changes, warnings, err := c.Reload(ctx, dry)
				if _, mistakes := errors.AsType[*admin.FileError](err); mistakes {
					return exit(exitUsage, err)
				}
				if err != nil {
					return err
				}
				for _, w := range warnings {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
				}
				if asJSON {
					err = printJSON(cmd.OutOrStdout(), changes)
				} else {
					printChanges(cmd.OutOrStdout(), changes)
				}
				left := 0
				for _, c := range changes {
					if c.Error != "" {
						left++
					}
				}
				if err == nil && left > 0 {
					err = exit(exitDegraded, fmt.Errorf("%d of %d changes are not in force", left, len(changes)))
				}
				return err
			})
		},
	}
	s.add(cmd)
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "only show what would change")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// resizeCommand builds the command that changes the size of a volume that is served.
func resizeCommand() *cobra.Command {
	var s socketFlag
	var shrink bool
	cmd := &cobra.Command{
		Use: "resize VOLUME SIZE", Short: "Change the size of a volume of a running iser-target; initiators are told", Args: exactly(2),
		Long:    "Changes the size of a volume of a running iser-target. Initiators are told, and see the\nnew size without a new login. To make a volume smaller, which cuts off what lies behind\nits new end, takes --shrink.\n\nA file that has grown is served whole after a restart, whatever the configuration says;\none that has shrunk is grown again, and what is in memory has the configured size, so\nwrite the new size there, too.",
		Example: "  iser-target resize disk0 20GiB\n  iser-target resize --shrink disk0 1GiB",
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := config.ParseSize(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				for _, v := range st.Volumes {
					switch {
					case v.Name != args[0]:
					case v.Backend == "lvm":
						return exit(exitUsage, fmt.Errorf("%s is a logical volume: iser-target lvm lvextend and lvreduce change its size, on line", v.Name))
					case int64(size) < v.Size && !shrink:
						return exit(exitUsage, fmt.Errorf("%s has %s; what lies behind %s would be lost: shrink its file system first, then say --shrink",
							v.Name, config.Size(v.Size), size))
					default:
						return c.ResizeVolume(ctx, v.Name, int64(size))
					}
				}
				return unserved(&st, args[0])
			})
		},
	}
	s.add(cmd)
	cmd.ValidArgsFunction = completeArgs(s.volumes)
	cmd.Flags().BoolVar(&shrink, "shrink", false, "allow a smaller size: data beyond it is lost")
	return cmd
}

// unserved says why a volume is not there to be resized.
func unserved(st *target.Status, name string) error {
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			if l.Volume == name && l.Error != "" {
				return fmt.Errorf("%s is not served: %s", name, l.Error)
			}
		}
	}
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			if n.Volume == name && n.Error != "" {
				return fmt.Errorf("%s is not served: %s", name, n.Error)
			}
		}
	}
	return fmt.Errorf("no LUN and no namespace has a volume named %q; `iser-target status` lists them", name)
}
