package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
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
		if err := everyByteOnce(from, to); err != nil {
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
	if _, err := sendOnce(c.Bytes()); err == nil {
		t.Error("a capture with a gap was accepted")
	}
	if _, err := sendOnce(c.Bytes()[:c.Len()-3]); err == nil {
		t.Error("a capture with half a packet was accepted")
	}
}
