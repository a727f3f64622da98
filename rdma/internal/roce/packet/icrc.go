package packet

import (
	"encoding/binary"
	"net/netip"

	"softiser/internal/crc32c"
)

// The ICRC is Ethernet's CRC-32 over eight bytes of ones (the link header that RoCE does
// not have), the IP header, the UDP header and everything up to the pad. What may change
// on the way counts as ones (IBA vol. 1 §7.8.1, annex A17.3.3): traffic class, flow label,
// TTL and the checksums of IP and UDP, and the BTH's byte with FECN and BECN. It goes
// onto the wire with its least significant byte first.
//
// Not masked is IPv4's identification, which a UDP socket can neither choose nor see:
//   - A sender's unconnected socket with IP_PMTUDISC_DO sends identification 0, and
//     UDP_SEGMENT numbers the packets of one call 0, 1, 2 and so on.
//   - A receiver solves for it, since a CRC is linear: of the 32 bits, 16 are spent on
//     that and 16 protect. IDs wins most of them back.

const (
	lrhLen  = 8
	v4Len   = 20
	v6Len   = 40
	udpLen  = 8
	v4ID    = lrhLen + 4
	v4Total = lrhLen + 2
	v6Total = lrhLen + 4
)

// Flow computes the ICRC of packets between two addresses. It is not for concurrent
// use: it keeps what the headers in front of the BTH of the last packet came to.
type Flow struct {
	masked  [lrhLen + v6Len + udpLen]byte // with identification 0
	udp     int                           // where the UDP header begins in masked
	v4      bool                          // there is an identification
	n       int                           // length of the last UDP payload; 0: none
	before  Sum                           // of masked, for that length
	solveN  int                           // length of the UDP payload that inverse is for; 0: none
	inverse uint32                        // undoes the effect that the bytes behind the identification have on the register
}

// NewFlow makes a Flow for packets from src to dst. dst's port is 4791 on the wire;
// both addresses are of one family (IPv4 in IPv6 counts as IPv4).
func NewFlow(src, dst netip.AddrPort) *Flow {
	f := &Flow{}
	for i := range lrhLen {
		f.masked[i] = 0xff
	}
	ip := f.masked[lrhLen:]
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	const udpProtocol = 17
	if f.v4 = s.Is4() && d.Is4(); f.v4 {
		f.udp = lrhLen + v4Len
		ip[0], ip[1] = 0x45, 0xff        // TOS
		ip[6] = 0x40                     // don't fragment
		ip[8], ip[9] = 0xff, udpProtocol // TTL
		ip[10], ip[11] = 0xff, 0xff      // header checksum
		*(*[4]byte)(ip[12:]), *(*[4]byte)(ip[16:]) = s.As4(), d.As4()
	} else {
		f.udp = lrhLen + v6Len
		ip[0], ip[1], ip[2], ip[3] = 0x6f, 0xff, 0xff, 0xff // traffic class, flow label
		ip[6], ip[7] = udpProtocol, 0xff                    // hop limit
		*(*[16]byte)(ip[8:]), *(*[16]byte)(ip[24:]) = s.As16(), d.As16()
	}
	u := f.masked[f.udp:]
	binary.BigEndian.PutUint16(u, src.Port())
	binary.BigEndian.PutUint16(u[2:], dst.Port())
	u[6], u[7] = 0xff, 0xff // checksum
	return f
}

// SetSrcPort is for packets that come from another port than NewFlow was told: a peer
// may choose one for each packet.
func (f *Flow) SetSrcPort(p uint16) {
	if u := f.masked[f.udp:]; binary.BigEndian.Uint16(u) != p {
		binary.BigEndian.PutUint16(u, p)
		f.n = 0
	}
}

// V4 says whether the packets have an identification.
func (f *Flow) V4() bool { return f.v4 }

// idSums are what small identifications add to the ICRC of the headers up to the BTH: of
// equal lengths, CRCs of two messages differ by what their difference alone comes to.
var idSums = func() (t [maxSegments]Sum) {
	var behind [v4Len + udpLen - 4]byte // the identification, and what follows it
	none := Sum(0).Add(behind[:])
	for id := range t {
		binary.BigEndian.PutUint16(behind[:], uint16(id))
		t[id] = Sum(0).Add(behind[:]) ^ none
	}
	return t
}()

