package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"softiser/initiator"
	"softiser/initiator/connflags"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
)

// discovery is one invocation of "discover".
type discovery struct {
	opts   *connflags.Options
	portal string // a URL, or host[:port]
	json   bool
	urls   bool // URLs for the other commands instead of what was told
	here   bool // with the address that was asked
	follow bool // NVMe: to other discovery services
}

// discoverCommand builds the command that lists what a portal offers: targets and LUNs,
// or subsystems.
func discoverCommand() *cobra.Command {
	var d discovery
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
  iser-initiator discover 'iscsi://[::1]:3260' --json
  iser-initiator discover nvme+tcp://127.0.0.1:3260 --json
  iser-initiator discover nvme+tcp://10.0.0.7 --follow --urls   # of all nodes that it refers to
  iser-initiator discover 10.0.0.7 --urls --here   # what to give to the other commands, behind NAT`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, a []string) error {
			d.portal = a[0]
			return d.run(cmd)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&d.json, "json", false, "print JSON")
	fs.BoolVar(&d.urls, "urls", false, "print the URL of each target's LUN 0, or of each subsystem's namespace 1, instead")
	fs.BoolVar(&d.here, "here", false, "use the address that was asked, not those that the target gives (NAT)")
	fs.BoolVar(&d.follow, "follow", false, "NVMe: ask the discovery services that this one refers to as well")
	cmd.MarkFlagsMutuallyExclusive("here", "follow")
	d.opts = connflags.Register(fs)
	return cmd
}

// run asks the portal, and prints what it tells.
func (d *discovery) run(cmd *cobra.Command) error {
	nvme := nvmf.IsURL(d.portal)
	if err := d.opts.CheckSecrets(!nvme, nvme); err != nil {
		return &codedError{exitUsage, err}
	}
	switch {
	case nvme && d.follow:
		return d.followNVMe(cmd)
	case nvme:
		return d.nvme(cmd)
	case d.follow:
		return &codedError{exitUsage, fmt.Errorf("--follow is for NVMe's referrals; %s is a portal of iSCSI", d.portal)}
	}
	return d.iscsi(cmd)
}

// iscsi asks a portal of iSCSI for its targets (SendTargets).
func (d *discovery) iscsi(cmd *cobra.Command) error {
	cfg, err := initiator.ParsePortal(d.portal)
	if err == nil {
		err = d.opts.Apply(&cfg)
	}
	if err != nil {
		return &codedError{exitUsage, err}
	}
	targets, err := initiator.Discover(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if d.here {
		for i := range targets {
			g := -1
			if len(targets[i].Portals) > 0 {
				g = targets[i].Portals[0].Group
			}
			targets[i].Portals = []initiator.Portal{{Address: cfg.Address, Group: g}}
		}
	}
	out := cmd.OutOrStdout()
	if d.json {
		err = printJSON(out, targets)
	} else {
		d.printTargets(out, targets, cfg.Transport)
	}
	if err == nil && len(targets) == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the portal at %s serves no target to initiator %s: the access rules of its targets say whom they are for", cfg.Address, cmp.Or(cfg.InitiatorName, initiator.DefaultInitiatorName()))}
	}
	return err
}

// printTargets prints a line for each address of each target.
func (d *discovery) printTargets(w io.Writer, targets []initiator.Target, over initiator.Transport) {
	for _, t := range targets {
		for _, p := range t.Portals {
			switch {
			case d.urls:
				c := initiator.Config{Transport: over, Address: p.Address, TargetName: t.Name}
				fmt.Fprintln(w, iscsi.Printable(c.URL()))
			case p.Group < 0:
				fmt.Fprintf(w, "%s %s\n", iscsi.Printable(p.Address), iscsi.Printable(t.Name))
			default:
				fmt.Fprintf(w, "%s,%d %s\n", iscsi.Printable(p.Address), p.Group, iscsi.Printable(t.Name))
			}
		}
	}
}

// nvmeConfig is whom to ask for an NVMe discovery log, and how.
func (d *discovery) nvmeConfig() (nvmf.Config, error) {
	cfg, err := nvmf.ParsePortal(d.portal)
	if err == nil {
		err = d.opts.NVMe(&cfg)
	}
	if err != nil {
		return cfg, &codedError{exitUsage, err}
	}
	cfg.KeepAlive = 0 // it is over in a moment
	return cfg, nil
}

// hostName is what messages call this machine as a host of NVMe.
func hostName(cfg *nvmf.Config) string {
	if cfg.HostNQN == "" {
		return "this host" // by its default name
	}
	return "host " + cfg.HostNQN
}

// nvme asks an NVMe discovery service.
func (d *discovery) nvme(cmd *cobra.Command) error {
	cfg, err := d.nvmeConfig()
	if err != nil {
		return err
	}
	log, err := nvmf.Discover(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if d.here {
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
	case d.json:
		err = printJSON(out, log)
	case d.urls:
		printURLs(out, log)
	default:
		printDiscovery(out, log)
	}
	if err == nil && subsystems(log) == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the discovery service at %s knows no subsystem for %s: the access rules of subsystems say whom they are for", cfg.Address, hostName(&cfg))}
	}
	return err
}

// followNVMe asks an NVMe discovery service and those that it leads to.
func (d *discovery) followNVMe(cmd *cobra.Command) error {
	cfg, err := d.nvmeConfig()
	if err != nil {
		return err
	}
	services, err := nvmf.Follow(cmd.Context(), cfg)
	if services == nil {
		return err
	}
	out, found := cmd.OutOrStdout(), 0
	if d.json {
		err = errors.Join(err, printJSON(out, services))
	}
	for _, s := range services {
		if s.Log == nil {
			if !d.json {
				fmt.Fprintf(cmd.ErrOrStderr(), "discovery service %s at %s: %s\n", iscsi.Printable(s.NQN), iscsi.Printable(s.Address), iscsi.PrintableLines(s.Error))
			}
			continue
		}
		found += subsystems(s.Log)
		switch {
		case d.json:
		case d.urls:
			printURLs(out, s.Log)
		default:
			fmt.Fprintf(out, "\nDiscovery service %s at %s over %s\n", iscsi.Printable(s.NQN), iscsi.Printable(s.Address), s.Transport)
			printDiscovery(out, s.Log)
		}
	}
	if err == nil && found == 0 {
		err = &codedError{exitNotFound, fmt.Errorf("the discovery service at %s, and those that it refers to, know no subsystem for %s: the access rules of subsystems say whom they are for", cfg.Address, hostName(&cfg))}
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
			fmt.Fprintln(w, iscsi.Printable(r.URL(1)))
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
			r.Transport, r.Family, r.Type, r.Requires, r.PortID, iscsi.Printable(r.Service), iscsi.Printable(r.Subsystem), iscsi.Printable(r.Address))
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
