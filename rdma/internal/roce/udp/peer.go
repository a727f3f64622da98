package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is an address to send to, in the form that the kernel takes. It does not change.
type Peer struct {
	addr netip.Addr
	raw  unix.RawSockaddrInet6 // or the smaller RawSockaddrInet4
	n    uint32
}

// Peer makes a Peer of an address of the port's family. A link-local address without a
// zone gets the port's.
func (p *Port) Peer(a netip.Addr) (*Peer, error) {
	a = a.Unmap()
	if a.Is4() != p.addr.Is4() {
		return nil, fmt.Errorf("rdma: %v cannot be reached from %v: another address family", a, p.addr)
	}
	if a.IsLinkLocalUnicast() && a.Is6() && a.Zone() == "" {
		a = a.WithZone(p.addr.Zone())
	}
	peer := &Peer{addr: a}
	if a.Is4() {
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&peer.raw))
		sa.Family, sa.Addr = unix.AF_INET, a.As4()
		putPort(&sa.Port, PortNumber)
		peer.n = unix.SizeofSockaddrInet4
		return peer, nil
	}
	peer.raw.Family, peer.raw.Addr = unix.AF_INET6, a.As16()
	putPort(&peer.raw.Port, PortNumber)
	peer.n = unix.SizeofSockaddrInet6
	if z := a.Zone(); z != "" {
		i, err := net.InterfaceByName(z)
		if err != nil {
			return nil, fmt.Errorf("rdma: zone of %v: %w", a, err)
		}
		peer.raw.Scope_id = uint32(i.Index)
	}
	return peer, nil
}

// Addr is the peer's address.
func (p *Peer) Addr() netip.Addr { return p.addr }

// Ports of a sockaddr are big-endian.
func putPort(p *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(p))[:], port)
}

func getPort(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// addrPort is the address in a sockaddr, without a zone.
func addrPort(sa *unix.RawSockaddrInet6) netip.AddrPort {
	if sa.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), getPort(&v4.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), getPort(&sa.Port))
}
