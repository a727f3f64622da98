package roce

import (
	"net"
	"net/netip"
	"testing"
)

// Which interface an address is of: its MTU is that of packets from there.
func TestInterfaceOfAddress(t *testing.T) {
	addrs := func(all ...string) (out []net.Addr) {
		for _, s := range all {
			ip, n, err := net.ParseCIDR(s)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
		}
		return out
	}
	lo := &net.Interface{Name: "lo", Flags: net.FlagLoopback}
	eth, vlan := &net.Interface{Name: "eth0"}, &net.Interface{Name: "eth0.10"}
	for _, tt := range []struct {
		i     *net.Interface
		addrs []net.Addr
		a     string
		want  bool
	}{
		{lo, addrs("127.0.0.1/8", "::1/128"), "127.9.9.9", true},
		{lo, addrs("127.0.0.1/8", "::1/128"), "::2", false},
		{eth, addrs("10.0.0.1/8"), "10.0.0.1", true},
		{eth, addrs("10.0.0.1/8"), "10.0.0.2", false},
		{eth, addrs("fe80::1/64"), "fe80::1", true},
		{eth, addrs("fe80::1/64"), "fe80::1%eth0", true},
		{eth, addrs("fe80::1/64"), "fe80::1%eth0.10", false},
		{vlan, addrs("fe80::1/64"), "fe80::1%eth0.10", true},
	} {
		if got := has(tt.i, tt.addrs, netip.MustParseAddr(tt.a)); got != tt.want {
			t.Errorf("%s of %s: %v", tt.a, tt.i.Name, got)
		}
	}
}

// TestSourcePortsDiffer: each requester has a port of its own, as long as there are any. A service that gives
// each requester a queue pair takes a request from the same port for a repeated one.
func TestSourcePortsDiffer(t *testing.T) {
	seen := map[uint16]bool{}
	for range 1<<16 - firstEphemeral {
		p := sourcePort()
		if p < firstEphemeral || seen[p] {
			t.Fatalf("port %d, the %dth", p, len(seen)+1)
		}
		seen[p] = true
	}
}
