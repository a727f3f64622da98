package config

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
)

// MaxNSID is the largest namespace identifier.
const MaxNSID = 1024

// maxCntlID is the largest controller identifier.
const maxCntlID = 65519

// maxNQN is the length of the longest NVMe name, bytes.
const maxNQN = 223

// checkSubsystems checks names, serial numbers, namespaces, hosts and keys, and that the
// volumes they refer to exist.
func (c *Config) checkSubsystems(r *report) {
	nqns := map[string]string{}
	for i := range c.Subsystems {
		s, key := &c.Subsystems[i], fmt.Sprintf("subsystems[%d]", i)
		if !validNQN(s.NQN) {
			r.add(key+".nqn", "%q is no NVMe name; expected one such as nqn.2026-11.softiser:disk0, of at most %d bytes without spaces", s.NQN, maxNQN)
		} else if first, ok := nqns[s.NQN]; ok {
			r.add(key+".nqn", "%s is already the name of %s", s.NQN, first)
		}
		nqns[s.NQN] = key
		if len(s.Serial) > 20 {
			r.add(key+".serial", "%q has %d characters, 20 are possible", s.Serial, len(s.Serial))
		} else if strings.ContainsFunc(s.Serial, func(c rune) bool { return c < ' ' || c > '~' }) {
			r.add(key+".serial", "%q: a serial number is printable ASCII", s.Serial)
		}
		checkRange(r, key+".min_cntlid", s.MinCntlID, 0, maxCntlID)
		checkRange(r, key+".max_cntlid", s.MaxCntlID, 0, maxCntlID)
		if s.MaxCntlID != 0 && s.MinCntlID > s.MaxCntlID {
			r.add(key+".max_cntlid", "%d is less than min_cntlid, %d", s.MaxCntlID, s.MinCntlID)
		}
		c.checkNamespaces(r, s, key)
		c.checkRemote(r, s, key)
		if s.SecureChannel != "" {
			oneOf(r, key+".secure_channel", s.SecureChannel, SecureChannels...)
		}
		if s.SecureChannel == "required" && len(s.Hosts) > 0 {
			r.add(key+".hosts", "hosts without a TLS key cannot connect, because secure_channel is required; list hosts under keys")
		}
		for j, h := range s.Hosts {
			if _, err := path.Match(h, ""); err != nil || h == "" {
				r.add(fmt.Sprintf("%s.hosts[%d]", key, j), "%q is no NVMe name, nor one with * and ?", h)
			}
		}
		for j, n := range s.Networks {
			if _, err := ParseNetwork(n); err != nil {
				r.add(fmt.Sprintf("%s.networks[%d]", key, j), "%v", err)
			}
		}
	}
}

func (c *Config) checkNamespaces(r *report, s *Subsystem, key string) {
	ids := map[int]string{}
	for j, n := range s.Namespaces {
		nkey := fmt.Sprintf("%s.namespaces[%d]", key, j)
		checkRange(r, nkey+".nsid", n.NSID, 1, MaxNSID)
		if first, ok := ids[n.NSID]; ok {
			r.add(nkey+".nsid", "namespace %d of %s is already %s", n.NSID, s.NQN, first)
		}
		ids[n.NSID] = nkey
		c.checkNamespaceAccess(r, nkey, &n)
		v := c.volume(n.Volume)
		switch {
		case n.Volume == "":
			r.add(nkey+".volume", "missing; name one of the volumes")
		case v == nil:
			r.add(nkey+".volume", "there is no volume %q%s", n.Volume, didYouMean(n.Volume, names(c.Volumes)))
		case v.Removable:
			r.add(nkey+".volume", "%s is removable, which a namespace cannot be", n.Volume)
		}
	}
}

func (c *Config) volume(name string) *Volume {
	for i := range c.Volumes {
		if c.Volumes[i].Name == name {
			return &c.Volumes[i]
		}
	}
	return nil
}

// ParseNetwork reads an address or a prefix.
func ParseNetwork(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("network %q: want an address or a prefix such as 10.0.0.0/8", s)
	}
	return netip.PrefixFrom(ip, ip.BitLen()), nil
}
