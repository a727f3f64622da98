// Package frames is a wire between a tap and a guest that every Ethernet frame passes one by
// one: a Wire sees packets of RoCE as they are, IP header included, which neither end's
// sockets show. It compares their ICRC with one of its own, by the table-free definition and
// the identification that is really there, and what else a sender has no choice in; and by a
// seed it loses, doubles, delays and damages some of them.
//
//	frame    what of a frame is RoCE, and what is wrong with it
//	faults   what becomes of it
//	wire     from one end to the other
//
// QEMU's end is the stream of its -netdev socket: a length of four bytes, big-endian, before
// each frame.
package frames

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Lengths in bytes, and where fields are, in their own header.
const (
	etherLen, ip4Len, ip6Len, udpLen, bthLen, icrcLen = 14, 20, 40, 8, 12, 4

	etherType     = 12
	typeIP4       = 0x0800
	typeIP6       = 0x86dd
	protoUDP      = 17
	roce          = 4791
	maxGSO        = 128 // packets of one message of the kernel's: identifications 0 to 127
	dontFragment  = 0x4000
	fullMemberKey = 0xffff
)

// packet is a frame of RoCE v2.
type packet struct {
	ip, udp, body []byte // headers, and what UDP carries: BTH to ICRC
	v4            bool
}

// parse finds the packet in a frame; false if it is anything else.
func parse(frame []byte) (p packet, ok bool) {
	if len(frame) < etherLen+ip4Len+udpLen {
		return p, false
	}
	b := frame[etherLen:]
	n := ip4Len
	switch binary.BigEndian.Uint16(frame[etherType:]) {
	case typeIP4:
		if b[0] != 0x45 || b[9] != protoUDP {
			return p, false
		}
		p.v4 = true
		b = b[:min(len(b), int(binary.BigEndian.Uint16(b[2:])))] // Ethernet pads to 60 bytes
	case typeIP6:
		if len(b) < ip6Len+udpLen || b[6] != protoUDP {
			return p, false
		}
		n = ip6Len
		b = b[:min(len(b), ip6Len+int(binary.BigEndian.Uint16(b[4:])))]
	default:
		return p, false
	}
	if len(b) < n+udpLen {
		return p, false
	}
	p.ip, p.udp, p.body = b[:n], b[n:n+udpLen], b[n+udpLen:]
	return p, binary.BigEndian.Uint16(p.udp[2:]) == roce
}

// id is the identification of IPv4.
func (p *packet) id() uint16 { return binary.BigEndian.Uint16(p.ip[4:]) }

// icrc is what the last four bytes must be (IBA vol. 1 annex A17.3.3): the CRC of Ethernet over
// eight bytes of ones, and over the packet with ones in place of what routers change.
func (p *packet) icrc() uint32 {
	m := make([]byte, 8, 8+ip6Len+udpLen+len(p.body))
	for i := range m {
		m[i] = 0xff
	}
	m = append(append(append(m, p.ip...), p.udp...), p.body[:len(p.body)-icrcLen]...)
	ip, udp := m[8:], m[8+len(p.ip):]
	if p.v4 {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
	}
	udp[6], udp[7] = 0xff, 0xff
	udp[udpLen+4] = 0xff
	return crc32.ChecksumIEEE(m)
}

// check is what is wrong with a packet; ours says that this project has sent it, which then
// is held to what it promises about its headers.
func (p *packet) check(ours bool) error {
	b := p.body
	switch n := int(binary.BigEndian.Uint16(p.udp[4:])); {
	case len(b) < bthLen+icrcLen || len(b)%4 != 0:
		return fmt.Errorf("%d bytes in UDP", len(b))
	case n != udpLen+len(b):
		return fmt.Errorf("UDP says %d bytes, IP %d", n, udpLen+len(b))
	case binary.LittleEndian.Uint32(b[len(b)-icrcLen:]) != p.icrc():
		return fmt.Errorf("the ICRC is %x, and not %08x least byte first", b[len(b)-icrcLen:], p.icrc())
	}
	if !ours {
		return nil
	}
	switch {
	case b[1]&0x0f != 0:
		return fmt.Errorf("header version %d", b[1]&0x0f)
	case binary.BigEndian.Uint16(b[2:]) != fullMemberKey:
		return fmt.Errorf("P_Key %x", b[2:4])
	case b[4]&0x3f != 0 || b[8]&0x7f != 0:
		return fmt.Errorf("reserved bits %02x and %02x", b[4], b[8])
	case p.v4 && binary.BigEndian.Uint16(p.ip[6:]) != dontFragment:
		return fmt.Errorf("flags and offset %x", p.ip[6:8])
	case p.v4 && p.id() >= maxGSO:
		return fmt.Errorf("identification %d", p.id())
	}
	for _, x := range b[len(b)-icrcLen-int(b[1]>>4&3) : len(b)-icrcLen] {
		if x != 0 {
			return fmt.Errorf("a pad of %#02x", x)
		}
	}
	return nil
}
