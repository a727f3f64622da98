package roce

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/port"
	"softiser/rdma/internal/roce/rc"
	"softiser/rdma/internal/roce/udp"
	"softiser/rdma/internal/verbs"
)

// host is what there is once in a process, whatever devices there are: UDP port 4791 of
// an address belongs to one socket, and queue pairs behind it are told apart by numbers.
var host struct {
	numbers cm.QPNs

	mu    sync.Mutex // guards what follows, and is held while a port opens or closes
	ports map[netip.Addr]*hostPort
}

// hostPort is the port of one address, open while any device uses it.
type hostPort struct {
	*port.Port
	mtu     packet.MTU // the largest that fits the interface
	maxRead int        // packets that a READ may ask for at once
	intake  *rc.Path   // answers to READs on their way here, of all connections
	paths   paths      // to the peers
	users   int
	count   count
	start   time.Time // of the clock of its connections
}

// openPort opens the port of an address, or shares it.
func openPort(addr netip.Addr) (*hostPort, error) {
	host.mu.Lock()
	defer host.mu.Unlock()
	if p := host.ports[addr]; p != nil {
		p.users++
		return p, nil
	}
	pp, err := port.Open(port.Config{UDP: udp.Config{Addr: addr}})
	if err != nil {
		return nil, err
	}
	p := &hostPort{Port: pp, users: 1, mtu: pathMTU(linkMTU(addr)), start: time.Now()}
	// The kernel counts a packet with what surrounds it: about twice its payload. Half of
	// the buffer is for requests.
	fits := max(minRead, pp.RecvBuffer()/(2*p.mtu.Bytes()+packetCost)/2)
	p.maxRead = min(fits, max(minRead, maxPiece/p.mtu.Bytes()))
	p.intake = rc.NewIntake(p.mtu.Bytes(), fits*p.mtu.Bytes())
	if host.ports == nil {
		host.ports = make(map[netip.Addr]*hostPort)
	}
	host.ports[addr] = p
	return p, nil
}

// minRead and maxPiece, in bytes, bound what one READ request asks for. Connections take
// turns with requests.
const (
	minRead    = 8
	maxPiece   = 256 << 10
	packetCost = 640 // bytes of a receive buffer that a packet takes beside twice its payload
)

// closePort undoes openPort.
func closePort(addr netip.Addr) {
	host.mu.Lock()
	defer host.mu.Unlock()
	p := host.ports[addr]
	if p.users--; p.users == 0 {
		delete(host.ports, addr)
		p.Close()
	}
}

// overhead is what a packet of any kind has around its payload at most: IPv6, UDP, BTH
// and the longest headers behind it, ICRC. rdma_cm reckons with the same.
const overhead = 96

// pathMTU is the largest that fits an interface. The smallest one has to do where none does.
func pathMTU(link int) packet.MTU {
	m := packet.MTU4096
	for m > packet.MTU256 && m.Bytes()+overhead > link {
		m--
	}
	return m
}

// linkMTU is the MTU of the interface that has an address, bytes; Ethernet's when it is not
// found. Loopback has all of 127/8.
func linkMTU(addr netip.Addr) int {
	ifs, err := net.Interfaces()
	if err != nil {
		return ethernetMTU
	}
	for i := range ifs {
		if addrs, err := ifs[i].Addrs(); err == nil && has(&ifs[i], addrs, addr) {
			return ifs[i].MTU
		}
	}
	return ethernetMTU
}

// has reports whether an interface with addrs has a. A VLAN and the interface below it often have one
// link-local address, and MTUs of their own: the zone tells them apart.
func has(i *net.Interface, addrs []net.Addr, a netip.Addr) bool {
	if z := a.Zone(); z != "" && z != i.Name {
		return false
	}
	for _, n := range addrs {
		p, err := netip.ParsePrefix(n.String())
		if err != nil {
			continue
		}
		own := p.Addr().Unmap() == a.WithZone("")
		if own || i.Flags&net.FlagLoopback != 0 && p.Contains(a) {
			return true
		}
	}
	return false
}

const ethernetMTU = 1500

// PathMTU is the largest payload of a packet that the interface of a local address
// carries, bytes.
func PathMTU(local netip.Addr) int {
	if named, err := OnLink(local); err == nil {
		local = named
	}
	return pathMTU(linkMTU(local)).Bytes()
}

// OnLink is an address in the form in which ports and peers are kept: with an interface, by its name, where it is
// local to a link.
func OnLink(ip netip.Addr) (netip.Addr, error) {
	ip = ip.Unmap()
	if !ip.Is6() || !ip.IsLinkLocalUnicast() {
		return ip.WithZone(""), nil
	}
	if ip.Zone() == "" {
		return ip, verbs.Invalid("address %v: an address that begins with fe80: needs an interface of this machine (ip link), as in %v%%eth0", ip, ip)
	}
	i, err := net.InterfaceByName(ip.Zone())
	if n, nerr := strconv.Atoi(ip.Zone()); err != nil && nerr == nil {
		i, err = net.InterfaceByIndex(n)
	}
	if err != nil {
		return ip, fmt.Errorf("rdma: address %v: %w", ip, err)
	}
	return ip.WithZone(i.Name), nil
}

// LocalAddr is the address from which the kernel would send to another one.
func LocalAddr(to netip.Addr) (netip.Addr, error) {
	c, err := net.Dial("udp", netip.AddrPortFrom(to, udp.PortNumber).String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("rdma: the way to %v: %w", to, err)
	}
	defer c.Close()
	a := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
	return a.Unmap(), nil
}
