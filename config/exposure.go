package config

import (
	"fmt"
	"net"
	"slices"
)

// exposed tells of targets that whoever reaches the machine may write to.
func (c *Config) exposed() (all []string) {
	for _, t := range c.Targets {
		if t.Auth.Method == "chap" || len(t.ACL.Initiators) > 0 || len(t.ACL.Networks) > 0 || len(t.ACL.Bind) > 0 || len(t.LUNs) == 0 {
			continue
		}
		for _, p := range c.Portals {
			if len(t.Portals) > 0 && !slices.Contains(t.Portals, p.Listen) || !reachable(p.address()) || p.TLS.closed() {
				continue
			}
			all = append(all, fmt.Sprintf("target %s is offered on %s without auth and acl: whoever reaches that address may use its volumes; add one of them, or listen on 127.0.0.1", t.IQN, p.Listen))
			break
		}
	}
	return append(all, c.exposedSubsystems()...)
}

// exposedSubsystems tells of NVMe subsystems in the same way. A host's NQN is what the host
// says, so that only networks and keys keep anybody out.
func (c *Config) exposedSubsystems() (all []string) {
	for _, s := range c.Subsystems {
		if len(s.Networks) > 0 || len(s.Namespaces) == 0 || len(s.Keys) > 0 && len(s.Hosts) == 0 {
			continue
		}
		for _, p := range c.Portals {
			if reachable(p.address()) && !p.TLS.closed() && (p.Speaks("nvme-tcp") || p.Speaks("nvme-rdma")) {
				all = append(all, fmt.Sprintf("subsystem %s is offered on %s without networks, to hosts without keys: they call themselves what they like, and whoever reaches that address may use its volumes; "+
					"give keys to its hosts and leave the list of hosts empty, say from where they may come, or listen on 127.0.0.1", s.NQN, p.Listen))
				break
			}
		}
	}
	return all
}

// reachable reports whether an address to listen on is one for other machines.
func reachable(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil || host == "localhost" {
		return false
	}
	ip, ok := ipOf(host)
	return !ok || !ip.IsLoopback()
}