// headers is the sum of everything in front of the BTH.
func (f *Flow) headers(n int, id uint16) Sum {
	if n != f.n {
		f.n = n
		if f.v4 {
			binary.BigEndian.PutUint16(f.masked[v4Total:], uint16(v4Len+udpLen+n))
		} else {
			binary.BigEndian.PutUint16(f.masked[v6Total:], uint16(udpLen+n))
		}
		binary.BigEndian.PutUint16(f.masked[f.udp+4:], uint16(udpLen+n))
		f.before = Sum(0).Add(f.masked[:f.udp+udpLen])
	}
	switch {
	case id == 0 || !f.v4:
		return f.before
	case id < maxSegments:
		return f.before ^ idSums[id]
	}
	binary.BigEndian.PutUint16(f.masked[v4ID:], id)
	sum := Sum(0).Add(f.masked[:f.udp+udpLen])
	binary.BigEndian.PutUint16(f.masked[v4ID:], 0)
	return sum
}

// Sum is an ICRC that is being computed.
type Sum uint32

// maskedByte is the place of the BTH's byte with FECN, BECN and reserved bits, which
// counts as ones.
const maskedByte = 4

// Begin starts the ICRC of a packet: head is its BTH and what follows that directly, all of
// it or a part, n the length of the UDP payload, ICRC included, and id IPv4's
// identification. One byte of head is changed meanwhile, and changed back.
func (f *Flow) Begin(head []byte, n int, id uint16) Sum {
	was := head[maskedByte]
	head[maskedByte] = 0xff
	sum := f.headers(n, id).Add(head)
	head[maskedByte] = was
	return sum
}

// Add goes on over b.
func (s Sum) Add(b []byte) Sum { return Sum(crc32c.UpdateIEEE(uint32(s), b)) }

// AppendCopy appends p to b, which has the room, and goes on over it: over the copy, as the
// owner of p may change it meanwhile.
func (s Sum) AppendCopy(b, p []byte) ([]byte, Sum) {
	n := len(b)
	b = b[:n+len(p)]
	return b, Sum(crc32c.CopyIEEE(uint32(s), b[n:], p))
}

// AppendTrailer appends the pad that n bytes of payload need, and the ICRC of which s
// is the sum up to the end of the payload.
func (s Sum) AppendTrailer(b []byte, n int) []byte {
	pad := zeros[:Pad(n)]
	return binary.LittleEndian.AppendUint32(append(b, pad...), uint32(s.Add(pad)))
}

var zeros [3]byte // never written

// Check compares a UDP payload with its ICRC. Over IPv4 it finds the identification
// with which the ICRC is right, soonest if it is the likely one: about one of 65536
// damaged packets has one, so that the caller must ask IDs whether the peer would send it.
// Over IPv6 it is 0. One byte of b is changed meanwhile, and changed back.
func (f *Flow) Check(b []byte, likely uint16) (id uint16, ok bool) {
	if len(b) < MinLen {
		return 0, false
	}
	if !f.v4 {
		likely = 0
	}
	body := b[:len(b)-ICRCLen]
	// The sum was begun with likely, so what is found is the difference from that.
	id, ok = f.Verify(f.Begin(body, len(b), likely), binary.LittleEndian.Uint32(b[len(body):]), len(b))
	return id ^ likely, ok
}

// Verify is Check for a packet that lies in pieces: sum is over everything up to the
// pad, begun with identification 0, wire the ICRC as read with its least significant
// byte first, and n the length of the UDP payload.
func (f *Flow) Verify(sum Sum, wire uint32, n int) (id uint16, ok bool) {
	diff := uint32(sum) ^ wire
	if diff == 0 || !f.v4 {
		return 0, diff == 0
	}
	// diff is the register, begun with zeros, after the two bytes of the identification and as
	// many bytes of zeros as follow it in the packet. Each of those has multiplied it by x^8. When
	// that is undone, the two bytes are left, the first one in the lower eight bits; if anything
	// is above them, no identification explains the ICRC.
	if n != f.solveN {
		f.solveN, f.inverse = n, unshift(v4Len-4+udpLen+n-ICRCLen)
	}
	raw := multiply(diff, f.inverse)
	return uint16(raw)<<8 | uint16(raw)>>8, raw>>16 == 0
}
