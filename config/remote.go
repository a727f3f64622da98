package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// wellKnownDiscovery is the name that every discovery service of NVMe answers to.
const wellKnownDiscovery = "nqn.2014-08.org.nvmexpress.discovery"

// nvmeProtocols are those of Protocols that hosts of NVMe speak.
var nvmeProtocols = []string{"nvme-tcp", "nvme-rdma"}

// validNQN reports whether s can be the name of a subsystem.
func validNQN(s string) bool {
	return strings.HasPrefix(s, "nqn.") && len(s) <= maxNQN && shown(s) && !strings.Contains(s, " ")
}

// checkDiscovery checks what NVMe's discovery service is called, and whom it refers to.
func (c *Config) checkDiscovery(r *report) {
	switch nqn := c.Discovery.NQN; {
	case nqn == "":
	case !validNQN(nqn):
		r.add("discovery.nqn", "%q is no NVMe name; expected one such as nqn.2026-11.softiser:discovery.node1, of at most %d bytes without spaces", nqn, maxNQN)
	case nqn == wellKnownDiscovery:
		r.add("discovery.nqn", "is the name of every discovery service; leave it out, or give one that this node has alone")
	default:
		for i := range c.Subsystems {
			if c.Subsystems[i].NQN == nqn {
				r.add("discovery.nqn", "%s is already the name of subsystems[%d]", nqn, i)
			}
		}
	}
	seen := map[Elsewhere]string{}
	for i, f := range c.Discovery.Referrals {
		key := fmt.Sprintf("discovery.referrals[%d]", i)
		c.checkElsewhere(r, key, f.Address, f.Protocols, seen)
		switch {
		case f.NQN != "" && !validNQN(f.NQN):
			r.add(key+".nqn", "%q is no NVMe name", f.NQN)
		case f.NQN != "" && f.NQN == c.Discovery.NQN:
			r.add(key+".nqn", "is the name of this node's discovery service; a host would be sent in a circle")
		}
	}
}

// checkRemote checks portals of other nodes: hosts have to be able to tell the nodes'
// controllers apart, and must not do so with their volumes.
func (c *Config) checkRemote(r *report, s *Subsystem, key string) {
	if len(s.Remote) == 0 {
		return
	}
	seen := map[Elsewhere]string{}
	for i, p := range s.Remote {
		c.checkElsewhere(r, fmt.Sprintf("%s.remote[%d]", key, i), p.Address, p.Protocols, seen)
	}
	if s.MinCntlID == 0 || s.MaxCntlID == 0 {
		r.add(key+".remote", "each node needs controller identifiers of its own; give this one a range by min_cntlid and max_cntlid")
	}
	for j, n := range s.Namespaces {
		if v := c.volume(n.Volume); v != nil && v.WWID == "" {
			r.add(fmt.Sprintf("%s.namespaces[%d].volume", key, j), "%s needs a wwid, the same on every node that serves the subsystem: by it hosts know that it is one disk", n.Volume)
		}
	}
}

// checkElsewhere checks a portal of another node.
func (c *Config) checkElsewhere(r *report, key, address string, protocols []string, seen map[Elsewhere]string) {
	a, err := ParseElsewhere(address)
	for j, s := range protocols {
		pkey := fmt.Sprintf("%s.protocols[%d]", key, j)
		if oneOf(r, pkey, s, nvmeProtocols...); a.RoCE && s == "nvme-tcp" {
			r.add(pkey, "nvme-tcp is not spoken over RoCE; give the node's portal for TCP an entry of its own")
		}
	}
	if err != nil {
		r.add(key+".address", "%v", err)
		return
	}
	if first, ok := seen[a]; ok {
		r.add(key+".address", "%s is already the address of %s", a, first)
	}
	seen[a] = key
	for i, p := range c.Portals {
		if p.RoCE() == a.RoCE && (p.address() == a.AddrPort.String() || p.Advertise == a.AddrPort.String()) {
			r.add(key+".address", "%s is the address of portals[%d]; name a portal of another node", a, i)
		}
	}
}

// Elsewhere is where hosts reach a portal of another node.
type Elsewhere struct {
	netip.AddrPort
	RoCE bool // by RDMA over UDP alone; otherwise by TCP, and what goes over it
}

// String is what ParseElsewhere reads.
func (e Elsewhere) String() string {
	if e.RoCE {
		return roceScheme + e.AddrPort.String()
	}
	return e.AddrPort.String()
}

// ParseElsewhere reads the address and port that hosts reach a portal by, IP:port, or
// roce://IP[:port]. Names are none: what NVMe's discovery tells is addresses.
func ParseElsewhere(s string) (Elsewhere, error) {
	p := Portal{Listen: s}
	a, err := netip.ParseAddrPort(p.address())
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().Zone() != "" {
		return Elsewhere{RoCE: p.RoCE()}, fmt.Errorf("%q is no address that a host can be told; expected IP:port, for example 192.0.2.2:8009 or [2001:db8::2]:8009, or roce://192.0.2.2 of a portal for RoCE", s)
	}
	return Elsewhere{netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), p.RoCE()}, nil
}
