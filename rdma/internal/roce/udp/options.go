package udp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sockopts sets options of one socket; the first error counts.
type sockopts struct {
	fd  int
	err error
}

func (s *sockopts) set(name string, level, option, value int) {
	if err := unix.SetsockoptInt(s.fd, level, option, value); err != nil && s.err == nil {
		s.err = fmt.Errorf("rdma: set %s: %w", name, err)
	}
}

// noFragments makes the kernel send what fits the path in one packet, with DF and, over
// IPv4, an identification that is known (see the package comment), and refuse the rest
// with EMSGSIZE.
func (s *sockopts) noFragments(v4 bool) {
	if v4 {
		s.set("IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	} else {
		s.set("IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}
}

// noChecksum leaves the UDP checksum out, as RoCE does, whose own covers more. The
// kernel does not cut messages into packets (GSO) without it.
func (s *sockopts) noChecksum(v4 bool) {
	if v4 {
		s.set("SO_NO_CHECK", unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
	} else {
		s.set("UDP_NO_CHECK6_TX", unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1)
	}
}

// acceptNoChecksum makes an IPv6 socket take packets without UDP checksum, such as
// those of rxe. IPv4 always does.
func (s *sockopts) acceptNoChecksum(v4 bool) {
	if !v4 {
		s.set("UDP_NO_CHECK6_RX", unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
	}
}

// tellECN has the kernel say what the field of ECN is of what comes.
func (s *sockopts) tellECN(v4 bool) {
	if v4 {
		s.set("IP_RECVTOS", unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	} else {
		s.set("IPV6_RECVTCLASS", unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	}
}

// receiveBuffer asks for n bytes, beyond net.core.rmem_max if the process may, and
// returns what it has got: what the kernel counts, which is more than the payload.
func (s *sockopts) receiveBuffer(n int) int {
	s.set("SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, n)
	if got := s.get("SO_RCVBUF", unix.SO_RCVBUF); got < n {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) // takes CAP_NET_ADMIN
	}
	return s.get("SO_RCVBUF", unix.SO_RCVBUF)
}

// sendBuffer asks for n bytes; it is all the same how much it gets.
func (s *sockopts) sendBuffer(n int) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil { // takes CAP_NET_ADMIN
		s.set("SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
}

func (s *sockopts) get(name string, option int) int {
	v, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, option)
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("rdma: get %s: %w", name, err)
	}
	return v
}

// receiveNothing drops what comes: a lane only sends, and nobody would empty it.
func (s *sockopts) receiveNothing() {
	f := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	s.filter("SO_ATTACH_FILTER", unix.SO_ATTACH_FILTER, f)
}

func (s *sockopts) filter(name string, option int, f []unix.SockFilter) {
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, option, &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]})
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("rdma: set %s: %w", name, err)
	}
}
