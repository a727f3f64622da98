// Package pcaptest reads packet captures for tests: classic pcap files of
// Ethernet frames, and the TCP byte streams or UDP datagrams in them.
//
// The captures in testdata were taken between two Linux machines (kernel 6.1):
// rdma-core's rping, ib_iser against LIO's isert, and NVMe, all over the siw
// driver; and iSCSI over plain TCP, open-iscsi against LIO. Those in testdata/roce
// are of RoCEv2, the rxe driver against itself and, in "user-…", against a process
// with a plain UDP socket.
package pcaptest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"
)

// Conn is one TCP connection of a capture.
type Conn struct {
	Client, Server netip.AddrPort // Client sent the SYN
	C2S, S2C       []byte         // the reassembled streams
	Segs           []Seg          // payload segments in the order of the capture
	Complete       bool           // SYN seen, and no gap in either stream
}

// Seg is one TCP segment with payload.
type Seg struct {
	FromClient bool
	Off, Len   int // place in C2S or S2C
}

//go:embed testdata/*.pcap.gz testdata/roce/*.pcap.gz
var captures embed.FS

// Open reads testdata/NAME.pcap.gz of this package.
func Open(t testing.TB, name string) []*Conn {
	t.Helper()
	raw, err := captures.ReadFile(path.Join("testdata", name+".pcap.gz"))
	if err != nil {
		t.Fatal(err)
	}
	conns, err := connections(raw)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return conns
}

// Names lists the captures of this package whose names contain substr.
func Names(t testing.TB, substr string) []string {
	t.Helper()
	return names(t, "testdata", substr)
}

func names(t testing.TB, dir, substr string) []string {
	t.Helper()
	files, err := captures.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		if n, ok := strings.CutSuffix(f.Name(), ".pcap.gz"); ok && strings.Contains(n, substr) {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no capture with %q in its name", substr)
	}
	return out
}

