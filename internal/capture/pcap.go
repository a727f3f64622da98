package capture

import (
	"encoding/binary"
	"io"
	"net/netip"
	"time"
)

// Sizes of headers, bytes, and the most that a segment carries: what an IPv4 packet of 65,535
// has room for.
const (
	fileHeader   = 24
	packetHeader = 16
	ipv4         = 20
	tcp          = 20
	synOptions   = 8

	maxSegment = 65535 - ipv4 - tcp
)

// Flags of TCP.
const (
	fin = 0x01
	syn = 0x02
	psh = 0x08
	ack = 0x10
)

// stream is one connection as the file has it. Sequence numbers count from 1 behind the SYN,
// also where that has not been seen.
type stream struct {
	client, server netip.AddrPort
	next           [2]uint32 // sequence number that comes next, by direction: of the client, of the server
	ended          [2]bool
	mpa            [2]aligned
}

func newStream(client, server netip.AddrPort) *stream {
	return &stream{client: client, server: server, next: [2]uint32{1, 1}}
}

// Directions.
const (
	fromClient = 0
	fromServer = 1
)

// file writes a pcap file with nanoseconds.
type file struct {
	w   io.Writer
	buf []byte
}

func newFile(w io.Writer) (*file, error) {
	h := make([]byte, 0, fileHeader)
	h = binary.LittleEndian.AppendUint32(h, 0xa1b23c4d)
	h = binary.LittleEndian.AppendUint16(h, 2)
	h = binary.LittleEndian.AppendUint16(h, 4)
	h = append(h, make([]byte, 8)...)                // time zone, accuracy
	h = binary.LittleEndian.AppendUint32(h, 262_144) // longest packet
	h = binary.LittleEndian.AppendUint32(h, 1)       // Ethernet
	_, err := w.Write(h)
	return &file{w: w}, err
}

// open writes the handshake.
func (f *file) open(at time.Time, s *stream) error {
	s.next = [2]uint32{}
	if err := f.packet(at, s, fromClient, syn, nil); err != nil {
		return err
	}
	s.next[fromClient] = 1
	if err := f.packet(at, s, fromServer, syn|ack, nil); err != nil {
		return err
	}
	s.next[fromServer] = 1
	return f.packet(at, s, fromClient, ack, nil)
}

// data writes bytes that stand at an offset of their stream, in as many segments as it takes.
func (f *file) data(at time.Time, s *stream, dir int, off uint64, p []byte) error {
	if len(p) > 0 {
		s.next[dir] = uint32(off) + 1
	}
	for len(p) > 0 {
		n := min(len(p), maxSegment)
		if err := f.packet(at, s, dir, psh|ack, p[:n]); err != nil {
			return err
		}
		s.next[dir] += uint32(n)
		p = p[n:]
	}
	return nil
}

// end writes the end of a stream, once, and what was held of it.
func (f *file) end(at time.Time, s *stream, dir int, off uint64) error {
	if s.ended[dir] {
		return nil
	}
	s.ended[dir] = true
	if err := f.release(at, s, dir); err != nil {
		return err
	}
	s.next[dir] = uint32(off) + 1
	err := f.packet(at, s, dir, fin|ack, nil)
	s.next[dir]++
	return err
}

// packet writes one segment.
func (f *file) packet(at time.Time, s *stream, dir int, flags byte, p []byte) error {
	src, dst := s.client, s.server
	if dir == fromServer {
		src, dst = dst, src
	}
	opts := 0
	if flags&syn != 0 {
		opts = synOptions
	}
	length := tcp + opts + len(p)
	b := append(f.buf[:0], make([]byte, packetHeader)...)
	b = append(b, 2, 0, 0, 0, 0, byte(2-dir), 2, 0, 0, 0, 0, byte(1+dir)) // made up, locally administered
	b = appendIP(b, src.Addr(), dst.Addr(), length)
	seg := len(b)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(b, s.next[dir])
	var acked uint32
	if flags&ack != 0 {
		acked = s.next[1-dir]
	}
	b = binary.BigEndian.AppendUint32(b, acked)
	b = append(b, byte(tcp+opts)/4<<4, flags)
	b = binary.BigEndian.AppendUint16(b, 65535) // the window, which scaling makes wide enough for everything
	b = binary.BigEndian.AppendUint32(b, 0)     // checksum, urgent pointer
	if opts > 0 {
		b = append(b, 2, 4, maxSegment>>8, maxSegment&0xff, 1, 3, 3, 14)
	}
	b = append(b, p...)
	binary.BigEndian.PutUint16(b[seg+16:], checksum(b[seg:], pseudo(src.Addr(), dst.Addr(), length)))
	binary.LittleEndian.PutUint32(b, uint32(at.Unix()))
	binary.LittleEndian.PutUint32(b[4:], uint32(at.Nanosecond()))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-packetHeader))
	binary.LittleEndian.PutUint32(b[12:], uint32(len(b)-packetHeader))
	f.buf = b
	_, err := f.w.Write(b)
	return err
}

// appendIP appends the type field of Ethernet and a header of IP before n bytes of TCP.
func appendIP(b []byte, src, dst netip.Addr, n int) []byte {
	const ttl, protocol = 64, 6
	if !src.Is4() {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
		b = append(b, protocol, ttl)
		s, d := src.As16(), dst.As16()
		return append(append(b, s[:]...), d[:]...)
	}
	b = append(b, 0x08, 0x00)
	h := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ipv4+n))
	b = append(b, 0, 0, 0x40, 0, ttl, protocol, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[h+10:], checksum(b[h:], 0))
	return b
}

// pseudo is the sum of the header that TCP's checksum covers besides the segment (RFC 9293
// §3.1; RFC 8200 §8.1).
func pseudo(src, dst netip.Addr, n int) uint64 {
	return sum(dst.AsSlice(), sum(src.AsSlice(), uint64(6+n)))
}

// checksum is the Internet checksum of b (RFC 1071), which begins with a sum.
func checksum(b []byte, s uint64) uint16 {
	for s = sum(b, s); s > 0xffff; {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// sum adds up words of two bytes; b has less than a GiB.
func sum(b []byte, s uint64) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}
