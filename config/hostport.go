package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// checkHostPort checks that addr is host:port, and no address that is only taken for the name of a host.
func checkHostPort(r *report, key, addr string) {
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	switch {
	case err != nil:
		r.add(key, "%q is no address; expected host:port, for example 127.0.0.1:3260 or [::]:3260", addr)
	case strings.HasPrefix(addr, "[") && !strings.Contains(host, ":"):
		r.add(key, "%q is no address: brackets are for IPv6 addresses; write %s:%s", addr, host, port) // RFC 3986 §3.2.2
	case host == "*":
		r.add(key, "%q is no address; all interfaces are \"[::]:%s\", those of IPv4 alone 0.0.0.0:%s", addr, port, port)
	case dottedDigits(host) && !isIP(host):
		r.add(key, "%q is no address: an IPv4 address is four numbers from 0 to 255, without leading zeros, for example 127.0.0.1:%s", addr, port)
	}
}

// ipOf is the address that a host is written as, whichever its interface ([::1%lo]); ok is false for a name.
func ipOf(host string) (ip netip.Addr, ok bool) {
	ip, err := netip.ParseAddr(host)
	return ip.WithZone("").Unmap(), err == nil
}

func isIP(host string) bool {
	_, ok := ipOf(host)
	return ok
}

// dottedDigits reports whether a host is meant as an IPv4 address: no host's name is all
// digits (RFC 3696 §2).
func dottedDigits(host string) bool {
	return host != "" && strings.Trim(host, "0123456789.") == ""
}