// Read reads a capture, compressed by gzip or not.
func Read(file string) ([]*Conn, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	conns, err := connections(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return conns, nil
}

// connections is what Read makes of a file's bytes.
func connections(b []byte) ([]*Conn, error) {
	b, err := unpack(b)
	if err != nil {
		return nil, err
	}
	return parse(b)
}

// unpack undoes gzip, if it was used.
func unpack(b []byte) ([]byte, error) {
	if !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		return b, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

var errFormat = errors.New("not a classic pcap file of Ethernet frames")

// parse reads a capture file and puts its TCP connections together.
func parse(b []byte) ([]*Conn, error) {
	r := reassembler{half: map[halfKey]*half{}}
	if err := frames(b, func(_ time.Duration, f []byte) { r.frame(f) }); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// frames hands each frame of a capture file of either byte order to f, with the time
// at which it was captured.
func frames(b []byte, f func(at time.Duration, frame []byte)) error {
	const fileHdr, pktHdr = 24, 16
	if len(b) < fileHdr {
		return errFormat
	}
	var order binary.ByteOrder = binary.LittleEndian
	if m := binary.BigEndian.Uint32(b); m == 0xa1b2c3d4 || m == 0xa1b23c4d {
		order = binary.BigEndian
	}
	unit := time.Microsecond
	switch order.Uint32(b) {
	case 0xa1b2c3d4:
	case 0xa1b23c4d:
		unit = time.Nanosecond
	default:
		return errFormat
	}
	if order.Uint32(b[20:]) != 1 {
		return errFormat
	}
	for b = b[fileHdr:]; len(b) > 0; {
		if len(b) < pktHdr {
			return io.ErrUnexpectedEOF
		}
		at := time.Duration(order.Uint32(b))*time.Second + time.Duration(order.Uint32(b[4:]))*unit
		n, orig := order.Uint32(b[8:]), order.Uint32(b[12:])
		b = b[pktHdr:]
		if uint64(n) > uint64(len(b)) {
			return io.ErrUnexpectedEOF
		}
		if n != orig {
			return fmt.Errorf("a packet of %d bytes was cut to %d", orig, n)
		}
		f(at, b[:n])
		b = b[n:]
	}
	return nil
}

type halfKey struct{ src, dst netip.AddrPort }

// half is one direction of a connection while it is being put together.
type half struct {
	conn   *Conn
	client bool
	start  uint32 // sequence number of the first payload byte
	known  bool
	segs   []rawSeg
}

type rawSeg struct {
	order int // in the capture
	seq   uint32
	data  []byte
}

type reassembler struct {
	conns []*Conn
	half  map[halfKey]*half
	halfs []*half
	n     int
}

// frame takes one Ethernet frame; what is not TCP over IPv4 or IPv6 is ignored.
func (r *reassembler) frame(b []byte) {
	if len(b) < 14 {
		return
	}
	var src, dst netip.Addr
	p := b[14:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		if len(p) < 20 || p[9] != 6 {
			return
		}
		hl, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
		if hl < 20 || total < hl || total > len(p) {
			return
		}
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		p = p[hl:total]
	case 0x86dd:
		if len(p) < 40 || p[6] != 6 {
			return
		}
		total := int(binary.BigEndian.Uint16(p[4:]))
		src, dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		if total > len(p)-40 {
			return
		}
		p = p[40 : 40+total]
	default:
		return
	}
	if len(p) < 20 {
		return
	}
	off := int(p[12]>>4) * 4
	if off < 20 || off > len(p) {
		return
	}
	k := halfKey{netip.AddrPortFrom(src, binary.BigEndian.Uint16(p)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:]))}
	r.segment(k, binary.BigEndian.Uint32(p[4:]), p[13], p[off:])
}

func (r *reassembler) segment(k halfKey, seq uint32, flags byte, data []byte) {
	const syn, ack = 0x02, 0x10
	back := halfKey{k.dst, k.src}
	h := r.half[k]
	if flags&(syn|ack) == syn && (h == nil || h.start != seq+1) {
		c := &Conn{Client: k.src, Server: k.dst}
		r.conns = append(r.conns, c)
		h = &half{conn: c, client: true, start: seq + 1, known: true}
		o := &half{conn: c}
		r.half[k], r.half[back] = h, o
		r.halfs = append(r.halfs, h, o)
		return
	}
	if h == nil {
		return // began before the capture
	}
	if flags&syn != 0 {
		h.start, h.known = seq+1, true
	}
	if len(data) > 0 {
		r.n++
		h.segs = append(h.segs, rawSeg{r.n, seq, data})
	}
}

// finish puts the segments of both directions of each connection into the order in which
// they were captured.
func (r *reassembler) finish() []*Conn {
	type placed struct {
		order int
		seg   Seg
	}
	all := map[*Conn][]placed{}
	for _, c := range r.conns {
		c.Complete = true
	}
	for _, h := range r.halfs {
		if !h.known {
			h.conn.Complete = false
			continue
		}
		slices.SortStableFunc(h.segs, func(a, b rawSeg) int { return cmp.Compare(a.seq-h.start, b.seq-h.start) })
		var out []byte
		for _, s := range h.segs {
			off := int(s.seq - h.start)
			if off > len(out) {
				h.conn.Complete = false
				break
			}
			if have := len(out) - off; have < len(s.data) {
				out = append(out, s.data[have:]...) // without what was sent twice
			}
			all[h.conn] = append(all[h.conn], placed{s.order, Seg{h.client, off, len(s.data)}})
		}
		if h.client {
			h.conn.C2S = out
		} else {
			h.conn.S2C = out
		}
	}
	for c, ps := range all {
		slices.SortFunc(ps, func(a, b placed) int { return cmp.Compare(a.order, b.order) })
		for _, p := range ps {
			c.Segs = append(c.Segs, p.seg)
		}
	}
	return r.conns
}
