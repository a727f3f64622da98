package multipath

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"softiser/initiator"
	"softiser/initiator/blockio"
)

// LUN is a path over iSER or iSCSI.
func LUN(cfg initiator.Config) Dialer {
	d := dialer(cfg.URL(), cfg.OnEvent, func(ctx context.Context, h Hooks, told func(initiator.Event)) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache, c.OnEvent = true, h.Cache, told
		if h.Carried != nil {
			c.Carried = h.Carried.Sessions
		}
		return opened(initiator.Open(ctx, c))
	})
	d.portal = Portal{Address: cfg.Address, ISID: cfg.ISID}
	anywhere := cfg
	anywhere.Address = ""
	d.volume = anywhere.URL()
	return d
}

// Found is LUN for a path of which another process has said where Portals had found it.
func Found(cfg initiator.Config, k *Carried) Dialer {
	cfg.Address, cfg.ISID = k.Portal.Address, k.Portal.ISID
	return LUN(cfg)
}

// Portals returns a path through every portal that the target of cfg tells of (SendTargets), that
// of cfg first, except those that paths of beside lead to already. The sessions through cfg's own portal have
// its ISID; those through the next portal have the ISID that is n times cfg.Sessions behind it, those
// through the one after that n+1 times, and so on.
func Portals(ctx context.Context, cfg initiator.Config, beside []Dialer, n int) ([]Dialer, error) {
	ts, err := initiator.Discover(ctx, cfg)
	if err != nil {
		return nil, err
	}
	own := LUN(cfg)
	paths := []Dialer{own}
	for _, t := range ts {
		if t.Name != cfg.TargetName {
			continue
		}
		reached := portalsOf(ctx, own.volume, beside, t.Portals)
		asked := askedPortal(ctx, cfg.Address, t.Portals)
		if asked >= 0 && reached[asked] {
			paths = nil
		}
		reached[asked] = true
		for i, p := range t.Portals {
			if reached[i] || p.Address == cfg.Address {
				continue
			}
			c := cfg
			c.Address = p.Address
			if c.ISID != [6]byte{} {
				c.ISID = initiator.ISIDAfter(c.ISID, n*max(c.Sessions, 1)) // a session of its own
			}
			n++
			paths = append(paths, LUN(c))
		}
	}
	return paths, nil
}

// portalsOf tells which of the portals the dialers of a volume lead to, by index.
func portalsOf(ctx context.Context, volume string, dialers []Dialer, portals []initiator.Portal) map[int]bool {
	reached := map[int]bool{}
	for _, d := range dialers {
		if d.volume == volume {
			reached[askedPortal(ctx, d.portal.Address, portals)] = true
		}
	}
	return reached
}

// askedPortal is which of the portals is at an address, whose host may be a name; -1: none.
func askedPortal(ctx context.Context, address string, portals []initiator.Portal) int {
	if i := slices.IndexFunc(portals, func(p initiator.Portal) bool { return p.Address == address }); i >= 0 {
		return i
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return -1
	}
	var resolver net.Resolver
	ips, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return -1
	}
	for _, ip := range ips { // in the order in which they are tried
		i := slices.IndexFunc(portals, func(p initiator.Portal) bool {
			at, err := netip.ParseAddrPort(p.Address)
			return err == nil && at.Addr().Unmap() == ip.Unmap() && strconv.Itoa(int(at.Port())) == port
		})
		if i >= 0 {
			return i
		}
	}
	return -1
}
