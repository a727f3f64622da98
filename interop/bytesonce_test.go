package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"softiser/internal/pcaptest"
)

// capture writes packets of one connection as QEMU does.
type capture struct{ bytes.Buffer }

func newCapture() *capture {
	var c capture
	h := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	h = append(h, make([]byte, 16)...)
	c.Write(binary.LittleEndian.AppendUint32(h, 1))
	return &c
}

func (c *capture) packet(fromClient bool, flags byte, seq uint32, data []byte) {
	const ip, tcp = etherHeader, etherHeader + 20
	b := make([]byte, tcp+20, tcp+20+len(data))
	b = append(b, data...)
	ends := [2]struct{ host, port byte }{{1, 10}, {2, 20}}
	if !fromClient {
		ends[0], ends[1] = ends[1], ends[0]
	}
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	b[ip], b[ip+9], b[ip+12], b[ip+15], b[ip+16], b[ip+19] = 0x45, 6, 10, ends[0].host, 10, ends[1].host
	binary.BigEndian.PutUint16(b[ip+2:], uint16(len(b)-ip))
	b[tcp+1], b[tcp+3], b[tcp+12], b[tcp+13] = ends[0].port, ends[1].port, 0x50, flags
	binary.BigEndian.PutUint32(b[tcp+4:], seq)
	for len(b) < 60 {
		b = append(b, 0xee) // what Ethernet pads with is nobody's data
	}
	var h [packetHeader]byte
	binary.LittleEndian.PutUint32(h[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(h[12:], uint32(len(b)))
	c.Write(h[:])
	c.Write(b)
}

// What was sent again, cut anew or out of turn is in the capture once and in order.
func TestEveryByteOnce(t *testing.T) {
	const syn, ack = 0x02, 0x10
	text := []byte("0123456789abcdefghijklmnopqrstuvwxyz")
	for _, isn := range []uint32{1000, 1<<32 - 10} { // the numbers may wrap around
		c := newCapture()
		c.packet(true, syn, isn, nil)
		c.packet(false, syn|ack, 77, nil)
		send := func(from, to int) { c.packet(true, ack, isn+1+uint32(from), text[from:to]) }
		send(0, 10)
		c.packet(false, ack, 78, []byte("answer"))
		c.packet(false, syn|ack, 77, nil)
		send(10, 14)
		send(5, 12)  // nothing new
		send(8, 20)  // cut anew
		send(25, 30) // before its turn
		send(28, 36) // and one that overlaps it
		send(20, 26)
		c.packet(false, ack, 78, []byte("answer"))
		send(0, 36)
		dir := t.TempDir()
		from, to := filepath.Join(dir, "a.pcap"), filepath.Join(dir, "b.pcap")
		if err := os.WriteFile(from, c.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := everyByteOnce(from, to, 0); err != nil {
			t.Fatal(err)
		}
		conns, err := pcaptest.Read(to)
		if err != nil || len(conns) != 1 {
			t.Fatalf("%d connections, %v", len(conns), err)
		}
		if got := conns[0]; !bytes.Equal(got.C2S, text) || string(got.S2C) != "answer" || !got.Complete {
			t.Errorf("the streams are %q and %q", got.C2S, got.S2C)
		}
		next := map[bool]int{}
		for _, s := range conns[0].Segs {
			if s.Off != next[s.FromClient] {
				t.Errorf("a segment at %d, bytes up to %d have been seen", s.Off, next[s.FromClient])
			}
			next[s.FromClient] = s.Off + s.Len
		}
	}
}

// A capture that misses bytes is no ground for a verdict.
func TestMissingBytes(t *testing.T) {
	c := newCapture()
	c.packet(true, 0x02, 1, nil)
	c.packet(true, 0x10, 2, []byte("ab"))
	c.packet(true, 0x10, 6, []byte("ef"))
	if _, err := sendOnce(c.Bytes(), 0); err == nil {
		t.Error("a capture with a gap was accepted")
	}
	if _, err := sendOnce(c.Bytes()[:c.Len()-3], 0); err == nil {
		t.Error("a capture with half a packet was accepted")
	}
}

// However an MPA stream is cut, each packet of it becomes a whole frame or FPDU.
func TestWholeFPDUs(t *testing.T) {
	request := append(append([]byte("MPA ID Req Frame\x40\x02"), 0, 3), "abc"...)
	fpdu := func(n int) []byte {
		b := binary.BigEndian.AppendUint16(nil, uint16(n))
		return append(b, make([]byte, (n+2+3)&^3+4-2)...)
	}
	units := [][]byte{request, fpdu(0), fpdu(1), fpdu(1450), fpdu(60000), fpdu(7)}
	whole := bytes.Join(units, nil)
	for _, cut := range []int{1, 4, 7, 100, 1440} {
		c := newCapture()
		c.packet(true, 0x02, 1<<32-30, nil)
		for off := 0; off < len(whole); off += cut {
			c.packet(true, 0x10, uint32(1<<32-29+off), whole[off:min(off+cut, len(whole))])
		}
		out, err := sendOnce(c.Bytes(), 0x14)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(t.TempDir(), "b.pcap")
		if err := os.WriteFile(to, out, 0o600); err != nil {
			t.Fatal(err)
		}
		conns, err := pcaptest.Read(to)
		if err != nil || len(conns) != 1 || !bytes.Equal(conns[0].C2S, whole) {
			t.Fatalf("cut every %d bytes: %d connections, %v", cut, len(conns), err)
		}
		var got []int
		for _, s := range conns[0].Segs {
			got = append(got, s.Len)
		}
		var want []int
		for _, u := range units {
			want = append(want, len(u))
		}
		if !slices.Equal(got, want) {
			t.Errorf("cut every %d bytes: packets of %v bytes, want %v", cut, got, want)
		}
	}
	c := newCapture()
	c.packet(true, 0x02, 1, nil)
	c.packet(true, 0x10, 2, whole[:len(whole)-1])
	if _, err := sendOnce(c.Bytes(), 0x14); err == nil {
		t.Error("a stream that ends inside an FPDU was accepted")
	}
}
