package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
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

func (s *socketFlag) open() *admin.Client {
	p := s.path
	if p == "" {
		p = os.Getenv(config.EnvPrefix + "_ADMIN_SOCKET")
	}
	if p == "" {
		p = "/run/softiser/iser-target.sock"
	}
	return admin.NewClient(p)
}

// ask runs one exchange with the target.
func (s *socketFlag) ask(ctx context.Context, f func(context.Context, *admin.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c := s.open()
	defer c.Close()
	err := f(ctx, c)
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
		Short: "Show targets, volumes and sessions of a running iser-target",
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

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printStatus(out io.Writer, st *target.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, up %s; logins %d, refused %d, broken off %d, pending %d\n\n", st.State, st.Uptime.Round(time.Second),
		st.Logins, st.LoginsRefused, st.LoginsAborted, st.Pending)
	fmt.Fprintln(w, "PORTAL\tGROUP\tACCEPTED\tGARBAGE\tSILENT\tEVICTED")
	for _, p := range st.Portals {
		bound := p.Bound
		if bound == "" {
			bound = p.Listen + " (closed)"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\n", bound, p.Group, p.Accepted, p.Garbage, p.Silent, p.Evicted)
	}
	fmt.Fprintln(w, "\nTARGET\tLUN\tVOLUME\tBACKEND\tSIZE\tREADS\tP50\tP99\tWRITES\tP50\tP99\tREAD\tWRITTEN")
	for _, t := range st.Targets {
		if len(t.LUNs) == 0 {
			fmt.Fprintf(w, "%s\t-\t\t\t\t\t\t\t\t\t\t\t\n", t.Name)
		}
		for _, l := range t.LUNs {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", t.Name, l.LUN, l.Volume, l.Backend, humanize.IBytes(uint64(l.Size)),
				l.Stats.Reads, brief(l.ReadLatency.P50), brief(l.ReadLatency.P99), l.Stats.Writes, brief(l.WriteLatency.P50), brief(l.WriteLatency.P99), humanize.IBytes(l.Stats.ReadBytes), humanize.IBytes(l.Stats.WriteBytes))
		}
	}
	fmt.Fprintln(w, "\nTSIH\tINITIATOR\tTARGET\tFROM\tTRANSPORT\tAGE\tBUSY\tREADS\tP50\tP99\tWRITES\tP50\tP99\tCOPIED")
	for _, s := range st.Sessions {
		tgt := s.Target
		if tgt == "" {
			tgt = "(discovery)"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d/%d\t%d\t%s\t%s\t%d\t%s\t%s\t%s\n", s.TSIH, s.Initiator, tgt, s.Remote, s.Connection,
			s.Age.Round(time.Second), s.Outstanding, s.Window, s.Reads, brief(s.ReadLatency.P50), brief(s.ReadLatency.P99),
			s.Writes, brief(s.WriteLatency.P50), brief(s.WriteLatency.P99), humanize.IBytes(s.BytesCopied))
	}
	return w.Flush()
}

// brief rounds a latency to two or three digits: the buckets are no finer.
func brief(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

func sessionCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{Use: "session", Short: "List and end sessions of a running iser-target"}
	s.add(cmd)
	list := &cobra.Command{
		Use: "list", Short: "List sessions as JSON lines", Args: exactly(0),
		Example: "  iser-target session list | jq -r '.tsih, .initiator'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				e := json.NewEncoder(cmd.OutOrStdout())
				for _, x := range st.Sessions {
					if err := e.Encode(x); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
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
	cmd.AddCommand(list, kill)
	return cmd
}

func lunCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{Use: "lun", Short: "Add and remove LUNs of a running iser-target"}
	s.add(cmd)
	add := &cobra.Command{
		Use: "add IQN LUN NAME=VOLUME", Short: "Add a LUN; logged-in initiators are told", Args: exactly(3),
		Example: "  iser-target lun add iqn.2026-11.softiser:disk0 1 scratch=memory,size=1GiB",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := lunNumber(args[1])
			if err != nil {
				return exit(exitUsage, err)
			}
			name, spec, err := splitExport(args[2])
			if err != nil {
				return exit(exitUsage, err)
			}
			return s.ask(cmd.Context(), func(ctx context.Context, c *admin.Client) error {
				return c.AddLUN(ctx, args[0], admin.LUNRequest{LUN: n, Name: name, Spec: spec})
			})
		},
	}
	remove := &cobra.Command{
		Use: "remove IQN LUN", Short: "Remove a LUN, under load if need be; its volume is flushed and closed", Args: exactly(2),
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
		Use: "access IQN LUN GROUP STATE", Short: "Change a LUN's ALUA state through a portal group; initiators are told", Args: exactly(4),
		Long:    "Change the asymmetric access state of a LUN through one portal group. STATE is\nactive-optimized, active-non-optimized, standby, unavailable or offline.",
		Example: "  iser-target lun access iqn.2026-11.softiser:disk0 0 2 standby",
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
	cmd.AddCommand(add, remove, access)
	return cmd
}

func lunNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 14)
	if err != nil {
		return 0, fmt.Errorf("LUN %q is not a number up to 16383", s)
	}
	return uint16(n), nil
}

func resizeCommand() *cobra.Command {
	var s socketFlag
	cmd := &cobra.Command{
		Use: "resize VOLUME SIZE", Short: "Change the size of a volume of a running iser-target; initiators are told", Args: exactly(2),
		Example: "  iser-target resize disk0 20GiB",
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
				for _, t := range st.Targets {
					for _, l := range t.LUNs {
						if l.Volume == args[0] {
							return c.Resize(ctx, t.Name, l.LUN, int64(size))
						}
					}
				}
				return fmt.Errorf("no LUN has a volume named %q; `iser-target status` lists them", args[0])
			})
		},
	}
	s.add(cmd)
	return cmd
}

// exists reports whether there is anything at a path that could be opened.
func exists(path string) bool {
	_, err := os.Stat(filepath.Clean(path))
	return !errors.Is(err, fs.ErrNotExist)
}
