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
		got, err := resolve(t.Context(), ProviderRoCE.Network(), in)
		if err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v; want %s", in, got, err, want)
		}
	}
	for in, why := range map[string]string{"[fe80::1]:1": "interface", "[fe80::1%nowhere]:1": "fe80::1%nowhere"} {
		if got, err := resolve(t.Context(), ProviderRoCE.Network(), in); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v; want something about %s", in, got, err, why)
		}
	}
}
