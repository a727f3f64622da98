package portal

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// AddressFor is the address under which an initiator reaches p, or "" if it
// cannot: only what answers is advertised. local is the address that the
// initiator has used for this connection.
func (p *Portal) AddressFor(local netip.AddrPort, remote netip.Addr) string {
	if p.cfg.Advertise != "" {
		return p.cfg.Advertise
	}
	here, ok := p.Bound()
	if !ok {
		return ""
	}
	a := here.Addr().Unmap()
	if a.IsUnspecified() {
		// All addresses answer: say the one that is known to be reachable, which
		// must be of a family that the portal listens on.
		a = local.Addr().Unmap()
		if here.Addr().Is4() && !a.Is4() {
			return ""
		}
	}
	from := remote.Unmap()
	if a.IsLoopback() && !from.IsLoopback() || a.IsLinkLocalUnicast() && !from.IsLinkLocalUnicast() {
		return ""
	}
	return net.JoinHostPort(a.WithZone("").String(), strconv.Itoa(int(here.Port())))
}

// Here reports whether a is an address of this machine: one that a cluster's manager has
// moved to another node is no longer, and nothing that is sent from it arrives. Where that
// cannot be found out it is taken for one.
func Here(a netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Unmap(), 0)))
	if err != nil {
		return !errors.Is(err, syscall.EADDRNOTAVAIL)
	}
	c.Close()
	return true
}
