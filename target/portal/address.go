package portal

import (
	"net"
	"net/netip"
	"strconv"
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
