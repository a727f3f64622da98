package peerorigin

import (
	"net/netip"
	"testing"
)

func TestOf(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "2001:db8::1:2:3:4": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "::1": "::/64",
	} {
		if got := Of(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s comes from %v, want %s", a, got, want)
		}
	}
	if got := Of(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("no address comes from %v", got)
	}
}
