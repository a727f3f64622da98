package config

import (
	"cmp"
	"time"
)

// Warnings returns what is allowed, and yet not what somebody who writes it is likely to
// want, each with what to do about it.
func (c *Config) Warnings() []string {
	all := append(c.exposed(), c.expiring(time.Now())...)
	if w := c.idle(); w != "" {
		all = append(all, w)
	}
	if c.ISCSI.ErrorRecoveryLevel > 0 && c.Transport.StreamISER {
		all = append(all, "iscsi.error_recovery_level has no effect while transport.stream_login is true: "+
			"connections that may turn into RDMA have level 0; set stream_login: false to recover on TCP")
	}
	return all
}

// idle is the warning that nothing is served, "" if something is, or hosts are sent elsewhere.
func (c *Config) idle() string {
	for i := range c.Targets {
		if len(c.Targets[i].LUNs) > 0 {
			return ""
		}
	}
	for i := range c.Subsystems {
		if len(c.Subsystems[i].Namespaces) > 0 {
			return ""
		}
	}
	if len(c.Discovery.Referrals) > 0 {
		return ""
	}
	add := "volumes, and a target with luns (iSCSI, iSER) or a subsystem with namespaces (NVMe) that name them"
	switch {
	case len(c.Targets) > 0:
		add = "luns to " + c.Targets[0].IQN + ", each with a volume"
	case len(c.Subsystems) > 0:
		add = "namespaces to " + c.Subsystems[0].NQN + ", each with a volume"
	case len(c.Volumes) > 0:
		add = "a target with luns (iSCSI, iSER) or a subsystem with namespaces (NVMe) that name volume " + c.Volumes[0].Name
	}
	return "no volume is served: " + cmp.Or(c.File, "the configuration") + " gives initiators nothing to attach; add " + add
}
