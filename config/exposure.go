package config

import (
	"fmt"
	"net"
	"slices"
)

// exposed tells of targets that whoever reaches the machine may write to.
func (c *Config) exposed() (all []string) {
	for _, t := range c.Targets {
		if t.Auth.Method == "chap" || len(t.ACL.Initiators) > 0 || len(t.ACL.Networks) > 0 || len(t.LUNs) == 0 {
			continue
		}
		for _, p := range c.Portals {
			if len(t.Portals) > 0 && !slices.Contains(t.Portals, p.Listen) || !reachable(p.Listen) {
				continue
			}
			all = append(all, fmt.Sprintf("target %s is offered on %s without auth and acl: whoever reaches that address may use its volumes; add one of them, or listen on 127.0.0.1", t.IQN, p.Listen))
			break
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
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}
