package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"softiser/rdma/internal/roce"
)

// minShare is what the first addresses of a host get of the time at least, before the last one.
const minShare = 2 * time.Second

// oneOf tries the addresses of a host in turn, until try has no error, or says that the next one
// is no use. Each gets its share of the time that is left, as with net.Dialer, and the error is the
// first one's.
func oneOf(ctx context.Context, all []netip.AddrPort, timeout time.Duration, try func(netip.AddrPort, time.Duration) (goOn bool, err error)) error {
	var first error
	for end := time.Now().Add(timeout); len(all) > 0; all = all[1:] {
		share := time.Until(end)
		if n := len(all); n > 1 {
			if d, ok := ctx.Deadline(); ok {
				share = min(share, time.Until(d))
			}
			share = min(share, max(share/time.Duration(n), minShare))
		}
		if share <= 0 {
			break
		}
		goOn, err := try(all[0], share.Round(time.Millisecond))
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
		if !goOn || ctx.Err() != nil {
			break
		}
	}
	return first
}

// elsewhere reports whether another address of the host may do better: not when the ULP behind this
// one has refused, or what was asked for cannot be.
func elsewhere(err error) bool {
	return !errors.Is(err, ErrRejected) && !errors.Is(err, ErrState) && !errors.Is(err, ErrClosed)
}

// resolve is the address that somebody listens at: of a host with several one of IPv4 if there is one, as with net.Listen.
func resolve(ctx context.Context, network, addr string) (netip.AddrPort, error) {
	all, err := resolveAll(ctx, network, addr, netip.IPv4Unspecified())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return all[0], nil
}

// resolveAll finds the addresses of a host, and the number of a port. Of a host with several they are
// those of the family of local, which may be the zero address.
func resolveAll(ctx context.Context, network, addr string, local netip.Addr) ([]netip.AddrPort, error) {
	if network != ProviderRoCE.Network() {
		return nil, invalid("network %q: a device of provider %v has %q", network, ProviderRoCE, ProviderRoCE.Network())
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, invalid("port %q of %s", service, addr)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		ip, err := roce.OnLink(ip)
		return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(port))}, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return choose(ips, local, uint16(port)), nil
}

// choose are the addresses of the family of local. Where there are none, connecting tells.
func choose(ips []netip.Addr, local netip.Addr, port uint16) []netip.AddrPort {
	var own, all []netip.AddrPort
	for _, ip := range ips {
		ap := netip.AddrPortFrom(ip.Unmap(), port)
		all = append(all, ap)
		if local.IsValid() && ap.Addr().Is4() == local.Unmap().Is4() {
			own = append(own, ap)
		}
	}
	if own != nil {
		return own
	}
	return all
}

// LocalAddrTo is the address from which this host would send to another one: what a queue
// pair of the type UD may be bound to.
func LocalAddrTo(ctx context.Context, host string) (netip.Addr, error) {
	all, err := resolveAll(ctx, ProviderRoCE.Network(), net.JoinHostPort(host, "0"), netip.Addr{})
	if err != nil {
		return netip.Addr{}, err
	}
	return localAddrToOne(all)
}

// localAddrToOne is the address from which this host would send to the first of others that a way leads to.
func localAddrToOne(all []netip.AddrPort) (local netip.Addr, err error) {
	var first error
	for _, to := range all {
		if local, err = roce.LocalAddr(to.Addr()); err == nil {
			return local, nil
		}
		first = cmp.Or(first, err)
	}
	return netip.Addr{}, first
}
