package config

import "time"

// Warnings returns what is allowed, and yet not what somebody who writes it is likely to
// want, each with what to do about it.
func (c *Config) Warnings() []string {
	all := append(c.exposed(), c.expiring(time.Now())...)
	if c.ISCSI.ErrorRecoveryLevel > 0 && c.Transport.StreamISER {
		all = append(all, "iscsi.error_recovery_level has no effect while transport.stream_login is true: "+
			"connections that may turn into RDMA have level 0; set stream_login: false to recover on TCP")
	}
	return all
}
