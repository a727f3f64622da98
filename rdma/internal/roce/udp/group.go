package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// multicastHops is the TTL, or hop limit, of what is sent to groups: that of other
// packets. The default of the system, 1, does not leave the network.
const multicastHops = 64

// Join makes a socket that receives what is sent to a multicast group, on the interface
// of the port's address. The membership ends with Receiver.Close.
//
// It is bound to the group's address, so that the port's own socket does not get its
// packets, nor the other way, and shared: other processes may be members beside this one.
func (p *Port) Join(group netip.Addr) (*Receiver, error) {
	group = group.Unmap()
	if !group.IsMulticast() || group.Is4() != p.addr.Is4() {
		return nil, fmt.Errorf("rdma: %v is no multicast group that %v can belong to", group, p.addr)
	}
	buffer := 0
	s, err := listenGroup(p.addr, group, func(o *sockopts) {
		buffer = o.receiveBuffer(groupBuffer)
		if p.gro {
			_ = unix.SetsockoptInt(o.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("rdma: joining %v on the interface of %v: %w", group, p.addr, err)
	}
	return p.newReceiver(s, buffer), nil
}

// groupBuffer is asked for as the receive buffer of a group, bytes.
const groupBuffer = 1 << 20

// listenGroup makes a socket of a group; package net would bind it to all addresses.
func listenGroup(local, group netip.Addr, set func(*sockopts)) (*socket, error) {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "group")
	defer func() { _ = f.Close() }()
	o := sockopts{fd: fd}
	o.set("SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	o.acceptNoChecksum(group.Is4())
	set(&o)
	if o.err != nil {
		return nil, o.err
	}
	if err := bindJoin(fd, local, group); err != nil {
		return nil, err
	}
	pc, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	nc := pc.(*net.UDPConn)
	rc, err := nc.SyscallConn()
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return &socket{nc, rc}, nil
}

// bindJoin binds a socket to a group and makes it a member, on one interface and with
// no regard to what other sockets of the host have joined.
func bindJoin(fd int, local, group netip.Addr) error {
	if group.Is4() {
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: PortNumber, Addr: group.As4()}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0); err != nil {
			return err
		}
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group.As4(), Address: local.As4()})
	}
	ifindex, err := interfaceOf(local)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: PortNumber, ZoneId: uint32(ifindex), Addr: group.As16()}); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0); err != nil {
		return err
	}
	return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(ifindex)})
}

// multicastFrom has what is sent to groups leave by the interface of a local address,
// and come back to members on this host, which the system's default is.
func (s *sockopts) multicastFrom(a netip.Addr) {
	var err error
	if a.Is4() {
		s.set("IP_MULTICAST_TTL", unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, multicastHops)
		err = unix.SetsockoptIPMreqn(s.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: a.As4()})
	} else {
		s.set("IPV6_MULTICAST_HOPS", unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, multicastHops)
		var ifindex int
		if ifindex, err = interfaceOf(a); err == nil {
			err = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, ifindex)
		}
	}
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("rdma: the interface of %v for multicast: %w", a, err)
	}
}

// interfaceOf is the index of the interface that has an address.
func interfaceOf(a netip.Addr) (int, error) {
	if z := a.Zone(); z != "" {
		i, err := net.InterfaceByName(z)
		if err != nil {
			return 0, err
		}
		return i.Index, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return 0, err
		}
		for _, n := range addrs {
			if p, ok := n.(*net.IPNet); ok && p.IP.Equal(a.AsSlice()) {
				return i.Index, nil
			}
		}
	}
	return 0, fmt.Errorf("no interface has the address %v", a)
}
