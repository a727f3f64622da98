package registry

import (
	"fmt"
	"slices"

	"softiser/config"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// What the file says of NVMe, in the types of target/nvmf.

var secureChannels = map[string]nvmf.SecureChannel{
	"": nvmf.SecureAllowed, "allowed": nvmf.SecureAllowed, "required": nvmf.SecureRequired, "none": nvmf.SecureNone,
}

func subsystemConfig(s *config.Subsystem) nvmf.SubsystemConfig {
	c := nvmf.SubsystemConfig{NQN: s.NQN, Serial: s.Serial, MinCntlID: uint16(s.MinCntlID), MaxCntlID: uint16(s.MaxCntlID), SecureChannel: secureChannels[s.SecureChannel], Remote: remotes(s.Remote)}
	var rules []nvmf.HostRule
	for i := range s.Keys {
		k := &s.Keys[i]
		rules = append(rules, nvmf.HostRule{NQN: k.Host, Secret: k.Secret(), CtrlSecret: k.CtrlSecret(), Proof: k.Proof(), TLSKey: k.TLSKey()})
	}
	for _, h := range s.Hosts {
		rules = append(rules, nvmf.HostRule{NQN: h})
	}
	if len(rules) == 0 && len(s.Networks) > 0 {
		rules = []nvmf.HostRule{{}}
	}
	for _, rule := range rules {
		for _, n := range s.Networks {
			if p, err := config.ParseNetwork(n); err == nil { // it has been checked
				rule.Networks = append(rule.Networks, p)
			}
		}
		c.Hosts = append(c.Hosts, rule)
	}
	return c
}

// remotes are portals of other nodes that serve a subsystem.
func remotes(l []config.Remote) (all []nvmf.Remote) {
	for _, p := range l {
		all = append(all, remote(p.Address, p.Protocols, ""))
	}
	return all
}

// referrals are discovery services of other nodes.
func referrals(l []config.Referral) (all []nvmf.Remote) {
	for _, p := range l {
		all = append(all, remote(p.Address, p.Protocols, p.NQN))
	}
	return all
}

func remote(address string, protocols []string, nqn string) nvmf.Remote {
	a, _ := config.ParseElsewhere(address) // it has been checked
	speaks := func(s string) bool { return len(protocols) == 0 || slices.Contains(protocols, s) }
	return nvmf.Remote{Address: a.AddrPort, RoCE: a.RoCE, TCP: !a.RoCE && speaks("nvme-tcp"), RDMA: speaks("nvme-rdma"), NQN: nqn}
}

// namespaceConfig describes a namespace but for its device.
func namespaceConfig(c *config.Config, v config.Volume, n config.Namespace) (nvmf.NamespaceConfig, error) {
	lc, err := lunConfig(c, v, config.LUN{ReadOnly: n.ReadOnly})
	nc := nvmf.NamespaceConfig{NSID: uint32(n.NSID), Name: v.Name, ReadOnly: lc.ReadOnly, Placement: lc.Placement, Workers: lc.Workers, QoS: lc.QoS}
	nc.Identity.Serial, nc.Identity.NAA = lc.Serial, lc.NAA
	if err == nil {
		nc.Access, err = spaceAccess(n)
	}
	return nc, err
}

// spaceAccess translates the access states of a namespace, by portal group; nil: it has none
// of its own.
func spaceAccess(n config.Namespace) (map[uint16]volume.PathState, error) {
	if !n.NamesAccess() {
		return nil, nil
	}
	m := map[uint16]volume.PathState{}
	groups := []int{0}
	for _, g := range n.ANAGroups {
		groups = append(groups, g.Group)
	}
	for _, g := range groups {
		var s volume.PathState
		if err := s.UnmarshalText([]byte(n.Access(g))); err != nil {
			return nil, fmt.Errorf("namespace %d: %w", n.NSID, err)
		}
		m[uint16(g)] = s
	}
	return m, nil
}
