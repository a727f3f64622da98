package nvmf

import (
	"net/netip"
	"testing"
)

// A rule lets in who has a name of its, from a network of its; how the socket writes an address does not count.
func TestHostRules(t *testing.T) {
	nets := func(s ...string) (l []netip.Prefix) {
		for _, p := range s {
			l = append(l, netip.MustParsePrefix(p))
		}
		return l
	}
	for _, c := range []struct {
		rule HostRule
		host string
		from string
		want bool
	}{
		{HostRule{}, "nqn.x", "192.0.2.1", true},
		{HostRule{NQN: "nqn.x"}, "nqn.x", "192.0.2.1", true},
		{HostRule{NQN: "nqn.x"}, "nqn.X", "192.0.2.1", false},
		{HostRule{NQN: "nqn.x"}, "nqn.xy", "192.0.2.1", false},
		{HostRule{NQN: "nqn.?"}, "nqn.x", "192.0.2.1", true},
		{HostRule{NQN: "nqn.*"}, "nqn.x", "192.0.2.1", true},
		{HostRule{NQN: "nqn.[x"}, "nqn.[x", "192.0.2.1", true}, // no pattern, and its own name
		{HostRule{NQN: "nqn.[x"}, "nqn.x", "192.0.2.1", false},
		{HostRule{Networks: nets("10.0.0.0/8", "192.0.2.0/24")}, "nqn.x", "192.0.2.1", true},
		{HostRule{Networks: nets("10.0.0.0/8")}, "nqn.x", "192.0.2.1", false},
		{HostRule{NQN: "nqn.y", Networks: nets("192.0.2.0/24")}, "nqn.x", "192.0.2.1", false},
		{HostRule{Networks: nets("192.0.2.0/24")}, "nqn.x", "::ffff:192.0.2.1", true}, // IPv4 on a v6 socket
		{HostRule{Networks: nets("fe80::/10")}, "nqn.x", "fe80::1", true},
		{HostRule{Networks: nets("fe80::/10")}, "nqn.x", "fe80::1%eth0", true},
		{HostRule{Networks: nets("fd00::/8")}, "nqn.x", "fe80::1%eth0", false},
	} {
		if got := c.rule.admits(c.host, netip.MustParseAddr(c.from)); got != c.want {
			t.Errorf("%+v, %s from %s: %v", c.rule, c.host, c.from, got)
		}
	}
}
