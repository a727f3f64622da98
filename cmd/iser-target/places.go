package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"softiser/config"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// place is where a volume is served: a LUN of a target, or a namespace of a subsystem. Its
// commands differ in the number and in the call.
type place struct {
	number func(string) (uint32, error)
	add    func(ctx context.Context, c *admin.Client, name string, number uint32, volume, spec string) error
	remove func(ctx context.Context, c *admin.Client, name string, number uint32) error
}

var (
	lunPlace = place{
		number: lunNumber,
		add: func(ctx context.Context, c *admin.Client, iqn string, n uint32, volume, spec string) error {
			return c.AddLUN(ctx, iqn, admin.LUNRequest{LUN: uint16(n), Name: volume, Spec: spec})
		},
		remove: func(ctx context.Context, c *admin.Client, iqn string, n uint32) error {
			return c.RemoveLUN(ctx, iqn, uint16(n))
		},
	}
	namespacePlace = place{
		number: nsidNumber,
		add: func(ctx context.Context, c *admin.Client, nqn string, n uint32, volume, spec string) error {
			return c.AddNamespace(ctx, nqn, admin.NamespaceRequest{NSID: n, Name: volume, Spec: spec})
		},
		remove: func(ctx context.Context, c *admin.Client, nqn string, n uint32) error {
			return c.RemoveNamespace(ctx, nqn, n)
		},
	}
)

// adds makes cmd the command that adds a place: NAME NUMBER NAME[=VOLUME].
func (p place) adds(s *socketFlag, cmd *cobra.Command) *cobra.Command {
	cmd.Args = exactly(3)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := p.number(args[1])
		if err != nil {
			return exit(exitUsage, err)
		}
		volume, spec, err := volumeArgument(args[2])
		if err != nil {
			return exit(exitUsage, err)
		}
		return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error { return p.add(ctx, c, args[0], n, volume, spec) })
	}
	return cmd
}

// removes makes cmd the command that removes a place: NAME NUMBER.
func (p place) removes(s *socketFlag, cmd *cobra.Command) *cobra.Command {
	cmd.Args = exactly(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := p.number(args[1])
		if err != nil {
			return exit(exitUsage, err)
		}
		return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
			before, err := c.Status(ctx)
			if err == nil {
				err = p.remove(ctx, c, args[0], n)
			}
			if err != nil {
				return err
			}
			now, err := c.Status(ctx)
			if err == nil {
				tellAccess(cmd.OutOrStdout(), &now, volumeAt(&before, args[0], n))
			}
			return err
		})
	}
	return cmd
}

// volumeAt is the name of the volume of a LUN; "": there is none.
func volumeAt(st *target.Status, iqn string, lun uint32) string {
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			if t.Name == iqn && uint32(l.LUN) == lun {
				return l.Volume
			}
		}
	}
	return ""
}

// tellAccess says how namespaces of a volume are reached that nothing keeps from being reached
// better but what a LUN has said that has gone: the state stays, because the volume may be at
// work on another node.
func tellAccess(out io.Writer, st *target.Status, name string) {
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			if n.Volume != name || name == "" {
				continue
			}
			for _, g := range slices.Sorted(maps.Keys(n.Access)) {
				if n.Access[g] != volume.PathOptimized {
					fmt.Fprintf(out, "namespace %d of %s stays %s through portal group %d, as the LUN was;\n  iser-target lun access %s %d %d active-optimized  changes that\n", n.NSID, s.NQN, n.Access[g], g, s.NQN, n.NSID, g)
				}
			}
		}
	}
}

