package doctor

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Congestion is the check of the congestion control; wanted are those that a configuration
// names.
func Congestion(wanted ...string) Check {
	return Check{"congestion control", func(h *Host) Finding {
		def, err := h.read("/proc/sys/net/ipv4/tcp_congestion_control")
		if err != nil {
			return unknown(err)
		}
		known, err := h.read("/proc/sys/net/ipv4/tcp_available_congestion_control")
		if err != nil {
			return unknown(err)
		}
		for _, w := range wanted {
			if w != "" && w != "auto" && w != "host" && !slices.Contains(strings.Fields(known), w) {
				return failed("%s is not loaded; there are %s", w, known).
					costs("sockets that are to have it cannot be opened").mend("modprobe tcp_%s && echo tcp_%[1]s > /etc/modules-load.d/tcp_%[1]s.conf", w)
			}
		}
		return ok("%s (of %s)", def, known)
	}}
}

// enoughBacklog is how many connections may come at once before they are taken.
const enoughBacklog = 1024

// Backlog is the check of the queue of connections that have not been accepted.
var Backlog = Check{"backlog", func(h *Host) Finding {
	n, err := h.number("/proc/sys/net/core/somaxconn")
	switch {
	case err != nil:
		return unknown(err)
	case n < enoughBacklog:
		return warning("net.core.somaxconn is %d", n).
			costs("of more initiators that come back at once some wait 1 s, then 3 s, for their next try").
			mend("%s", sysctl("net.core.somaxconn", "4096"))
	}
	return ok("net.core.somaxconn is %d", n)
}}

// enoughWindow fills 10 Gb/s over 3 ms.
const enoughWindow = 4 << 20

// Windows is the check of what a connection of TCP may have under way.
var Windows = Check{"TCP buffers", func(h *Host) Finding {
	found := ""
	for _, s := range []struct{ key, value string }{{"tcp_rmem", "4096 131072 16777216"}, {"tcp_wmem", "4096 65536 16777216"}} {
		v, err := h.read("/proc/sys/net/ipv4/" + s.key)
		if err != nil {
			return unknown(err)
		}
		f := strings.Fields(v)
		if len(f) != 3 {
			return note("net.ipv4.%s is %q", s.key, v)
		}
		n, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return unknown(err)
		}
		if n < enoughWindow {
			return warning("net.ipv4.%s ends at %s", s.key, size(n)).
				costs("a connection over a path of 10 ms has at most %d MB/s", n/2*100/1000/1000).
				mend("%s", sysctl("net.ipv4."+s.key, s.value))
		}
		found += fmt.Sprintf(", net.ipv4.%s ends at %s", s.key, size(n))
	}
	return ok("%s", found[2:])
}}

// datagramBuffer is what a port for RoCE asks for a socket.
const datagramBuffer = 8 << 20

// DatagramBuffers is the check of the receive buffers of RoCE.
var DatagramBuffers = Check{"UDP buffers", func(h *Host) Finding {
	n, err := h.number("/proc/sys/net/core/rmem_max")
	switch {
	case err != nil:
		return unknown(err)
	case n < datagramBuffer:
		return note("net.core.rmem_max is %s", size(n)).
			costs("RoCE loses packets of bursts that do not fit, and sends them again; without CAP_NET_ADMIN it can have no more").
			mend("%s", sysctl("net.core.rmem_max", strconv.Itoa(datagramBuffer)))
	}
	return ok("net.core.rmem_max is %s", size(n))
}}

// Port is the check that an address can be listened on; ours: a running process of this
// program has it.
func Port(network string, a netip.AddrPort, ours bool) Check {
	where := strings.ToUpper(network) + " " + a.String()
	return Check{where, func(h *Host) Finding {
		taken, err := h.taken(network, a)
		switch {
		case err != nil:
			return unknown(err)
		case !taken && ours:
			return failed("the running target should have it, and does not").costs("nobody can come in there").mend("iser-target status")
		case !taken:
			return ok("free")
		case ours:
			return ok("the running target has it")
		}
		flags := "-ltnp"
		if network == "udp" {
			flags = "-lunp"
		}
		return failed("another process has it").costs("serve does not start").mend("ss %s 'sport = :%d'   # who has it", flags, a.Port())
	}}
}

// Beside is the check of a port that is registered for something that is served elsewhere:
// whoever looks for it there finds somebody else.
func Beside(port uint16, what string) Check {
	return Check{fmt.Sprintf("TCP port %d", port), func(h *Host) Finding {
		taken, err := h.taken("tcp", netip.AddrPortFrom(netip.IPv4Unspecified(), port))
		switch {
		case err != nil:
			return unknown(err)
		case taken:
			return note("somebody else listens there").
				costs("hosts that look for %s at its registered port do not find ours", what).mend("ss -ltnp 'sport = :%d'   # who has it", port)
		}
		return ok("free; %s of ours is on the portals", what)
	}}
}

// listening is the state of a socket of TCP in /proc/net/tcp; sockets of UDP that are not
// connected have the other.
const (
	listening   = "0A"
	unconnected = "07"
)

// taken reports whether a socket is in the way of listening on an address.
func (h *Host) taken(network string, a netip.AddrPort) (bool, error) {
	state := listening
	if network == "udp" {
		state = unconnected
	}
	for _, family := range []string{"", "6"} {
		s, err := h.read("/proc/net/" + network + family)
		if missing(err) && family != "" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(s) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != state {
				continue
			}
			b, err := socketAddr(f[1])
			if err != nil {
				continue // the heading
			}
			if b.Port() == a.Port() && (b.Addr() == a.Addr() || b.Addr().IsUnspecified() || a.Addr().IsUnspecified()) {
				return true, nil
			}
		}
	}
	return false, nil
}

// socketAddr reads an address of /proc/net/tcp: words of 32 bits in the order of the
// machine, which is little-endian, a colon, the port.
func socketAddr(s string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(words)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for w := range slices.Chunk(b, 4) {
		slices.Reverse(w)
	}
	a, good := netip.AddrFromSlice(b)
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !good {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", s)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}
