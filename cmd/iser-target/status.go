package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/config"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/scsi"
)

// socketFlag adds --socket; open finds the socket that it, the environment or
// the usual places name.
type socketFlag struct{ path string }

func (s *socketFlag) add(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&s.path, "socket", "", "admin socket (default $SOFTISER_ADMIN_SOCKET, then /run/softiser/iser-target.sock)")
}

func (s *socketFlag) open() (*admin.Client, error) {
	if err := config.MistypedEnv("admin.socket"); err != nil && s.path == "" {
		return nil, exit(exitUsage, err)
	}
	p := s.path
	if p == "" {
		p = os.Getenv(config.EnvPrefix + "_ADMIN_SOCKET")
	}
	if p == "" {
		p = "/run/softiser/iser-target.sock"
	}
	return admin.NewClient(p), nil
}

// ask runs one exchange with the target.
func (s *socketFlag) ask(ctx context.Context, f func(context.Context, *admin.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	err = f(ctx, c)
	if errors.Is(err, admin.ErrNoTarget) {
		return exit(exitNoTarget, err)
	}
	return err
}

func statusCommand() *cobra.Command {
	var s socketFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show targets, subsystems, volumes, sessions and controllers of a running iser-target",
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
	cmd := &cobra.Command{Use: "session", Short: "List and end sessions of a running iser-target"}
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
				return exit(exitUsage, fmt.Errorf("TSIH %q is not a number up to 65535", args[0]))
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return c.Kill(ctx, uint16(n)) })
		},
	}
	release := &cobra.Command{
		Use: "release IQN INITIATOR", Short: "Let another CHAP user have an initiator's name at a target", Args: exactly(2),
		Long: `While sessions or persistent reservations of an initiator's name live at a target, the
name belongs to the CHAP user who opened them. release ends the sessions and makes the
reservations, which stay, those of whoever proves himself under the name next.`,
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

// lunCommand builds the commands that add, remove and change LUNs of a running target.
func lunCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{Use: "lun", Short: "Add and remove LUNs of a running iser-target"}
	s.add(cmd)
	add := &cobra.Command{
		Use: "add IQN LUN NAME[=VOLUME]", Short: "Add a LUN; logged-in initiators are told", Args: exactly(3),
		Long:    "Add a LUN; logged-in initiators are told. NAME=VOLUME is as in serve --export; NAME alone\nis a volume that is configured, or served by another target already: then both serve it,\nas one disk. It lasts as long as the target runs; what is to come back belongs into the\nconfiguration file (see reload).",
		Example: "  iser-target lun add iqn.2026-11.softiser:disk0 1 scratch=memory,size=1GiB\n  iser-target lun add iqn.2026-11.softiser:disk0 2 more=./more.img,size=10GiB\n  iser-target lun add iqn.2026-11.softiser:other 0 disk0",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := lunNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			name, spec, err := volumeArgument(args[2])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				return c.AddLUN(ctx, args[0], admin.LUNRequest{LUN: n, Name: name, Spec: spec})
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove IQN LUN", Short: "Remove a LUN, under load if need be; its volume is flushed, and closed with its last LUN", Args: exactly(2),
		Example: "  iser-target lun remove iqn.2026-11.softiser:disk0 1",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := lunNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return c.RemoveLUN(ctx, args[0], n) })
		},
	}
	access := &cobra.Command{
		Use: "access IQN LUN GROUP STATE", Short: "Change the ALUA or ANA state of a LUN or namespace through a portal group; initiators are told", Args: exactly(4),
		Long:    "Change the asymmetric access state of a LUN through one portal group. STATE is\nactive-optimized, active-non-optimized, standby, unavailable or offline. Namespaces follow\nthe LUNs of their volume; with a subsystem's NQN and an NSID the namespace alone changes.",
		Example: "  iser-target lun access iqn.2026-11.softiser:disk0 0 2 standby\n  iser-target lun access nqn.2026-11.softiser:disk0 1 2 standby",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := lunNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			g, err := strconv.ParseUint(args[2], 10, 16)
			if err != nil {
				return exit(exitUsage, fmt.Errorf("portal group %q is not a number up to 65535", args[2]))
			}
			var state scsi.AccessState
			if err := state.UnmarshalText([]byte(args[3])); err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				return c.SetAccess(ctx, args[0], n, admin.AccessRequest{Group: uint16(g), State: state})
			})
		},
	}
	add.ValidArgsFunction = completeArgs(s.targets, s.freeLUN, exports)
	remove.ValidArgsFunction = completeArgs(s.targets, s.luns)
	access.ValidArgsFunction = completeArgs(s.targets, s.luns, s.groups, oneOf(accessStates...))
	cmd.AddCommand(add, remove, access)
	return cmd
}

// volumeArgument reads NAME or NAME=VOLUME.
func volumeArgument(arg string) (name, spec string, err error) {
	if !strings.Contains(arg, "=") && !strings.Contains(arg, "://") {
		return arg, "", nil
	}
	if name, spec, err = splitExport(arg); err == nil {
		spec, err = absoluteSpec(spec)
	}
	return name, spec, err
}

// namespaceCommand builds the commands that add and remove namespaces of a running
// target.
func namespaceCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{Use: "namespace", Aliases: []string{"ns"}, Short: "Add and remove NVMe namespaces of a running iser-target"}
	s.add(cmd)
	add := &cobra.Command{
		Use: "add NQN NSID NAME[=VOLUME]", Short: "Add a namespace; connected hosts are told", Args: exactly(3),
		Long:    "Add a namespace to a subsystem; connected hosts are told. NAME=VOLUME is as in serve\n--export; NAME alone is a volume that is configured, or served already, as a LUN or as a\nnamespace elsewhere: then all serve it, as one disk. It lasts as long as the target runs;\nwhat is to come back belongs into the configuration file (see reload).",
		Example: "  iser-target namespace add nqn.2026-11.softiser:disk0 2 scratch=memory,size=1GiB\n  iser-target namespace add nqn.2026-11.softiser:disk0 3 disk1",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := nsidNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			name, spec, err := volumeArgument(args[2])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				return c.AddNamespace(ctx, args[0], admin.NamespaceRequest{NSID: n, Name: name, Spec: spec})
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove NQN NSID", Short: "Remove a namespace, under load if need be; its volume is flushed, and closed with its last place", Args: exactly(2),
		Example: "  iser-target namespace remove nqn.2026-11.softiser:disk0 2",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := nsidNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return c.RemoveNamespace(ctx, args[0], n) })
		},
	}
	add.ValidArgsFunction = completeArgs(s.subsystems, s.freeNSID, exports)
	remove.ValidArgsFunction = completeArgs(s.subsystems, s.namespaces)
	cmd.AddCommand(add, remove)
	return cmd
}

func nsidNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n < 1 || n > config.MaxNSID {
		return 0, fmt.Errorf("namespace identifier %q is not a number from 1 to %d", s, config.MaxNSID)
	}
	return uint32(n), nil
}

// accessStates are the names that [scsi.AccessState] reads.
var accessStates = []string{"active-optimized", "active-non-optimized", "standby", "unavailable", "offline"}

func lunNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 14)
	if err != nil {
		return 0, fmt.Errorf("LUN %q is not a number up to 16383", s)
	}
	return uint16(n), nil
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
				changes, err := c.Reload(ctx, dry)
				if err != nil {
					return err
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
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "only tell what would change")
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
	cmd.Flags().BoolVar(&shrink, "shrink", false, "allow a smaller size: what lies behind it is lost")
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