// lunCommand builds the commands that add, remove and change LUNs of a running target.
func lunCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{
		Use: "lun", Short: "Add and remove LUNs of a running iser-target",
		Example: "  iser-target lun add iqn.2026-11.softiser:disk0 1 scratch=memory,size=1GiB\n  iser-target lun remove iqn.2026-11.softiser:disk0 1\n  iser-target lun access iqn.2026-11.softiser:disk0 0 2 standby",
	}
	s.add(cmd)
	add := lunPlace.adds(&s, &cobra.Command{
		Use: "add IQN LUN NAME[=VOLUME]", Short: "Add a LUN; logged-in initiators are told",
		Long:    "Add a LUN; logged-in initiators are told. NAME=VOLUME is as in serve --export; NAME alone\nis a volume that is configured, or served by another target already: then both serve it,\nas one disk. It lasts as long as the target runs; what is to come back belongs in the\nconfiguration file (see reload).",
		Example: "  iser-target lun add iqn.2026-11.softiser:disk0 1 scratch=memory,size=1GiB\n  iser-target lun add iqn.2026-11.softiser:disk0 2 more=./more.img,size=10GiB\n  iser-target lun add iqn.2026-11.softiser:other 0 disk0",
	})
	remove := lunPlace.removes(&s, &cobra.Command{
		Use: "remove IQN LUN", Short: "Remove a LUN, under load if need be; its volume is flushed, and closed with its last LUN",
		Example: "  iser-target lun remove iqn.2026-11.softiser:disk0 1",
	})
	access := &cobra.Command{
		Use: "access IQN LUN GROUP STATE", Short: "Change the ALUA or ANA state of a LUN or namespace through a portal group; initiators are told", Args: exactly(4),
		Long:    "Change the asymmetric access state of a LUN through one portal group. STATE is\nactive-optimized, active-non-optimized, standby, unavailable or offline. Namespaces follow\nthe LUNs of their volume; with a subsystem's NQN and an NSID the namespace alone changes.\nA namespace stays in its state when the LUN is removed.",
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
				return c.SetAccess(ctx, args[0], uint16(n), admin.AccessRequest{Group: uint16(g), State: state})
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
	cmd := &cobra.Command{
		Use: "namespace", Aliases: []string{"ns"}, Short: "Add and remove NVMe namespaces of a running iser-target",
		Example: "  iser-target namespace add nqn.2026-11.softiser:disk0 2 scratch=memory,size=1GiB\n  iser-target namespace remove nqn.2026-11.softiser:disk0 2",
	}
	s.add(cmd)
	add := namespacePlace.adds(&s, &cobra.Command{
		Use: "add NQN NSID NAME[=VOLUME]", Short: "Add a namespace; connected hosts are told",
		Long:    "Add a namespace to a subsystem; connected hosts are told. NAME=VOLUME is as in serve\n--export; NAME alone is a volume that is configured, or served already, as a LUN or as a\nnamespace elsewhere: then all serve it, as one disk. It lasts as long as the target runs;\nwhat is to come back belongs in the configuration file (see reload).",
		Example: "  iser-target namespace add nqn.2026-11.softiser:disk0 2 scratch=memory,size=1GiB\n  iser-target namespace add nqn.2026-11.softiser:disk0 3 disk1",
	})
	remove := namespacePlace.removes(&s, &cobra.Command{
		Use: "remove NQN NSID", Short: "Remove a namespace, under load if need be; its volume is flushed, and closed with its last place",
		Example: "  iser-target namespace remove nqn.2026-11.softiser:disk0 2",
	})
	add.ValidArgsFunction = completeArgs(s.subsystems, s.freeNSID, exports)
	remove.ValidArgsFunction = completeArgs(s.subsystems, s.namespaces)
	cmd.AddCommand(add, remove)
	return cmd
}

// nsidNumber reads a namespace identifier.
func nsidNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n < 1 || n > config.MaxNSID {
		return 0, fmt.Errorf("namespace identifier %q is not a number from 1 to %d", s, config.MaxNSID)
	}
	return uint32(n), nil
}

// accessStates are the names that [scsi.AccessState] reads.
var accessStates = []string{"active-optimized", "active-non-optimized", "standby", "unavailable", "offline"}

// lunNumber reads the number of a LUN.
func lunNumber(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 14)
	if err != nil {
		return 0, fmt.Errorf("LUN %q is not a number up to 16383", s)
	}
	return uint32(n), nil
}
