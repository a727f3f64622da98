package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"softiser/initiator"
	"softiser/initiator/connflags"
)

func discoverCommand() *cobra.Command {
	var asJSON, urls, here bool
	cmd := &cobra.Command{
		Use:   "discover [iser://|iscsi://]host[:port]",
		Short: "List the targets that a portal serves",
		Long: `List the targets that a portal serves (SendTargets), one line per address, as
"iscsiadm -m discovery" prints them: ip:port,portal-group-tag name.

Without a scheme the portal is asked over iSER; iscsi:// asks over plain TCP.`,
		Example: `  iser-initiator discover 127.0.0.1
  iser-initiator discover iscsi://[::1]:3260 --json
  iser-initiator discover 10.0.0.7 --urls --here   # what to give to the other commands, behind NAT`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.BoolVar(&urls, "urls", false, "print the URL of each target's LUN 0 instead")
	fs.BoolVar(&here, "here", false, "use the address that was asked, not those that the target gives (NAT)")
	opts := connflags.Register(fs)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		cfg, err := initiator.ParsePortal(a[0])
		if err == nil {
			err = opts.Apply(&cfg)
		}
		if err != nil {
			return &codedError{exitUsage, err}
		}
		targets, err := initiator.Discover(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		if here {
			for i := range targets {
				g := -1
				if len(targets[i].Portals) > 0 {
					g = targets[i].Portals[0].Group
				}
				targets[i].Portals = []initiator.Portal{{Address: cfg.Address, Group: g}}
			}
		}
		out := cmd.OutOrStdout()
		if asJSON {
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			if err := e.Encode(targets); err != nil {
				return err
			}
		} else {
			for _, t := range targets {
				for _, p := range t.Portals {
					switch {
					case urls:
						c := initiator.Config{Transport: cfg.Transport, Address: p.Address, TargetName: t.Name}
						fmt.Fprintln(out, c.URL())
					case p.Group < 0:
						fmt.Fprintf(out, "%s %s\n", p.Address, t.Name)
					default:
						fmt.Fprintf(out, "%s,%d %s\n", p.Address, p.Group, t.Name)
					}
				}
			}
		}
		if len(targets) == 0 {
			return &codedError{exitNotFound, fmt.Errorf("the portal at %s serves no target to this initiator", cfg.Address)}
		}
		return nil
	}
	return cmd
}
