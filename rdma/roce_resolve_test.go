package rdma

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// An address that is local to a link is reached by its interface, by whatever name that goes, and by nothing else.
func TestResolveOnLink(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	for in, want := range map[string]string{
		"[fe80::1%lo]:3260": "[fe80::1%lo]:3260", "[fe80::1%" + strconv.Itoa(lo.Index) + "]:3260": "[fe80::1%lo]:3260",
		"[fd00::1%lo]:1": "[fd00::1]:1", "10.0.0.1:1": "10.0.0.1:1", "[::ffff:10.0.0.1]:1": "10.0.0.1:1",
	} {
		got, err := resolve(t.Context(), ProviderRoCE.Network(), in, netip.Addr{})
		if err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v; want %s", in, got, err, want)
		}
	}
	for in, why := range map[string]string{"[fe80::1]:1": "interface", "[fe80::1%nowhere]:1": "fe80::1%nowhere"} {
		if got, err := resolve(t.Context(), ProviderRoCE.Network(), in, netip.Addr{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v; want something about %s", in, got, err, why)
		}
	}
}

// A host that has addresses of both families is reached at one of the family of the local address.
func TestChoose(t *testing.T) {
	v6, v4, mapped := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1")
	for _, c := range []struct {
		ips         []netip.Addr
		local, want netip.Addr
	}{
		{[]netip.Addr{v6, v4}, netip.MustParseAddr("10.0.0.2"), v4},
		{[]netip.Addr{v6, mapped}, netip.MustParseAddr("10.0.0.2"), v4},
		{[]netip.Addr{v6, v4}, netip.MustParseAddr("::ffff:10.0.0.2"), v4},
		{[]netip.Addr{v4, v6}, netip.MustParseAddr("fd00::2"), v6},
		{[]netip.Addr{mapped, v6}, netip.Addr{}, v4},
		{[]netip.Addr{v6}, netip.MustParseAddr("10.0.0.2"), v6},
	} {
		if got := choose(c.ips, c.local); got != c.want {
			t.Errorf("%v from %v: %v, want %v", c.ips, c.local, got, c.want)
		}
	}
}
