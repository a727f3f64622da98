package main

import (
	"encoding/json"
	"errors"
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
	var asJSON, urls, here, follow bool
	cmd := &cobra.Command{
		Use:   "discover [iser://|iser+roce://|iscsi://|nvme+tcp://|nvme+rdma://|nvme+roce://]host[:port]",
		Short: "List the targets or subsystems that a portal serves",
		Long: `List the targets that a portal serves (SendTargets), one line per address, as
"iscsiadm -m discovery" prints them: ip:port,portal-group-tag name.

Without a scheme the portal is asked over iSER; iscsi:// asks over plain TCP, iser+roce://
over RoCE. What is told are the portals of the same kind: RoCE, or TCP.

nvme+tcp://, nvme+rdma:// and nvme+roce:// read the log of an NVMe discovery service (port 8009 by
default, 4420 over RDMA) and print it as "nvme discover" does, with --json as "nvme discover -o json".
A path in the URL is the NQN of a discovery service that has one of its own. With --follow the
services that this one refers to are asked as well, and those that they refer to.`,
		Example: `  iser-initiator discover 127.0.0.1
  iser-initiator discover iscsi://[::1]:3260 --json
  iser-initiator discover nvme+tcp://127.0.0.1:3260 --json
  iser-initiator discover nvme+tcp://10.0.0.7 --follow --urls   # of all nodes that it refers to
  iser-initiator discover 10.0.0.7 --urls --here   # what to give to the other commands, behind NAT`,
		Args: cobra.ExactArgs(1),
	}
	fs := cmd.Flags()
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	fs.BoolVar(&urls, "urls", false, "print the URL of each target's LUN 0, or of each subsystem's namespace 1, instead")
	fs.BoolVar(&here, "here", false, "use the address that was asked, not those that the target gives (NAT)")
	fs.BoolVar(&follow, "follow", false, "NVMe: ask the discovery services that this one refers to as well")
	cmd.MarkFlagsMutuallyExclusive("here", "follow")
	opts := connflags.Register(fs)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		switch nvme := nvmf.IsURL(a[0]); {
		case nvme && follow:
			return followNVMe(cmd, opts, a[0], asJSON, urls)
		case nvme:
			return discoverNVMe(cmd, opts, a[0], asJSON, urls, here)
		case follow:
			return &codedError{exitUsage, fmt.Errorf("--follow is for NVMe's referrals; %s is a portal of iSCSI", a[0])}
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
			if err := printJSON(out, targets); err != nil {
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

// discoveryPortal is whom to ask for an NVMe discovery log, and how.
func discoveryPortal(opts *connflags.Options, portal string) (nvmf.Config, error) {
	cfg, err := nvmf.ParsePortal(portal)
	if err == nil {
		err = opts.NVMe(&cfg)
	}
	if err != nil {
		return cfg, &codedError{exitUsage, err}
	}
	cfg.KeepAlive = 0 // it is over in a moment
	return cfg, nil
}

// discoverNVMe asks an NVMe discovery service.
func discoverNVMe(cmd *cobra.Command, opts *connflags.Options, portal string, asJSON, urls, here bool) error {
	cfg, err := discoveryPortal(opts, portal)
	if err != nil {
		return err
	}
	log, err := nvmf.Discover(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if here {
		host, port, err := net.SplitHostPort(cfg.Address)
		if err != nil {
			return err
		}
		for i := range log.Records {
			log.Records[i].Address, log.Records[i].Service = host, port
		}
	}
	out := cmd.OutOrStdout()
	switch {
	case asJSON:
		err = printJSON(out, log)
	case urls:
		printURLs(out, log)
	default:
		printDiscovery(out, log)
	}
	if err == nil && subsystems(log) == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the discovery service at %s knows no subsystem for this host", cfg.Address)}
	}
	return err
}

// followNVMe asks an NVMe discovery service and those that it leads to.
func followNVMe(cmd *cobra.Command, opts *connflags.Options, portal string, asJSON, urls bool) error {
	cfg, err := discoveryPortal(opts, portal)
	if err != nil {
		return err
	}
	services, err := nvmf.Follow(cmd.Context(), cfg)
	if services == nil {
		return err
	}
	out, found := cmd.OutOrStdout(), 0
	if asJSON {
		err = errors.Join(err, printJSON(out, services))
	}
	for _, s := range services {
		if s.Log == nil {
			if !asJSON {
				fmt.Fprintf(cmd.ErrOrStderr(), "discovery service %s at %s: %s\n", s.NQN, s.Address, s.Error)
			}
			continue
		}
		found += subsystems(s.Log)
		switch {
		case asJSON:
		case urls:
			printURLs(out, s.Log)
		default:
			fmt.Fprintf(out, "\nDiscovery service %s at %s over %s\n", s.NQN, s.Address, s.Transport)
			printDiscovery(out, s.Log)
		}
	}
	if err == nil && found == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the discovery service at %s, and those that it refers to, know no subsystem for this host", cfg.Address)}
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// subsystems is how many entries lead to namespaces.
func subsystems(log *nvmf.Log) (n int) {
	for _, r := range log.Records {
		if r.Type == nvmeSubsystem {
			n++
		}
	}
	return n
}

// printURLs prints the first namespace of each subsystem, as the other commands want it.
func printURLs(w io.Writer, log *nvmf.Log) {
	for _, r := range log.Records {
		if r.Type == nvmeSubsystem {
			fmt.Fprintf(w, "%s://%s/%s/1\n", r.Scheme(), net.JoinHostPort(r.Address, r.Service), r.Subsystem)
		}
	}
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
		if r.Provider != "" {
			fmt.Fprintf(w, "rdma_prtype: %s\nrdma_qptype: %s\nrdma_cms:    %s\n", r.Provider, r.QueuePair, r.Manager)
		}
	}
}
