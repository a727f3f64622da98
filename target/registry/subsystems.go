package registry

import (
	"context"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target/nvmf"
)

// serveSubsystems opens the volumes of the NVMe subsystems, if LUNs have not done so
// already, and serves them. One that cannot be opened is logged and left out. It returns
// how many namespaces the configuration has, and how many are served.
func (r *Registry) serveSubsystems() (configured, served int, err error) {
	for i := range r.cfg.Subsystems {
		s := &r.cfg.Subsystems[i]
		sc := subsystemConfig(s)
		for _, n := range s.Namespaces {
			configured++
			nc, err := r.namespace(s.NQN, n)
			if err != nil {
				r.log.Error("a namespace is not served; the others are", zap.String("subsystem", s.NQN), zap.Int("nsid", n.NSID),
					zap.String("volume", n.Volume), zap.Error(err))
				continue
			}
			served++
			sc.Namespaces = append(sc.Namespaces, nc)
		}
		if err := r.srv.AddSubsystem(sc); err != nil {
			return configured, served, err
		}
	}
	return configured, served, nil
}

var secureChannels = map[string]nvmf.SecureChannel{
	"": nvmf.SecureAllowed, "allowed": nvmf.SecureAllowed, "required": nvmf.SecureRequired, "none": nvmf.SecureNone,
}

func subsystemConfig(s *config.Subsystem) nvmf.SubsystemConfig {
	c := nvmf.SubsystemConfig{NQN: s.NQN, Serial: s.Serial, MinCntlID: uint16(s.MinCntlID), MaxCntlID: uint16(s.MaxCntlID), SecureChannel: secureChannels[s.SecureChannel]}
	var rules []nvmf.HostRule
	for i := range s.Keys {
		k := &s.Keys[i]
		rules = append(rules, nvmf.HostRule{NQN: k.Host, Secret: k.Secret(), CtrlSecret: k.CtrlSecret(), TLSKey: k.TLSKey()})
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

// namespaceConfig describes a namespace but for its device.
func namespaceConfig(c *config.Config, v config.Volume, n config.Namespace) (nvmf.NamespaceConfig, error) {
	lc, err := lunConfig(c, v, config.LUN{ReadOnly: n.ReadOnly})
	nc := nvmf.NamespaceConfig{NSID: uint32(n.NSID), ReadOnly: lc.ReadOnly, Placement: lc.Placement, Workers: lc.Workers, QoS: lc.QoS}
	nc.Identity.Serial, nc.Identity.NAA = lc.Serial, lc.NAA
	return nc, err
}

// namespace opens the volume of a namespace.
func (r *Registry) namespace(nqn string, n config.Namespace) (nvmf.NamespaceConfig, error) {
	v, _ := findVolume(r.cfg, n.Volume)
	nc, err := namespaceConfig(r.cfg, v, n)
	if err != nil {
		return nc, err
	}
	err = r.volumes.serve(context.Background(), v, place{nqn, uint32(n.NSID)}, func(dev blockdev.Device) error {
		nc.Volume = dev
		return nil
	})
	return nc, err
}
