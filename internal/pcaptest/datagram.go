package pcaptest

import (
	"encoding/binary"
	"net/netip"
	"path"
	"testing"
	"time"
)

// Datagram is one UDP packet of a capture.
type Datagram struct {
	At  time.Duration // since the first datagram
	IP  []byte        // the IP header, 20 or 40 bytes
	UDP []byte        // header and payload, as long as the UDP header says
}

// Payload is what is behind the UDP header.
func (d *Datagram) Payload() []byte { return d.UDP[udpHdr:] }

// Src and Dst are the addresses of the IP header and the ports of the UDP header.
func (d *Datagram) Src() netip.AddrPort {
	return netip.AddrPortFrom(d.addr(12, 8), binary.BigEndian.Uint16(d.UDP))
}

// Dst is described at Src.
func (d *Datagram) Dst() netip.AddrPort {
	return netip.AddrPortFrom(d.addr(16, 24), binary.BigEndian.Uint16(d.UDP[2:]))
}

func (d *Datagram) addr(v4, v6 int) netip.Addr {
	if d.IP[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(d.IP[v4:]))
	}
	return netip.AddrFrom16([16]byte(d.IP[v6:]))
}

const udpHdr = 8

// RoCE reads the datagrams to port 4791 of testdata/roce/NAME.pcap.gz, in the order in
// which they were captured.
func RoCE(t testing.TB, name string) []Datagram {
	t.Helper()
	b, err := captures.ReadFile(path.Join("testdata/roce", name+".pcap.gz"))
	if err == nil {
		b, err = unpack(b)
	}
	var out []Datagram
	var first time.Duration
	if err == nil {
		err = frames(b, func(at time.Duration, f []byte) {
			d, ok := datagram(f)
			if !ok || d.Dst().Port() != 4791 {
				return
			}
			if len(out) == 0 {
				first = at
			}
			d.At = at - first
			out = append(out, d)
		})
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// RoCENames lists the captures of RoCE whose names contain substr.
func RoCENames(t testing.TB, substr string) []string {
	t.Helper()
	return names(t, "testdata/roce", substr)
}

// datagram takes an Ethernet frame apart; false for what is not UDP over IP without
// options and fragments.
func datagram(f []byte) (Datagram, bool) {
	const ether = 14
	if len(f) < ether {
		return Datagram{}, false
	}
	var d Datagram
	p := f[ether:]
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		if len(p) < 20 || p[0] != 0x45 || p[9] != 17 {
			return Datagram{}, false
		}
		total := int(binary.BigEndian.Uint16(p[2:]))
		if total < 20 || total > len(p) {
			return Datagram{}, false
		}
		d.IP, d.UDP = p[:20], p[20:total]
	case 0x86dd:
		if len(p) < 40 || p[6] != 17 {
			return Datagram{}, false
		}
		n := int(binary.BigEndian.Uint16(p[4:]))
		if n > len(p)-40 {
			return Datagram{}, false
		}
		d.IP, d.UDP = p[:40], p[40:40+n]
	default:
		return Datagram{}, false
	}
	if len(d.UDP) < udpHdr {
		return Datagram{}, false
	}
	n := int(binary.BigEndian.Uint16(d.UDP[4:]))
	if n < udpHdr || n > len(d.UDP) {
		return Datagram{}, false
	}
	d.UDP = d.UDP[:n]
	return d, true
}
