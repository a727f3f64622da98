package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// ServiceID names what a REQ or SIDR_REQ wants to speak with. Those of rdma_cm are
// ports of an IP protocol (IBA vol. 1 annex A11.2): 0x0000000001, the number of the
// protocol, and the port.
type ServiceID uint64

// Protocol is the IP protocol in a ServiceID; rdma_cm calls it the port space.
type Protocol uint8

// Protocols of service IDs: connections are TCP's, datagrams UDP's.
const (
	ProtocolTCP Protocol = 6
	ProtocolUDP Protocol = 17
)

const ipService = 0x0000000001 << 24

// ServiceOf is the service ID of a port.
func ServiceOf(p Protocol, port uint16) ServiceID {
	return ipService | ServiceID(p)<<16 | ServiceID(port)
}

// Port takes the service ID apart; false if it is none of rdma_cm's.
func (s ServiceID) Port() (p Protocol, port uint16, ok bool) {
	return Protocol(s >> 16), uint16(s), s&^0xffffff == ipService
}

// String shows the protocol and port, or the number.
func (s ServiceID) String() string {
	switch p, port, ok := s.Port(); {
	case ok && p == ProtocolTCP:
		return fmt.Sprintf("tcp/%d", port)
	case ok && p == ProtocolUDP:
		return fmt.Sprintf("udp/%d", port)
	}
	return fmt.Sprintf("%#016x", uint64(s))
}

// GID is the identifier of a port of RoCE v2: its IP address, with IPv4 mapped into
// IPv6 (IBA annex A17.4.3).
func GID(a netip.Addr) [16]byte { return a.As16() }

// IPHeaderLen is what rdma_cm puts before the private data of a REQ or SIDR_REQ, and
// UserREQ and UserSIDRREQ what is left of it; in bytes.
const (
	IPHeaderLen = 36
	UserREQ     = PrivateREQ - IPHeaderLen
	UserSIDRREQ = PrivateSIDRREQ - IPHeaderLen
)

// ErrIPHeader is the error of a header of rdma_cm that cannot be used.
var ErrIPHeader = errors.New("private data without the addresses of rdma_cm")

// IPHeader tells the passive side the addresses as rdma_cm sees them (IBA annex A11.3).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+-------+-------+-------------------------------+
//	|MajV=0 |MinV=0 | IPV   |reservd|          Source Port          |   0
//	+-------+-------+-------+-------+-------------------------------+
//	|                   Source IP Address, 16 bytes                 ~   4
//	+---------------------------------------------------------------+
//	|                Destination IP Address, 16 bytes               ~  20
//	+---------------------------------------------------------------+
//
// IPV is 4 or 6. An IPv4 address is in the last four bytes, behind zeros.
type IPHeader struct {
	SrcPort  uint16
	Src, Dst netip.Addr // of one family
}

// Put writes the header to the first IPHeaderLen bytes of private data.
func (h *IPHeader) Put(b []byte) {
	clear(b[:IPHeaderLen])
	b[1] = 6 << 4
	if h.Src.Is4() {
		b[1] = 4 << 4
	}
	binary.BigEndian.PutUint16(b[2:], h.SrcPort)
	src, dst := h.Src.AsSlice(), h.Dst.AsSlice()
	copy(b[20-len(src):], src)
	copy(b[36-len(dst):], dst)
}

// Parse reads the header; of the two versions that it names, only 0 is known.
func (h *IPHeader) Parse(b []byte) error {
	_ = b[IPHeaderLen-1]
	if b[0] != 0 {
		return fmt.Errorf("%w: version %#02x", ErrIPHeader, b[0])
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return fmt.Errorf("%w: IP version %d", ErrIPHeader, b[1]>>4)
	}
	return nil
}
