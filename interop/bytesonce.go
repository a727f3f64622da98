package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
)

// everyByteOnce rewrites a capture of QEMU (classic pcap, Ethernet, IPv4) so that each
// byte of a TCP stream is in it once and in order. An emulated guest stalls now and then,
// and its peer's TCP sends again what it has not acknowledged, cut anew: tshark takes the
// old bytes at the front of such a segment for new ones and loses the framing above.
//
// With mpaPort, connections of that port carry MPA, and each of their packets becomes one
// whole start-up frame or FPDU: where a TCP that knows nothing of FPDUs has cut the stream
// (slirp does), so that one begins in the last four bytes of a segment, tshark 4.0 loses
// the framing as well.
func everyByteOnce(from, to string, mpaPort int) error {
	in, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	out, err := sendOnce(in, mpaPort)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, out, 0o644)
}

const (
	pcapHeader   = 24
	packetHeader = 16 // seconds, microseconds, bytes kept, bytes on the wire
	etherHeader  = 14
)

var errCapture = errors.New("not a whole classic pcap file of little-endian byte order")

// stream is one direction of a TCP connection: what has been passed on of it, and the
// packets that came before their turn.
type stream struct {
	start uint32 // sequence number of its first packet
	next  uint32
	begun bool
	early []capturedPacket

	mpa     bool
	begin   []byte // of a frame or FPDU that is not whole yet; next is behind it
	inFPDUs bool   // the start-up frame has passed
}

type halfConn struct{ src, dst netip.AddrPort }

// capturedPacket is a packet of a capture with its header, and where its TCP payload is.
type capturedPacket struct {
	b       []byte
	conn    halfConn
	tcp     int // offset of the TCP header; 0: not TCP over IPv4
	payload int
	end     int // of the IP packet; Ethernet pads behind it
}

func (p *capturedPacket) seq() uint32 { return binary.BigEndian.Uint32(p.b[p.tcp+4:]) }
func (p *capturedPacket) syn() bool   { return p.b[p.tcp+13]&0x02 != 0 }

// sendOnce writes a capture anew in which each byte of a stream comes once, and each
// packet to or from mpaPort carries one whole FPDU.
func sendOnce(in []byte, mpaPort int) ([]byte, error) {
	if len(in) < pcapHeader || binary.LittleEndian.Uint32(in) != 0xa1b2c3d4 {
		return nil, errCapture
	}
	out := slices.Clone(in[:pcapHeader])
	streams := map[halfConn]*stream{}
	for in = in[pcapHeader:]; len(in) > 0; {
		if len(in) < packetHeader || uint64(len(in)-packetHeader) < uint64(binary.LittleEndian.Uint32(in[8:])) {
			return nil, errCapture
		}
		n := packetHeader + int(binary.LittleEndian.Uint32(in[8:]))
		p := dissect(in[:n])
		in = in[n:]
		if p.tcp == 0 {
			out = append(out, p.b...)
			continue
		}
		s := streams[p.conn]
		if s == nil || p.syn() && p.seq() != s.start { // another connection of the same ports
			s = &stream{start: p.seq(), next: p.seq(), mpa: mpaPort != 0 && (int(p.conn.src.Port()) == mpaPort || int(p.conn.dst.Port()) == mpaPort)}
			streams[p.conn] = s
		}
		out = s.take(out, p)
	}
	for c, s := range streams {
		if len(s.early) > 0 {
			return nil, fmt.Errorf("bytes from %v to %v are missing before sequence number %d", c.src, c.dst, s.early[0].seq())
		}
		if len(s.begin) > 0 {
			return nil, fmt.Errorf("what %v sends to %v ends with %d bytes of an FPDU that is longer", c.src, c.dst, len(s.begin))
		}
	}
	return out, nil
}

func dissect(b []byte) capturedPacket {
	p := capturedPacket{b: b}
	const ip = packetHeader + etherHeader
	if len(b) < ip+20 || binary.BigEndian.Uint16(b[ip-2:]) != 0x0800 || b[ip+9] != 6 {
		return p
	}
	tcp := ip + int(b[ip]&15)*4
	end := ip + int(binary.BigEndian.Uint16(b[ip+2:]))
	if end > len(b) || tcp+20 > end {
		return p
	}
	payload := tcp + int(b[tcp+12]>>4)*4
	if payload > end {
		return p
	}
	p.tcp, p.payload, p.end = tcp, payload, end
	p.conn = halfConn{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[ip+12:])), binary.BigEndian.Uint16(b[tcp:])),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[ip+16:])), binary.BigEndian.Uint16(b[tcp+2:])),
	}
	return p
}

// take passes a packet on in its turn, and those that have waited for it.
func (s *stream) take(out []byte, p capturedPacket) []byte {
	if p.syn() {
		if s.begun {
			return out // sent again
		}
		s.begun = true
		s.next++
		return append(out, p.b...)
	}
	s.begun = true
	if p.payload == p.end {
		return append(out, p.b...) // an acknowledgement or an end
	}
	if int32(p.seq()-s.next) > 0 {
		s.early = append(s.early, p)
		return out
	}
	out = s.pass(out, p)
	for {
		i := slices.IndexFunc(s.early, func(p capturedPacket) bool { return int32(p.seq()-s.next) <= 0 })
		if i < 0 {
			return out
		}
		p := s.early[i]
		s.early = slices.Delete(s.early, i, i+1)
		out = s.pass(out, p)
	}
}

// pass appends what is new in a packet, with its lengths and sequence number made to fit.
func (s *stream) pass(out []byte, p capturedPacket) []byte {
	old := int(s.next - p.seq())
	if old >= p.end-p.payload {
		return out
	}
	fresh := p.b[p.payload+old : p.end]
	if !s.mpa {
		out = appendPacket(out, &p, s.next, fresh)
		s.next += uint32(len(fresh))
		return out
	}
	s.next += uint32(len(fresh))
	s.begin = append(s.begin, fresh...)
	for {
		n := s.frame()
		if n == 0 || n > len(s.begin) {
			return out
		}
		out = appendPacket(out, &p, s.next-uint32(len(s.begin)), s.begin[:n])
		s.begin, s.inFPDUs = s.begin[n:], true
	}
}

// frame returns the length of the frame or FPDU that begins with s.begin, 0 when too
// little of it is there to tell.
func (s *stream) frame() int {
	switch {
	case !s.inFPDUs && len(s.begin) >= 20: // RFC 5044 §7.1.1: key, flags, revision, length of the private data
		return 20 + int(binary.BigEndian.Uint16(s.begin[18:]))
	case s.inFPDUs && len(s.begin) >= 2: // RFC 5044 §4.1: length, ULPDU, pad, CRC
		n := 2 + int(binary.BigEndian.Uint16(s.begin))
		return (n+3)&^3 + 4
	}
	return 0
}

// appendPacket appends a packet with p's headers and other payload. Checksums are left:
// nobody looks at them, and a network card had filled them in.
func appendPacket(out []byte, p *capturedPacket, seq uint32, payload []byte) []byte {
	at := len(out)
	out = append(out, p.b[:p.payload]...)
	out = append(out, payload...)
	q := out[at:]
	const ip = packetHeader + etherHeader
	binary.LittleEndian.PutUint32(q[8:], uint32(len(q)-packetHeader))
	binary.LittleEndian.PutUint32(q[12:], uint32(len(q)-packetHeader))
	binary.BigEndian.PutUint16(q[ip+2:], uint16(len(q)-ip))
	binary.BigEndian.PutUint32(q[p.tcp+4:], seq)
	return out
}
