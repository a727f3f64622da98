package main

import (
	"fmt"
	"net"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target/nvmf"
)

// serveSubsystems opens the volumes of the NVMe subsystems, if LUNs have not done so
// already, and serves them. One that cannot be opened is logged and left out. It returns
// how many namespaces the configuration has, and how many are served.
func (a *app) serveSubsystems() (configured, served int, err error) {
	for i := range a.cfg.Subsystems {
		s := &a.cfg.Subsystems[i]
		sc := subsystemConfig(s)
		for _, n := range s.Namespaces {
			configured++
			nc, err := a.namespace(n)
			if err != nil {
				a.log.Error("a namespace is not served; the others are", zap.String("subsystem", s.NQN), zap.Int("nsid", n.NSID),
					zap.String("volume", n.Volume), zap.Error(err))
				continue
			}
			served++
			sc.Namespaces = append(sc.Namespaces, nc)
		}
		if err := a.srv.AddSubsystem(sc); err != nil {
			return configured, served, err
		}
	}
	return configured, served, nil
}

func subsystemConfig(s *config.Subsystem) nvmf.SubsystemConfig {
	c := nvmf.SubsystemConfig{NQN: s.NQN, Serial: s.Serial}
	var rules []nvmf.HostRule
	for i := range s.Keys {
		k := &s.Keys[i]
		rules = append(rules, nvmf.HostRule{NQN: k.Host, Secret: k.Secret(), CtrlSecret: k.CtrlSecret()})
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

// namespace opens the volume of a namespace.
func (a *app) namespace(n config.Namespace) (nvmf.NamespaceConfig, error) {
	a.changing.Lock()
	defer a.changing.Unlock()
	v, _ := findVolume(a.cfg, n.Volume)
	o, lc, err := a.opened(v, config.LUN{ReadOnly: n.ReadOnly})
	if err != nil {
		return nvmf.NamespaceConfig{}, err
	}
	a.mu.Lock()
	o.namespaces++
	a.mu.Unlock()
	c := nvmf.NamespaceConfig{
		NSID: uint32(n.NSID), Volume: o.dev, ReadOnly: lc.ReadOnly, Placement: lc.Placement, Workers: lc.Workers, QoS: lc.QoS,
	}
	c.Identity.Serial, c.Identity.NAA = lc.Serial, lc.NAA
	return c, nil
}

// connectCommand is what a Linux host types to attach a subsystem.
func connectCommand(addr, nqn string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("nvme connect -t tcp -a %s -s %s -n %s", host, port, nqn)
}
