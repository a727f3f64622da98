package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"softiser/initiator"
	"softiser/initiator/connflags"
	"softiser/initiator/nvmf"
)

// discoverCommand builds the command that lists what a portal offers: targets and LUNs,
// or subsystems.
func discoverCommand() *cobra.Command {
	var asJSON, urls, here bool
	cmd := &cobra.Command{
		Use:   "discover [iser://|iscsi://|nvme+tcp://|nvme+rdma://]host[:port]",
		Short: "List the targets or subsystems that a portal serves",
		Long: `List the targets that a portal serves (SendTargets), one line per address, as
"iscsiadm -m discovery" prints them: ip:port,portal-group-tag name.

Without a scheme the portal is asked over iSER; iscsi:// asks over plain TCP.

nvme+tcp:// and nvme+rdma:// read the log of an NVMe discovery service (port 8009 by
default, 4420 over RDMA) and print it as "nvme discover" does, with --json as "nvme discover -o json".`,
		Example: `  iser-initiator discover 127.0.0.1
  iser-initiator discover iscsi://[::1]:3260 --json
  iser-initiator discover nvme+tcp://127.0.0.1:3260 --json
  iser-initiator discover 10.0.0.7 --urls --here   # what to give to the other commands, behind NAT`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.BoolVar(&urls, "urls", false, "print the URL of each target's LUN 0, or of each subsystem's namespace 1, instead")
	fs.BoolVar(&here, "here", false, "use the address that was asked, not those that the target gives (NAT)")
	opts := connflags.Register(fs)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		if nvmf.IsURL(a[0]) {
			return discoverNVMe(cmd, opts, a[0], asJSON, urls, here)
		}
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

// discoverNVMe asks an NVMe discovery service.
func discoverNVMe(cmd *cobra.Command, opts *connflags.Options, portal string, asJSON, urls, here bool) error {
	cfg, err := nvmf.ParsePortal(portal)
	if err == nil {
		err = opts.NVMe(&cfg)
	}
	if err != nil {
		return &codedError{exitUsage, err}
	}
	cfg.KeepAlive = 0 // it is over in a moment
	log, err := nvmf.Discover(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return err
	}
	subsystems := 0
	for i := range log.Records {
		r := &log.Records[i]
		if here {
			r.Address, r.Service = host, port
		}
		if r.Type == nvmeSubsystem {
			subsystems++
		}
	}
	out := cmd.OutOrStdout()
	switch {
	case asJSON:
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(log)
	case urls:
		for _, r := range log.Records {
			if r.Type == nvmeSubsystem {
				fmt.Fprintf(out, "nvme+%s://%s/%s/1\n", r.Transport, net.JoinHostPort(r.Address, r.Service), r.Subsystem)
			}
		}
	default:
		printDiscovery(out, log)
	}
	if err == nil && subsystems == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the discovery service at %s knows no subsystem for this host", cfg.Address)}
	}
	return err
}

// nvmeSubsystem is the type of the entries that lead to namespaces.
const nvmeSubsystem = "nvme subsystem"

// printDiscovery prints the log as nvme-cli does.
func printDiscovery(w io.Writer, log *nvmf.Log) {
	fmt.Fprintf(w, "\nDiscovery Log Number of Records %d, Generation counter %d\n", len(log.Records), log.Generation)
	for i, r := range log.Records {
		fmt.Fprintf(w, "=====Discovery Log Entry %d======\n", i)
		fmt.Fprintf(w, "trtype:  %s\nadrfam:  %s\nsubtype: %s\ntreq:    %s\nportid:  %d\ntrsvcid: %s\nsubnqn:  %s\ntraddr:  %s\n",
			r.Transport, r.Family, r.Type, r.Requires, r.PortID, r.Service, r.Subsystem, r.Address)
		if r.EntryFlags != "" {
			fmt.Fprintf(w, "eflags:  %s\n", r.EntryFlags)
		}
		if r.Security != "" {
			fmt.Fprintf(w, "sectype: %s\n", r.Security)
		}
	}
}
